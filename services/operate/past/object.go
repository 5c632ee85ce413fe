package past

import (
	"encoding/json"

	"meshlog.dev/proto/ident"
	"meshlog.dev/services/mesh/kind"
	"meshlog.dev/services/mesh/world"
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
	doc := overlayDoc{Kind: overlayKind(o.Kind), Reason: o.Reason, Actor: o.Actor}
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
	Kind   string        `json:"kind"`
	Reason string        `json:"reason,omitempty"`
	Actor  string        `json:"actor,omitempty"`
	Values []overlaidDoc `json:"values"`
}

type overlaidDoc struct {
	Object string          `json:"object"`
	Served bool            `json:"served"` // false: it is kept from being served
	Value  json.RawMessage `json:"value,omitempty"`
	Client string          `json:"client,omitempty"` // of a quarantine
}

// overlayKind returns the name of a kind of overlays.
func overlayKind(k ident.OverlayKind) string {
	switch k {
	case ident.Rollback:
		return "rollback"
	case ident.Hold:
		return "hold"
	case ident.Quarantine:
		return "quarantine"
	}
	return "unknown"
}

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

// document returns the value of a row as JSON; nil if there is none.
func (r row) document(b []byte) (json.RawMessage, error) {
	switch {
	case b == nil:
		return nil, nil
	case r.overlay != "":
		o, err := world.UnmarshalOverlay(r.overlay, b)
		if err != nil {
			return nil, err
		}
		return overlayDocument(o)
	}
	v, err := world.UnmarshalValue(b)
	if err != nil {
		return nil, err
	}
	return Document(r.key.Kind, v)
}
