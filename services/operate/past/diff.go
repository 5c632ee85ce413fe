package past

import (
	"cmp"
	"encoding/json"

	"meshlog.dev/proto/ident"
	"meshlog.dev/store"
)

// Key is an ident.Key as JSON shows it.
type Key struct {
	Source    string `json:"source"`
	Instance  string `json:"instance"`
	Kind      string `json:"kind"`
	Namespace string `json:"namespace,omitempty"`
	Name      string `json:"name"`
}

// ObjectChange is one object, overlay or xDS resource that differs between two
// contents.
type ObjectChange struct {
	Row     string          `json:"-"`                 // of an object or an overlay
	Object  string          `json:"object"`            // for people
	Key     Key             `json:"key,omitzero"`      // of an object
	Overlay string          `json:"overlay,omitempty"` // id of an overlay
	Change  string          `json:"change"`            // added, removed, changed
	Fields  []FieldChange   `json:"fields,omitempty"`  // of changed
	Before  json.RawMessage `json:"before,omitempty"`  // of removed: the document
	After   json.RawMessage `json:"after,omitempty"`   // of added
	// Unreadable says why this build cannot show the difference.
	Unreadable string `json:"unreadable,omitempty"`
	Seq        uint64 `json:"seq,omitempty"` // of the record that caused the change; 0: unknown
}

// FieldChange is one field of a document before and after; nil: there is none.
type FieldChange struct {
	Path   string          `json:"path"`
	Before json.RawMessage `json:"before,omitempty"`
	After  json.RawMessage `json:"after,omitempty"`
}

// Compare sets the kind of the change from one document to another (nil: there is
// none), and the fields or the document to show. prefix begins the paths of the
// fields. err is why this build cannot read a document; pass that document as null.
func (c *ObjectChange) Compare(prefix string, before, after json.RawMessage, err error) {
	c.CompareRest(prefix, before, after, nil, err)
}

// CompareRest is Compare of documents without equal elements at the beginning and the end of
// lists.
func (c *ObjectChange) CompareRest(prefix string, before, after json.RawMessage, skipped Skipped, err error) {
	switch {
	case before == nil:
		c.Change, c.After = "added", after
	case after == nil:
		c.Change, c.Before = "removed", before
	default:
		c.Change = "changed"
	}
	switch {
	case err != nil:
		c.Before, c.After, c.Unreadable = nil, nil, err.Error()
	case c.Change == "changed":
		c.Fields = diffDocuments(prefix, before, after, skipped)
	}
}

// CompareValues returns the change of an object from one value to another; nil: there
// is none.
func CompareValues(k ident.Key, before, after *ident.Value) ObjectChange {
	c := ObjectChange{Object: k.String(), Key: Key(k)}
	var docs [2]json.RawMessage
	var errs [2]error
	for i, v := range []*ident.Value{before, after} {
		if v == nil {
			continue
		}
		if docs[i], errs[i] = Document(k.Kind, *v); errs[i] != nil {
			docs[i] = json.RawMessage("null")
		}
	}
	c.Compare(prefix(k.Kind), docs[0], docs[1], cmp.Or(errs[0], errs[1]))
	return c
}

// Diff returns the objects in which two contents differ, sorted by row.
func Diff(a, b *store.Snapshot) []ObjectChange { return Objects(diffRows(a, b)) }

// Objects returns the objects of changed rows.
func Objects(rows []RowChange) []ObjectChange {
	changes := make([]ObjectChange, len(rows))
	for i, r := range rows {
		changes[i] = readChange(r)
	}
	return changes
}

func readChange(r RowChange) ObjectChange {
	at := parseRow(r.Row)
	c := ObjectChange{Row: r.Row, Object: at.key.String(), Key: Key(at.key), Overlay: at.overlay, Seq: r.Seq}
	if at.overlay != "" {
		c.Object = "overlay " + at.overlay
	}
	before, err := at.document(r.Before)
	after, afterErr := at.document(r.After)
	c.Compare(prefix(at.key.Kind), before, after, cmp.Or(err, afterErr))
	return c
}
