package events

import (
	"crypto/sha256"
	"encoding/binary"
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
	b, err := encodeUnsigned(e)
	if err == nil && e.Signature != nil {
		if err = text("epoch_id", e.Signature.EpochID); err == nil {
			b, err = appendSignature(b, e.Signature)
		}
		err = within("signature", err)
	}
	if err != nil {
		return nil, fmt.Errorf("encode event %q: %w", e.ID, err)
	}
	return b, nil
}

// encodeUnsigned is Encode without the signature.
func encodeUnsigned(e Event) ([]byte, error) {
	m := toProto(e)
	err := check(m)
	if err == nil {
		_, err = SubjectOf(e)
	}
	var b []byte
	if err == nil {
		b, err = proto.MarshalOptions{Deterministic: true}.Marshal(m)
	}
	return b, err
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
	err := check(&m)
	if err == nil {
		e := fromProto(&m)
		if _, err = SubjectOf(e); err == nil {
			return e, nil
		}
	}
	return Event{}, fmt.Errorf("decode event %q: %w", m.GetId(), err)
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

// toProto returns the message of an event, without its signature. It may be invalid;
// check finds out.
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
			Shard: shardToProto(b.Shard), Session: b.Session, Holder: b.Holder, Identity: b.Identity,
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

			Identity: b.Identity,
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
		Op:            eventv1.Op(o.Op),
		SourceVersion: o.SourceVersion,
		CreateTime:    toTimestamp(o.Value.Created),
		Origin:        o.Origin,
		Session:       o.Session,
		Pseq:          o.Pseq,
		Low:           o.Low,
	}
	if o.Op != Delete || o.Value.Type != "" || len(o.Value.Bytes) != 0 {
		m.Payload = payloadToProto(o.Value)
	}
	m.Batch = batchToProto(o.Batch)
	return m
}

func batchToProto(b Batch) *eventv1.Batch {
	if b == (Batch{}) {
		return nil
	}
	return &eventv1.Batch{Id: b.ID, Index: b.Index, Total: b.Total}
}

func overlayToProto(o *Overlay) *eventv1.Overlay {
	m := &eventv1.Overlay{
		Id: o.ID, Kind: eventv1.OverlayKind(o.Kind), Reason: o.Reason, Remove: o.Remove,
		Scope: scopeToProto(o.Scope), Batch: batchToProto(o.Batch),
	}
	if p := o.Proxies; p != nil {
		m.Proxies = proxiesToProto(*p)
	}
	if r := o.Rollout; r != nil {
		m.Rollout = &eventv1.Rollout{
			State: eventv1.RolloutState(r.State), Step: uint32(r.Step), Percent: uint32(r.Reached.Percent), Ordered: r.Ordered,
		}
		for _, p := range r.Reached.Proxies {
			m.Rollout.Reached = append(m.Rollout.Reached, proxiesToProto(p))
		}
	}
	for _, v := range o.Values {
		mv := &eventv1.OverlayValue{Base: hashToProto(v.Base)}
		if r := v.Resource; r != nil {
			mv.Resource = &eventv1.Resource{
				TypeUrl: r.Type, Name: r.Name, Sum: r.Sum[:], Client: r.Client, Class: r.Class,
				Piece: r.Piece, Closed: r.Closed, By: r.By,
			}
		}
		if v.Key != (ident.Key{}) {
			mv.Key = keyToProto(v.Key)
		}
		if v.Value != nil {
			mv.Payload, mv.CreateTime = payloadToProto(*v.Value), toTimestamp(v.Value.Created)
		}
		m.Values = append(m.Values, mv)
	}
	return m
}

func proxiesToProto(p ident.Proxies) *eventv1.Proxies {
	return &eventv1.Proxies{Id: p.ID, Namespace: p.Namespace, Cluster: p.Cluster, Labels: p.Labels}
}

func proxiesFromProto(p *eventv1.Proxies) ident.Proxies {
	return ident.Proxies{ID: p.GetId(), Namespace: p.GetNamespace(), Cluster: p.GetCluster(), Labels: p.GetLabels()}
}

func scopeToProto(s *ident.Scope) *eventv1.Scope {
	if s == nil {
		return nil
	}
	m := &eventv1.Scope{Config: s.Config, Namespace: s.Namespace}
	if s.Shard != (ident.Shard{}) {
		m.Shard = shardToProto(s.Shard)
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

// fromProto returns the event in a message that check accepted.
func fromProto(m *eventv1.Event) Event {
	e := Event{
		ID: m.GetId(), Observed: fromTimestamp(m.GetObservedTime()), Actor: m.GetActor(), Trace: m.GetTraceparent(),
		Signature: signatureFromProto(m.GetSignature()),
	}
	switch b := m.GetBody().(type) {
	case *eventv1.Event_Object:
		e.Body = objectFromProto(b.Object)
	case *eventv1.Event_Begin:
		e.Body = &Begin{
			Shard: shardFromProto(b.Begin.GetShard()), Session: b.Begin.GetSession(), Holder: b.Begin.GetHolder(),
			Identity: b.Begin.GetIdentity(),
		}
	case *eventv1.Event_Alive:
		e.Body = aliveFromProto(b.Alive)
	case *eventv1.Event_Overlay:
		e.Body = overlayFromProto(b.Overlay)
	case *eventv1.Event_Segment:
		e.Body = &Segment{
			Epoch:       b.Segment.GetEpoch(),
			Build:       b.Segment.GetBuild(),
			Base:        hashFromProto(b.Segment.GetBase()),
			Head:        ident.Position{Epoch: b.Segment.GetHeadEpoch(), Seq: b.Segment.GetHeadSeq()},
			VersionsSeq: b.Segment.GetVersionsSeq(),
			EpochRecord: b.Segment.GetEpochRecord(),
		}
	}
	return e
}

func objectFromProto(m *eventv1.Object) *Object {
	o := &Object{
		Key:           keyFromProto(m.GetKey()),
		Op:            Op(m.GetOp()),
		Value:         valueFromProto(m.GetPayload(), m.GetCreateTime()),
		SourceVersion: m.GetSourceVersion(),
		Origin:        m.GetOrigin(),
		Session:       m.GetSession(),
		Pseq:          m.GetPseq(),
		Low:           m.GetLow(),
	}
	o.Batch = batchFromProto(m.GetBatch())
	return o
}

func batchFromProto(m *eventv1.Batch) Batch {
	return Batch{ID: m.GetId(), Index: m.GetIndex(), Total: m.GetTotal()}
}

func aliveFromProto(m *eventv1.Alive) *Alive {
	a := &Alive{
		Shard:   shardFromProto(m.GetShard()),
		Session: m.GetSession(),
		Low:     m.GetLow(),
		Digest:  Digest(m.GetDigest()),
		Partial: m.GetPartial(),
		Kinds:   m.GetKinds(),
		Ends:    m.GetEnds(),

		Identity: m.GetIdentity(),
	}
	if listed := m.GetListed(); len(listed) > 0 {
		for i := range a.Listed {
			a.Listed[i] = binary.LittleEndian.Uint64(listed[8*i:])
		}
	}
	return a
}

func overlayFromProto(m *eventv1.Overlay) *Overlay {
	o := &Overlay{
		ID: m.GetId(), Kind: ident.OverlayKind(m.GetKind()), Reason: m.GetReason(), Remove: m.GetRemove(),
		Batch: batchFromProto(m.GetBatch()),
	}
	if s := m.GetScope(); s != nil {
		o.Scope = &ident.Scope{Shard: shardFromProto(s.GetShard()), Config: s.GetConfig(), Namespace: s.GetNamespace()}
	}
	if p := m.GetProxies(); p != nil {
		o.Proxies = new(proxiesFromProto(p))
	}
	if r := m.GetRollout(); r != nil {
		o.Rollout = &ident.Staging{
			State: ident.RolloutState(r.GetState()), Step: int(r.GetStep()), Ordered: r.GetOrdered(),
			Reached: ident.Group{Percent: int(r.GetPercent())},
		}
		for _, p := range r.GetReached() {
			o.Rollout.Reached.Proxies = append(o.Rollout.Reached.Proxies, proxiesFromProto(p))
		}
	}
	for _, mv := range m.GetValues() {
		v := ident.OverlayValue{Key: keyFromProto(mv.GetKey()), Base: hashFromProto(mv.GetBase())}
		if r := mv.GetResource(); r != nil {
			v.Resource = &ident.Resource{
				Rejected: rejectedFromProto(r), Class: r.GetClass(), Piece: r.GetPiece(), Closed: r.GetClosed(), By: r.GetBy(),
			}
		}
		if mv.GetPayload() != nil {
			v.Value = new(valueFromProto(mv.GetPayload(), mv.GetCreateTime()))
		}
		o.Values = append(o.Values, v)
	}
	return o
}

func rejectedFromProto(m *eventv1.Resource) ident.Rejected {
	return ident.Rejected{Type: m.GetTypeUrl(), Name: m.GetName(), Sum: [16]byte(m.GetSum()), Client: m.GetClient()}
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

func valueFromProto(m *anypb.Any, created *timestamppb.Timestamp) ident.Value {
	v := ident.Value{Type: m.GetTypeUrl(), Created: fromTimestamp(created)}
	if len(m.GetValue()) > 0 { // an empty value is nil, present or not
		v.Bytes = m.GetValue()
	}
	return v
}

func hashFromProto(b []byte) ident.Hash {
	if len(b) == 0 {
		return ident.Hash{}
	}
	return ident.Hash(b)
}

func fromTimestamp(m *timestamppb.Timestamp) time.Time {
	if m == nil {
		return time.Time{}
	}
	return m.AsTime()
}
