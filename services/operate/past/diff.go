package past

import (
	"encoding/json"
	"fmt"

	"meshlog.dev/proto/ident"
	"meshlog.dev/store"
)

// ObjectChange is one object, or one overlay, that differs between two
// contents.
type ObjectChange struct {
	Key     ident.Key // zero for an overlay
	Overlay string    // id of an overlay
	// Before and After are documents; nil: it is not there.
	Before, After json.RawMessage
	// Fields are those that differ, where it is there before and after.
	Fields []FieldChange
	// Unreadable says why there are no documents: this build cannot read it.
	Unreadable string
	// Seq is the record that made it so; 0 where that is not known.
	Seq uint64
}

// Name is the object for people.
func (c *ObjectChange) Name() string {
	if c.Overlay != "" {
		return "overlay " + c.Overlay
	}
	return c.Key.String()
}

// FieldChange is one field of a document; nil: it is not there.
type FieldChange struct {
	Path          string
	Before, After json.RawMessage
}

// Diff says in which objects two contents differ, sorted by row.
func Diff(a, b *store.Snapshot) []ObjectChange {
	return Objects(diffRows(a, b))
}

// Objects reads changes of rows for people.
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
		// That it is there, or not, is still known.
		c.Before, c.After = present(r.Before), present(r.After)
		return c
	}
	if c.Before != nil && c.After != nil {
		c.Fields = DiffDocuments(prefix(at.key.Kind), c.Before, c.After)
	}
	return c
}

// present stands for a value that cannot be read.
func present(b []byte) json.RawMessage {
	if b == nil {
		return nil
	}
	return json.RawMessage("null")
}

// DiffDocuments says in which fields two documents differ, in the order of
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

// String is the change in one line.
func (f FieldChange) String() string {
	return fmt.Sprintf("%s: %s -> %s", f.Path, said(f.Before), said(f.After))
}

func said(b json.RawMessage) string {
	if b == nil {
		return "(none)"
	}
	return string(b)
}
