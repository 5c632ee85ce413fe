package past

import (
	"cmp"
	"encoding/json"
	"iter"

	"meshlog.dev/proto/ident"
	"meshlog.dev/services/mesh/kind"
	"meshlog.dev/services/mesh/world"
	"meshlog.dev/store"
)

// Document returns a value as JSON; see kind.Document.
func Document(kindName string, v ident.Value) (json.RawMessage, error) {
	return kind.Document(kindName, v.Type, v.Bytes)
}

// prefix returns how the field paths of a kind's documents begin, as diagnostics
// write them.
func prefix(kindName string) string {
	if k, ok := kind.ByName(kindName); ok && k.Form == kind.Spec {
		return "spec"
	}
	return ""
}

// overlayDocument returns an overlay as JSON.
func overlayDocument(o world.Overlay) (json.RawMessage, error) {
	doc := overlayDoc{Kind: cmp.Or(OverlayKinds[o.Kind], "unknown"), Reason: o.Reason, Actor: o.Actor}
	if o.Scope != nil {
		doc.Keeps = o.Scope.String()
	}
	if o.Proxies != nil {
		doc.For = o.Proxies.String()
	}
	if r := o.Rollout; r != nil {
		doc.State, doc.Reached = r.State.String(), r.Reached.String()
	}
	for _, v := range o.Values {
		value := overlaidDoc{Object: v.Key.String(), Served: v.Value != nil}
		if v.Resource != nil {
			value.Object, value.Client = v.Resource.Name+" ("+v.Resource.Type+")", v.Resource.Client
		}
		if v.Value != nil && v.Resource == nil {
			value.Value, _ = Document(v.Key.Kind, *v.Value) // an unreadable value is served all the same
		}
		doc.Values = append(doc.Values, value)
	}
	return json.Marshal(doc)
}

// overlayDoc and overlaidDoc are printed: users read the names of the fields.
type overlayDoc struct {
	Kind   string `json:"kind"`
	Reason string `json:"reason,omitempty"`
	Actor  string `json:"actor,omitempty"`
	Keeps  string `json:"keeps,omitempty"` // what stays as it is
	For    string `json:"for,omitempty"`   // the proxies of a pin
	State  string `json:"state,omitempty"` // of a rollout
	// Reached are the proxies that a rollout has reached.
	Reached string        `json:"reached,omitempty"`
	Values  []overlaidDoc `json:"values,omitempty"`
}

type overlaidDoc struct {
	Object string          `json:"object"`
	Served bool            `json:"served"` // false: it is kept from being served
	Value  json.RawMessage `json:"value,omitempty"`
	Client string          `json:"client,omitempty"` // of a quarantine
}

// OverlayKinds are the names of the kinds of overlays.
var OverlayKinds = map[ident.OverlayKind]string{ident.Rollback: "rollback", ident.Hold: "hold", ident.Quarantine: "quarantine", ident.Freeze: "freeze", ident.Pin: "pin", ident.Rollout: "rollout"}

// row is the decoded key of a content row.
type row struct {
	key     ident.Key // zero for an overlay
	overlay string
}

func parseRow(key string) row {
	k, overlay, err := ident.ParseRow(key)
	if err != nil {
		return row{overlay: key} // this build does not know the form of the key
	}
	return row{k, overlay}
}

// Offered yields the keys of the objects in a content, without those that only an
// overlay has.
func Offered(s *store.Snapshot) iter.Seq[ident.Key] {
	return func(yield func(ident.Key) bool) {
		for r := range s.Rows() {
			if at := parseRow(r.Key); at.overlay == "" && !yield(at.key) {
				return
			}
		}
	}
}

// Layers returns the objects in a content, each with the ids of the overlays over
// it for all proxies, and the ids of all overlays. If this build cannot
// read an overlay, its error is returned with all other results.
func Layers(s *store.Snapshot) (objects map[ident.Key][]string, overlays []string, err error) {
	objects = map[ident.Key][]string{}
	add := func(k ident.Key, ids ...string) { objects[k] = append(objects[k], ids...) }
	for r := range s.Rows() {
		k, id, unknown := ident.ParseRow(r.Key)
		switch {
		case unknown != nil:
			continue
		case id == "":
			add(k)
			continue
		}
		overlays = append(overlays, id)
		o, unreadable := world.UnmarshalOverlay(id, r.Value)
		err = cmp.Or(err, unreadable)
		for _, v := range o.Values {
			if v.Resource == nil && !o.ForSome() {
				add(v.Key, id)
			}
		}
	}
	return objects, overlays, err
}

// document returns the value of a row as JSON: nil if there is none, null if this
// build cannot read it.
func (r row) document(b []byte) (doc json.RawMessage, err error) {
	if b == nil {
		return nil, nil
	}
	if r.overlay != "" {
		var o world.Overlay
		if o, err = world.UnmarshalOverlay(r.overlay, b); err == nil {
			doc, err = overlayDocument(o)
		}
	} else {
		var v ident.Value
		if v, err = world.UnmarshalValue(b); err == nil {
			doc, err = Document(r.key.Kind, v)
		}
	}
	if err != nil {
		doc = json.RawMessage("null")
	}
	return doc, err
}
