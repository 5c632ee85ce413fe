package past

import (
	"encoding/json"
	"fmt"

	"meshlog.dev/proto/ident"
	"meshlog.dev/store"
)

// ObjectChange is one object or overlay that differs between two contents.
type ObjectChange struct {
	Key     ident.Key // zero for an overlay
	Overlay string    // id of an overlay
	// Before and After are documents; nil: there is none.
	Before, After json.RawMessage
	// Fields differ, if there is a document before and after.
	Fields []FieldChange
	// Unreadable says why this build cannot make the documents.
	Unreadable string
	// Seq is the record that made the change; 0: unknown.
	Seq uint64
}

// Name returns the name that people read.
func (c *ObjectChange) Name() string {
	if c.Overlay != "" {
		return "overlay " + c.Overlay
	}
	return c.Key.String()
}

// FieldChange is one field of a document before and after; nil: there is none.
type FieldChange struct {
	Path          string
	Before, After json.RawMessage
}

// Diff returns the objects in which two contents differ, sorted by row.
func Diff(a, b *store.Snapshot) []ObjectChange {
	return Objects(diffRows(a, b))
}

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
	c := ObjectChange{Key: at.key, Overlay: at.overlay, Seq: r.Seq}
	var err error
	if c.Before, err = at.document(r.Before); err == nil {
		c.After, err = at.document(r.After)
	}
	if err != nil {
		c.Unreadable = err.Error()
		// It is still known whether there is a value.
		c.Before, c.After = present(r.Before), present(r.After)
		return c
	}
	if c.Before != nil && c.After != nil {
		c.Fields = DiffDocuments(prefix(at.key.Kind), c.Before, c.After)
	}
	return c
}

// present returns a stand-in for a value that cannot be read.
func present(b []byte) json.RawMessage {
	if b == nil {
		return nil
	}
	return json.RawMessage("null")
}

// DiffDocuments returns the fields in which two documents differ, in the order of
// the first. The paths begin with prefix.
func DiffDocuments(prefix string, a, b json.RawMessage) []FieldChange {
	x, err := parse(a)
	if err == nil {
		var y any
		if y, err = parse(b); err == nil {
			var d differ
			d.values(prefix, x, y)
			return d.changes
		}
	}
	return []FieldChange{{Path: prefix, Before: a, After: b}}
}

// String returns the change as one line.
func (f FieldChange) String() string {
	return fmt.Sprintf("%s: %s -> %s", f.Path, text(f.Before), text(f.After))
}

func text(b json.RawMessage) string {
	if b == nil {
		return "(none)"
	}
	return string(b)
}
