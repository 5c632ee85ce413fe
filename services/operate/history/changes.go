package history

import (
	"context"
	"encoding/json"
	"fmt"
	"strings"

	"meshlog.dev/proto/ident"
	"meshlog.dev/services/operate/command"
	"meshlog.dev/services/operate/past"
	"meshlog.dev/store"
)

// objectChange is an object that differs between two contents.
type objectChange struct {
	Object  string          `json:"object"`            // for people
	Key     *keyView        `json:"key,omitempty"`     // of an object
	Overlay string          `json:"overlay,omitempty"` // id of an overlay
	Change  string          `json:"change"`            // added, removed, changed
	Fields  []fieldView     `json:"fields,omitempty"`  // of changed
	Before  json.RawMessage `json:"before,omitempty"`  // of removed: the document
	After   json.RawMessage `json:"after,omitempty"`   // of added
	// Unreadable says why this build cannot show the difference.
	Unreadable string `json:"unreadable,omitempty"`
	Seq        uint64 `json:"seq,omitempty"`   // of the record that caused the change
	Cause      string `json:"cause,omitempty"` // that record in words
}

// fieldView is a field that differs; a side without the field is absent.
type fieldView struct {
	Path   string          `json:"path"`
	Before json.RawMessage `json:"before,omitempty"`
	After  json.RawMessage `json:"after,omitempty"`
}

func viewChanges(changes []past.ObjectChange) []objectChange {
	views := make([]objectChange, len(changes))
	for i, c := range changes {
		views[i] = viewChange(c)
	}
	return views
}

func viewChange(c past.ObjectChange) objectChange {
	v := objectChange{Object: c.Name(), Overlay: c.Overlay, Seq: c.Seq}
	if c.Overlay == "" {
		key := viewKey(c.Key)
		v.Key = &key
	}
	v.fill(c.Before, c.After, c.Fields, c.Unreadable)
	return v
}

// fill sets the change and the parts that it shows.
func (c *objectChange) fill(before, after json.RawMessage, fields []past.FieldChange, unreadable string) {
	c.Unreadable = unreadable
	switch {
	case before == nil:
		c.Change, c.After = "added", after
	case after == nil:
		c.Change, c.Before = "removed", before
	default:
		c.Change, c.Fields = "changed", viewFields(fields)
	}
	if unreadable != "" {
		c.Before, c.After = nil, nil
	}
}

func viewFields(fields []past.FieldChange) []fieldView {
	views := make([]fieldView, len(fields))
	for i, f := range fields {
		views[i] = fieldView(f)
	}
	return views
}

// title returns the object with the sign of its change.
func (c *objectChange) title(out *command.Output) string {
	switch c.Change {
	case "added":
		return out.Paint("+ "+c.Object, command.Green)
	case "removed":
		return out.Paint("- "+c.Object, command.Red)
	}
	return out.Paint("~ "+c.Object, command.Yellow)
}

// lines returns the fields that differ. An object that was added or removed has
// none.
func (c *objectChange) lines() []string {
	if c.Unreadable != "" {
		return []string{"cannot be shown: " + c.Unreadable}
	}
	return fieldLines(c.Fields)
}

func fieldLines(fields []fieldView) []string {
	lines := make([]string, len(fields))
	for i, f := range fields {
		switch {
		case f.Before == nil:
			lines[i] = fmt.Sprintf("%s: %s (new)", f.Path, brief(f.After))
		case f.After == nil:
			lines[i] = fmt.Sprintf("%s: removed, was %s", f.Path, brief(f.Before))
		default:
			lines[i] = fmt.Sprintf("%s: %s -> %s", f.Path, brief(f.Before), brief(f.After))
		}
	}
	return lines
}

// maxValue is how much of a value a line shows; `-o json` shows all.
const maxValue = 100

func brief(b []byte) string {
	s := []rune(string(b))
	if len(s) <= maxValue {
		return string(s)
	}
	return string(s[:maxValue]) + "..."
}

// printChanges prints changes of objects, and below each its fields.
func printChanges(out *command.Output, changes []objectChange) {
	for _, c := range changes {
		line := c.title(out)
		if c.Seq != 0 {
			line += out.Paint(strings.TrimRight(fmt.Sprintf("  #%d %s", c.Seq, c.Cause), " "), command.Faint)
		}
		out.Line("%s", line)
		for _, l := range c.lines() {
			out.Line("    %s", l)
		}
	}
}

// explainer describes records in one line each.
type explainer struct {
	past  *past.Past
	known map[uint64]string
}

func newExplainer(p *past.Past) *explainer { return &explainer{p, map[uint64]string{}} }

// cause describes record seq; empty if the log does not have it any more.
func (e *explainer) cause(ctx context.Context, seq uint64) string {
	if seq == 0 || e.past.Log == nil {
		return ""
	}
	text, ok := e.known[seq]
	if !ok {
		if r, err := e.past.Log.Get(ctx, seq); err == nil {
			what, _, detail, by := summary(r)
			text = strings.TrimSpace(what + " " + detail)
			if by != "" {
				text += " by " + by
			}
		}
		e.known[seq] = text
	}
	return text
}

// causes finds the newest record that changed each row between two versions. It
// reads the chain only as far back as necessary.
func causes(ctx context.Context, p *past.Past, from, to ident.Position, rows []string) (map[string]uint64, error) {
	if to.Less(from) {
		from, to = to, from
	}
	missing := make(map[string]bool, len(rows))
	for _, row := range rows {
		missing[row] = true
	}
	seqs := map[string]uint64{}
	for m, err := range p.Versions.History(ctx) {
		if err != nil {
			return nil, err
		}
		v := store.VersionOf(m.GetVersion())
		if to.Less(v) {
			continue
		}
		if v.Compare(from) <= 0 || len(missing) == 0 {
			break
		}
		for _, c := range m.GetChanges() {
			if missing[c.GetKey()] {
				seqs[c.GetKey()] = c.GetSeq()
				delete(missing, c.GetKey())
			}
		}
	}
	return seqs, nil
}
