package model

import (
	"fmt"
	"time"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/anypb"
	"google.golang.org/protobuf/types/known/timestamppb"

	snapshotv1 "meshlog.dev/proto/meshlog/snapshot/v1"
)

// Value is a value as its source gave it.
type Value struct {
	Type    string    // type URL
	Bytes   []byte    // never marshalled again
	Created time.Time // creation time at the source; zero where it has none
}

// OverlayValue is what is served for Key while its source offers Base, or in
// the place of Resource.
type OverlayValue struct {
	Key      Key
	Base     [32]byte  // content hash of what is offered; zero: nothing is
	Resource *Resource // instead of Key and Base, in a Quarantine
	Value    *Value    // nil: the key, or the resource, is not served
}

// OverlayKind says whose word an overlay is; the numbers are those on the log.
type OverlayKind uint8

// The kinds of overlays.
const (
	Rollback   OverlayKind = 1
	Hold       OverlayKind = 2
	Quarantine OverlayKind = 3
)

// Overlay lies over the world.
type Overlay struct {
	ID       string
	Kind     OverlayKind
	Reason   string
	Actor    string
	Observed time.Time
	Values   []OverlayValue // sorted by key row; resources in their own order
}

// RowChange is one content row that changed. A nil Value: it is gone.
type RowChange struct {
	Row   string
	Value []byte
	// Seq is the record that changed it; 0 where no single one did.
	Seq uint64
}

// Change is what records did to the content.
type Change struct {
	// Rows, in the order in which they changed; a row may come twice.
	Rows []RowChange
	// Reset says that Rows is all there is now: what was before is gone.
	Reset bool
	// EndpointsOnly says that nothing but endpoints changed, so that the
	// shortest holdoff is right.
	EndpointsOnly bool
}

// IsEmpty says whether the change changes nothing.
func (c Change) IsEmpty() bool { return len(c.Rows) == 0 && !c.Reset }

var deterministic = proto.MarshalOptions{Deterministic: true}

// MarshalValue is the bytes of a value's row.
func MarshalValue(v Value) []byte {
	b, err := deterministic.Marshal(v.Proto())
	if err != nil {
		panic(fmt.Sprintf("a value of bytes cannot fail to marshal: %v", err))
	}
	return b
}

// Proto is v on the wire.
func (v Value) Proto() *snapshotv1.Value {
	p := &snapshotv1.Value{Payload: &anypb.Any{TypeUrl: v.Type, Value: v.Bytes}}
	if !v.Created.IsZero() {
		p.CreateTime = timestamppb.New(v.Created)
	}
	return p
}

// ValueOf reads a value from the wire.
func ValueOf(p *snapshotv1.Value) Value {
	v := Value{Type: p.GetPayload().GetTypeUrl(), Bytes: p.GetPayload().GetValue()}
	if p.GetCreateTime() != nil {
		v.Created = p.GetCreateTime().AsTime()
	}
	return v
}

// UnmarshalValue reads the bytes of a value's row.
func UnmarshalValue(b []byte) (Value, error) {
	var p snapshotv1.Value
	if err := proto.Unmarshal(b, &p); err != nil {
		return Value{}, fmt.Errorf("value row: %w", err)
	}
	return ValueOf(&p), nil
}

// MarshalOverlay is the bytes of an overlay's row; its ID is the row's key.
func MarshalOverlay(o Overlay) []byte {
	b, err := deterministic.Marshal(o.Proto())
	if err != nil {
		panic(fmt.Sprintf("an overlay of bytes cannot fail to marshal: %v", err))
	}
	return b
}

// Proto is o on the wire, without its ID.
func (o Overlay) Proto() *snapshotv1.Overlay {
	p := &snapshotv1.Overlay{Kind: int32(o.Kind), Reason: o.Reason, Actor: o.Actor}
	if !o.Observed.IsZero() {
		p.ObservedTime = timestamppb.New(o.Observed)
	}
	for _, v := range o.Values {
		pv := new(snapshotv1.OverlayValue)
		if v.Resource != nil {
			pv.Resource = v.Resource.proto()
		} else {
			pv.Key = v.Key.Row()
		}
		if v.Base != ([32]byte{}) {
			pv.Base = v.Base[:]
		}
		if v.Value != nil {
			pv.Value = v.Value.Proto()
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
	o := Overlay{ID: id, Kind: OverlayKind(p.GetKind()), Reason: p.GetReason(), Actor: p.GetActor()}
	if p.GetObservedTime() != nil {
		o.Observed = p.GetObservedTime().AsTime()
	}
	for _, pv := range p.GetValues() {
		var v OverlayValue
		var err error
		if pv.GetResource() != nil {
			v.Resource, err = resourceOf(pv.GetResource())
		} else {
			v.Key, _, err = ParseRow(pv.GetKey())
		}
		if err != nil {
			return Overlay{}, fmt.Errorf("overlay %s: %w", id, err)
		}
		copy(v.Base[:], pv.GetBase())
		if pv.GetValue() != nil {
			val := ValueOf(pv.GetValue())
			v.Value = &val
		}
		o.Values = append(o.Values, v)
	}
	return o, nil
}
