package events

import (
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"fmt"
	"time"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/anypb"
	"google.golang.org/protobuf/types/known/timestamppb"

	"meshlog.dev/proto/ident"
	eventv1 "meshlog.dev/proto/meshlog/event/v1"
)

// Encode returns the bytes of a meshlog.event.v1.Event. Equal events give equal
// bytes, and Decode reads them. The error names the invalid field.
func Encode(e Event) ([]byte, error) {
	if err := check(e); err != nil {
		return nil, fmt.Errorf("encode event %q: %w", e.ID, err)
	}
	b, err := proto.MarshalOptions{Deterministic: true}.Marshal(toProto(e))
	if err != nil {
		return nil, fmt.Errorf("encode event %q: %w", e.ID, err)
	}
	return b, nil
}

// Decode reads the bytes that Encode returned; it keeps no reference to raw. It
// skips unknown fields, so that newer writers may add some. An unknown body,
// operation or overlay kind is an error, and so is a field that is missing, of
// the wrong size or invalid.
func Decode(raw []byte) (Event, error) {
	var m eventv1.Event
	if err := proto.Unmarshal(raw, &m); err != nil {
		return Event{}, fmt.Errorf("decode event: %w", err)
	}
	e, err := fromProto(&m)
	if err == nil {
		err = check(e)
	}
	if err != nil {
		return Event{}, fmt.Errorf("decode event %q: %w", m.GetId(), err)
	}
	return e, nil
}

// DecodeRecord makes the record at seq from its bytes and the server's time.
// Bytes that Decode refuses give a Record with Err.
func DecodeRecord(seq uint64, t time.Time, raw []byte) Record {
	r := Record{Seq: seq, Time: t.UTC(), Hash: RecordHash(raw, t)}
	r.Event, r.Err = Decode(raw)
	return r
}

// RecordHash returns Record.Hash, a hash of a record's bytes and the server's
// time.
func RecordHash(raw []byte, t time.Time) ident.Hash {
	h := sha256.New()
	var ns [8]byte
	binary.BigEndian.PutUint64(ns[:], uint64(t.UnixNano()))
	h.Write(ns[:])
	h.Write(raw)
	return ident.Hash(h.Sum(nil))
}

func toProto(e Event) *eventv1.Event {
	m := &eventv1.Event{
		Id:           e.ID,
		ObservedTime: toTimestamp(e.Observed),
		Actor:        e.Actor,
		Traceparent:  e.Trace,
	}
	switch b := e.Body.(type) {
	case *Object:
		m.Body = &eventv1.Event_Object{Object: objectToProto(b)}
	case *Begin:
		m.Body = &eventv1.Event_Begin{Begin: &eventv1.Begin{
			Shard: shardToProto(b.Shard), Session: b.Session, Holder: b.Holder,
		}}
	case *Alive:
		m.Body = &eventv1.Event_Alive{Alive: &eventv1.Alive{
			Shard:   shardToProto(b.Shard),
			Session: b.Session,
			Low:     b.Low,
			Digest:  b.Digest[:],
			Listed:  listedToProto(b.Listed),
			Partial: b.Partial,
			Kinds:   b.Kinds,
			Ends:    b.Ends,
		}}
	case *Overlay:
		m.Body = &eventv1.Event_Overlay{Overlay: overlayToProto(b)}
	case *Segment:
		m.Body = &eventv1.Event_Segment{Segment: &eventv1.Segment{
			Epoch:       b.Epoch,
			Build:       b.Build,
			Base:        hashToProto(b.Base),
			HeadEpoch:   b.Head.Epoch,
			HeadSeq:     b.Head.Seq,
			VersionsSeq: b.VersionsSeq,
			EpochRecord: b.EpochRecord,
		}}
	}
	return m
}

func objectToProto(o *Object) *eventv1.Object {
	m := &eventv1.Object{
		Key:           keyToProto(o.Key),
		SourceVersion: o.SourceVersion,
		CreateTime:    toTimestamp(o.Value.Created),
		Origin:        o.Origin,
		Session:       o.Session,
		Pseq:          o.Pseq,
		Low:           o.Low,
	}
	switch o.Op {
	case Put:
		m.Op = eventv1.Op_OP_PUT
		m.Payload = payloadToProto(o.Value)
	case Delete:
		m.Op = eventv1.Op_OP_DELETE
	}
	if o.Batch.Total != 0 {
		m.Batch = &eventv1.Batch{Id: o.Batch.ID, Index: o.Batch.Index, Total: o.Batch.Total}
	}
	return m
}

// overlayKinds has no zero kind, which is valid in a removal; check decides.
var overlayKinds = map[ident.OverlayKind]eventv1.OverlayKind{
	ident.Rollback:   eventv1.OverlayKind_OVERLAY_KIND_ROLLBACK,
	ident.Hold:       eventv1.OverlayKind_OVERLAY_KIND_HOLD,
	ident.Quarantine: eventv1.OverlayKind_OVERLAY_KIND_QUARANTINE,
}

func overlayToProto(o *Overlay) *eventv1.Overlay {
	m := &eventv1.Overlay{Id: o.ID, Kind: overlayKinds[o.Kind], Reason: o.Reason, Remove: o.Remove}
	for _, v := range o.Values {
		mv := &eventv1.OverlayValue{Base: hashToProto(v.Base)}
		if r := v.Resource; r != nil {
			mv.Resource = &eventv1.Resource{TypeUrl: r.Type, Name: r.Name, Sum: r.Sum[:], Client: r.Client, Class: r.Class}
		} else {
			mv.Key = keyToProto(v.Key)
		}
		if v.Value != nil {
			mv.Payload, mv.CreateTime = payloadToProto(*v.Value), toTimestamp(v.Value.Created)
		}
		m.Values = append(m.Values, mv)
	}
	return m
}

func keyToProto(k ident.Key) *eventv1.Key {
	return &eventv1.Key{Source: k.Source, Instance: k.Instance, Kind: k.Kind, Namespace: k.Namespace, Name: k.Name}
}

func shardToProto(s ident.Shard) *eventv1.Shard {
	return &eventv1.Shard{Source: s.Source, Instance: s.Instance}
}

func payloadToProto(p ident.Value) *anypb.Any {
	return &anypb.Any{TypeUrl: p.Type, Value: p.Bytes}
}

func hashToProto(h ident.Hash) []byte {
	if h.IsZero() {
		return nil
	}
	return h[:]
}

// listedToProto writes one bit per bucket, lowest first, and nil for the empty set.
func listedToProto(s BucketSet) []byte {
	if s == (BucketSet{}) {
		return nil
	}
	var b []byte
	for _, w := range s {
		b = binary.LittleEndian.AppendUint64(b, w)
	}
	return b
}

func toTimestamp(t time.Time) *timestamppb.Timestamp {
	if t.IsZero() {
		return nil
	}
	return timestamppb.New(t)
}

func fromProto(m *eventv1.Event) (Event, error) {
	e := Event{ID: m.GetId(), Actor: m.GetActor(), Trace: m.GetTraceparent()}
	var err error
	if e.Observed, err = fromTimestamp("observed_time", m.GetObservedTime()); err != nil {
		return Event{}, err
	}
	switch b := m.GetBody().(type) {
	case *eventv1.Event_Object:
		e.Body, err = objectFromProto(b.Object)
	case *eventv1.Event_Begin:
		e.Body = &Begin{
			Shard: shardFromProto(b.Begin.GetShard()), Session: b.Begin.GetSession(), Holder: b.Begin.GetHolder(),
		}
	case *eventv1.Event_Alive:
		e.Body, err = aliveFromProto(b.Alive)
	case *eventv1.Event_Overlay:
		e.Body, err = overlayFromProto(b.Overlay)
	case *eventv1.Event_Segment:
		e.Body, err = segmentFromProto(b.Segment)
	default:
		err = errors.New("body: is missing, or of a type that a newer build writes")
	}
	if err != nil {
		return Event{}, err
	}
	return e, nil
}

func objectFromProto(m *eventv1.Object) (*Object, error) {
	o := &Object{
		Key:           keyFromProto(m.GetKey()),
		SourceVersion: m.GetSourceVersion(),
		Origin:        m.GetOrigin(),
		Session:       m.GetSession(),
		Pseq:          m.GetPseq(),
		Low:           m.GetLow(),
	}
	switch m.GetOp() {
	case eventv1.Op_OP_PUT:
		o.Op = Put
		if m.GetPayload() == nil {
			return nil, errors.New("object.payload: is missing in a PUT")
		}
		o.Value = payloadFromProto(m.GetPayload())
	case eventv1.Op_OP_DELETE:
		o.Op = Delete
		if m.GetPayload() != nil {
			return nil, errors.New("object.payload: must be absent in a DELETE")
		}
	default:
		return nil, fmt.Errorf("object.op: %d is neither PUT nor DELETE", m.GetOp())
	}
	var err error
	if o.Value.Created, err = fromTimestamp("object.create_time", m.GetCreateTime()); err != nil {
		return nil, err
	}
	if b := m.GetBatch(); b != nil {
		if b.GetTotal() == 0 {
			return nil, errors.New("object.batch.total: must be at least 1")
		}
		o.Batch = Batch{ID: b.GetId(), Index: b.GetIndex(), Total: b.GetTotal()}
	}
	return o, nil
}

func aliveFromProto(m *eventv1.Alive) (*Alive, error) {
	a := &Alive{
		Shard:   shardFromProto(m.GetShard()),
		Session: m.GetSession(),
		Low:     m.GetLow(),
		Partial: m.GetPartial(),
		Kinds:   m.GetKinds(),
		Ends:    m.GetEnds(),
	}
	if n := copy(a.Digest[:], m.GetDigest()); n != len(a.Digest) || n != len(m.GetDigest()) {
		return nil, fmt.Errorf("alive.digest: has %d bytes instead of %d", len(m.GetDigest()), len(a.Digest))
	}
	switch listed := m.GetListed(); len(listed) {
	case 0:
	case Buckets / 8:
		for i := range a.Listed {
			a.Listed[i] = binary.LittleEndian.Uint64(listed[8*i:])
		}
	default:
		return nil, fmt.Errorf("alive.listed: has %d bytes instead of none or %d", len(listed), Buckets/8)
	}
	return a, nil
}

func overlayFromProto(m *eventv1.Overlay) (*Overlay, error) {
	o := &Overlay{ID: m.GetId(), Reason: m.GetReason(), Remove: m.GetRemove()}
	for kind, is := range overlayKinds {
		if is == m.GetKind() {
			o.Kind = kind
		}
	}
	if o.Kind == 0 && m.GetKind() != 0 {
		return nil, fmt.Errorf("overlay.kind: this build does not know %d", m.GetKind())
	}
	for i, mv := range m.GetValues() {
		v, err := overlayValueFromProto(mv)
		if err != nil {
			return nil, within(fmt.Sprintf("overlay.values[%d]", i), err)
		}
		o.Values = append(o.Values, v)
	}
	return o, nil
}

func overlayValueFromProto(m *eventv1.OverlayValue) (ident.OverlayValue, error) {
	v := ident.OverlayValue{Key: keyFromProto(m.GetKey())}
	var err error
	if v.Resource, err = resourceFromProto(m.GetResource()); err != nil {
		return v, within("resource", err)
	}
	if v.Base, err = hashFromProto("base", m.GetBase()); err != nil {
		return v, err
	}
	created, err := fromTimestamp("create_time", m.GetCreateTime())
	switch {
	case err != nil:
		return v, err
	case m.GetPayload() != nil:
		v.Value = new(payloadFromProto(m.GetPayload()))
		v.Value.Created = created
	case v.Resource != nil && !created.IsZero():
		return v, errors.New("resource.create_time: must be absent")
	}
	return v, nil
}

func resourceFromProto(m *eventv1.Resource) (*ident.Resource, error) {
	if m == nil {
		return nil, nil
	}
	r := &ident.Resource{Rejected: ident.Rejected{Type: m.GetTypeUrl(), Name: m.GetName(), Client: m.GetClient()}, Class: m.GetClass()}
	if len(m.GetSum()) != len(r.Sum) {
		return nil, fmt.Errorf("sum: has %d bytes instead of %d", len(m.GetSum()), len(r.Sum))
	}
	r.Sum = [16]byte(m.GetSum())
	return r, nil
}

func segmentFromProto(m *eventv1.Segment) (*Segment, error) {
	base, err := hashFromProto("segment.base", m.GetBase())
	if err != nil {
		return nil, err
	}
	return &Segment{
		Epoch:       m.GetEpoch(),
		Build:       m.GetBuild(),
		Base:        base,
		Head:        ident.Position{Epoch: m.GetHeadEpoch(), Seq: m.GetHeadSeq()},
		VersionsSeq: m.GetVersionsSeq(),
		EpochRecord: m.GetEpochRecord(),
	}, nil
}

func keyFromProto(m *eventv1.Key) ident.Key {
	return ident.Key{
		Source: m.GetSource(), Instance: m.GetInstance(), Kind: m.GetKind(),
		Namespace: m.GetNamespace(), Name: m.GetName(),
	}
}

func shardFromProto(m *eventv1.Shard) ident.Shard {
	return ident.Shard{Source: m.GetSource(), Instance: m.GetInstance()}
}

func payloadFromProto(m *anypb.Any) ident.Value {
	p := ident.Value{Type: m.GetTypeUrl()}
	if len(m.GetValue()) > 0 { // an empty value is nil, present or not
		p.Bytes = m.GetValue()
	}
	return p
}

func hashFromProto(field string, b []byte) (ident.Hash, error) {
	var h ident.Hash
	if len(b) == 0 {
		return h, nil
	}
	if len(b) != len(h) {
		return ident.Hash{}, fmt.Errorf("%s: has %d bytes instead of %d", field, len(b), len(h))
	}
	return ident.Hash(b), nil
}

func fromTimestamp(field string, m *timestamppb.Timestamp) (time.Time, error) {
	if m == nil {
		return time.Time{}, nil
	}
	if err := m.CheckValid(); err != nil {
		return time.Time{}, fmt.Errorf("%s: %w", field, err)
	}
	t := m.AsTime()
	if t.IsZero() {
		return time.Time{}, fmt.Errorf("%s: is the zero time; leave it absent", field)
	}
	return t, nil
}
