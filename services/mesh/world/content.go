package world

import (
	"fmt"
	"time"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/anypb"
	"google.golang.org/protobuf/types/known/timestamppb"

	"meshlog.dev/proto/ident"
	snapshotv1 "meshlog.dev/proto/meshlog/snapshot/v1"
)

// Overlay replaces values or resources while it is in effect.
type Overlay struct {
	ID       string
	Kind     ident.OverlayKind
	Reason   string
	Actor    string
	Observed time.Time
	Values   []ident.OverlayValue // sorted by key row; resources in their own order
	Scope    *ident.Scope         // as in events.Overlay
	Proxies  *ident.Proxies       // as in events.Overlay
	Rollout  *ident.Staging       // as in events.Overlay, with its time
}

// RowChange is one content row that changed.
type RowChange struct {
	Row string
	// Value holds the bytes of the row; nil if the row is gone.
	Value []byte
	// Key is the key of a value's row. Rows that come from a store leave it
	// empty: Apply parses Row then.
	Key ident.Key
	// Object is Value decoded, so that Apply need not decode it again. Rows that
	// come from a store have none.
	Object *Object
	// Seq is the record that changed the row; 0 if no single record did.
	Seq uint64
}

// Change is a change of the content.
type Change struct {
	// Rows, in the order in which they changed; a row may come twice.
	Rows []RowChange
	// Reset: Rows are the whole content, all other rows are gone.
	Reset bool
	// EndpointsOnly: nothing but endpoints changed, so the shortest holdoff
	// applies.
	EndpointsOnly bool
}

// IsEmpty reports whether c changes nothing.
func (c Change) IsEmpty() bool { return len(c.Rows) == 0 && !c.Reset }

func marshal(m proto.Message) []byte {
	b, err := proto.MarshalOptions{Deterministic: true}.Marshal(m)
	if err != nil {
		panic(fmt.Sprintf("a %T of bytes cannot fail to marshal: %v", m, err))
	}
	return b
}

// MarshalValue returns the bytes of a value's row.
func MarshalValue(v ident.Value) []byte { return marshal(ValueProto(v)) }

// ValueProto returns v on the wire.
func ValueProto(v ident.Value) *snapshotv1.Value {
	p := &snapshotv1.Value{Payload: &anypb.Any{TypeUrl: v.Type, Value: v.Bytes}}
	if !v.Created.IsZero() {
		p.CreateTime = timestamppb.New(v.Created)
	}
	return p
}

// ValueOf reads a value from the wire.
func ValueOf(p *snapshotv1.Value) ident.Value {
	v := ident.Value{Type: p.GetPayload().GetTypeUrl(), Bytes: p.GetPayload().GetValue()}
	if p.GetCreateTime() != nil {
		v.Created = p.GetCreateTime().AsTime()
	}
	return v
}

// UnmarshalValue reads the bytes of a value's row.
func UnmarshalValue(b []byte) (ident.Value, error) {
	var p snapshotv1.Value
	if err := proto.Unmarshal(b, &p); err != nil {
		return ident.Value{}, fmt.Errorf("value row: %w", err)
	}
	return ValueOf(&p), nil
}

// MarshalOverlay returns the bytes of an overlay's row; the row's key holds its
// ID.
func MarshalOverlay(o Overlay) []byte { return marshal(o.Proto()) }

// Proto returns o on the wire, without its ID.
func (o Overlay) Proto() *snapshotv1.Overlay {
	p := &snapshotv1.Overlay{Kind: int32(o.Kind), Reason: o.Reason, Actor: o.Actor}
	if !o.Observed.IsZero() {
		p.ObservedTime = timestamppb.New(o.Observed)
	}
	if s := o.Scope; s != nil {
		p.Scope = &snapshotv1.Scope{Source: s.Shard.Source, Instance: s.Shard.Instance, Config: s.Config, Namespace: s.Namespace}
	}
	if x := o.Proxies; x != nil {
		p.Proxies = proxiesProto(*x)
	}
	if r := o.Rollout; r != nil {
		p.Rollout = &snapshotv1.Rollout{
			State: int32(r.State), Step: uint32(r.Step), Percent: uint32(r.Reached.Percent), Ordered: r.Ordered,
		}
		for _, x := range r.Reached.Proxies {
			p.Rollout.Reached = append(p.Rollout.Reached, proxiesProto(x))
		}
		if !r.Since.IsZero() {
			p.Rollout.Since = timestamppb.New(r.Since)
		}
	}
	for _, v := range o.Values {
		pv := &snapshotv1.OverlayValue{Kept: v.Kept}
		if v.Resource != nil {
			pv.Resource = resourceProto(v.Resource)
		} else {
			pv.Key = v.Key.Row()
		}
		if !v.Base.IsZero() {
			pv.Base = v.Base[:]
		}
		if v.Value != nil {
			pv.Value = ValueProto(*v.Value)
		}
		p.Values = append(p.Values, pv)
	}
	return p
}

// UnmarshalOverlay reads the bytes of an overlay's row.
func UnmarshalOverlay(id string, b []byte) (Overlay, error) {
	var p snapshotv1.Overlay
	if err := proto.Unmarshal(b, &p); err != nil {
		return Overlay{}, fmt.Errorf("overlay row %s: %w", id, err)
	}
	return OverlayOf(id, &p)
}

// OverlayOf reads an overlay from the wire.
func OverlayOf(id string, p *snapshotv1.Overlay) (Overlay, error) {
	o := Overlay{ID: id, Kind: ident.OverlayKind(p.GetKind()), Reason: p.GetReason(), Actor: p.GetActor()}
	if p.GetObservedTime() != nil {
		o.Observed = p.GetObservedTime().AsTime()
	}
	if s := p.GetScope(); s != nil {
		o.Scope = &ident.Scope{
			Shard: ident.Shard{Source: s.GetSource(), Instance: s.GetInstance()}, Config: s.GetConfig(), Namespace: s.GetNamespace(),
		}
	}
	if x := p.GetProxies(); x != nil {
		o.Proxies = new(proxiesOf(x))
	}
	o.Rollout = stagingOf(p.GetRollout())
	for _, pv := range p.GetValues() {
		var v ident.OverlayValue
		var err error
		if pv.GetResource() != nil {
			v.Resource, err = resourceOf(pv.GetResource())
		} else {
			v.Key, _, err = ident.ParseRow(pv.GetKey())
		}
		if err != nil {
			return Overlay{}, fmt.Errorf("overlay %s: %w", id, err)
		}
		copy(v.Base[:], pv.GetBase())
		v.Kept = pv.GetKept()
		if pv.GetValue() != nil {
			val := ValueOf(pv.GetValue())
			v.Value = &val
		}
		o.Values = append(o.Values, v)
	}
	return o, nil
}

func proxiesProto(x ident.Proxies) *snapshotv1.Proxies {
	return &snapshotv1.Proxies{Id: x.ID, Namespace: x.Namespace, Cluster: x.Cluster, Labels: x.Labels}
}

func proxiesOf(x *snapshotv1.Proxies) ident.Proxies {
	return ident.Proxies{ID: x.GetId(), Namespace: x.GetNamespace(), Cluster: x.GetCluster(), Labels: x.GetLabels()}
}

func stagingOf(r *snapshotv1.Rollout) *ident.Staging {
	if r == nil {
		return nil
	}
	s := &ident.Staging{
		State: ident.RolloutState(r.GetState()), Step: int(r.GetStep()), Ordered: r.GetOrdered(),
		Reached: ident.Group{Percent: int(r.GetPercent())},
	}
	for _, x := range r.GetReached() {
		s.Reached.Proxies = append(s.Reached.Proxies, proxiesOf(x))
	}
	if r.GetSince() != nil {
		s.Since = r.GetSince().AsTime()
	}
	return s
}
