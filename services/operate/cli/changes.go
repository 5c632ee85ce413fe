package cli

import (
	"context"
	"encoding/json"
	"fmt"
	"strings"

	"meshlog.dev/events"
	"meshlog.dev/proto/ident"
	"meshlog.dev/services/operate/past"
	"meshlog.dev/store"
)

// objectChange is an object that differs, as it is printed whole.
type objectChange struct {
	Object  string       `json:"object"`            // for people
	Key     *keyView     `json:"key,omitempty"`     // of an object
	Overlay string       `json:"overlay,omitempty"` // id of an overlay
	Change  string       `json:"change"`            // added, removed, changed
	Fields  []fieldView  `json:"fields,omitempty"`  // of changed
	Before  fieldContent `json:"before,omitempty"`  // of removed: the document
	After   fieldContent `json:"after,omitempty"`   // of added
	// Unreadable says why this build cannot show what differs.
	Unreadable string `json:"unreadable,omitempty"`
	Seq        uint64 `json:"seq,omitempty"`   // the record that made it so
	Cause      string `json:"cause,omitempty"` // what that record says
}

// fieldView is a field that differs; absent: it is not there.
type fieldView struct {
	Path   string       `json:"path"`
	Before fieldContent `json:"before,omitempty"`
	After  fieldContent `json:"after,omitempty"`
}

type fieldContent = json.RawMessage

func viewChanges(changes []past.ObjectChange) []objectChange {
	views := make([]objectChange, len(changes))
	for i, c := range changes {
		views[i] = viewChange(c)
	}
	return views
}

func viewChange(c past.ObjectChange) objectChange {
	v := objectChange{Object: c.Name(), Overlay: c.Overlay, Unreadable: c.Unreadable, Seq: c.Seq}
	if c.Overlay == "" {
		key := viewKey(c.Key)
		v.Key = &key
	}
	switch {
	case c.Before == nil:
		v.Change, v.After = "added", c.After
	case c.After == nil:
		v.Change, v.Before = "removed", c.Before
	default:
		v.Change, v.Fields = "changed", viewFields(c.Fields)
	}
	if c.Unreadable != "" {
		v.Before, v.After = nil, nil
	}
	return v
}

func viewFields(fields []past.FieldChange) []fieldView {
	views := make([]fieldView, len(fields))
	for i, f := range fields {
		views[i] = fieldView(f)
	}
	return views
}

// sign is a change as a cell: what is read first.
func (c *objectChange) sign() cell {
	switch c.Change {
	case "added":
		return cell{"+", green}
	case "removed":
		return cell{"-", red}
	}
	return cell{"~", yellow}
}

// lines are the fields of a change for people. An object that was added or
// removed is not shown whole.
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
			lines[i] = fmt.Sprintf("%s: gone, was %s", f.Path, brief(f.Before))
		default:
			lines[i] = fmt.Sprintf("%s: %s -> %s", f.Path, brief(f.Before), brief(f.After))
		}
	}
	return lines
}

// briefly is how much of a value a line shows; `-o json` shows all.
const briefly = 100

func brief(b []byte) string {
	s := []rune(string(b))
	if len(s) <= briefly {
		return string(s)
	}
	return string(s[:briefly]) + "..."
}

// printChanges prints changes of objects, and below each its fields.
func printChanges(out *output, changes []objectChange) error {
	for i := range changes {
		c := &changes[i]
		sign := c.sign()
		line := out.paint(sign.text+" "+c.Object, sign.color)
		if c.Cause != "" {
			line += out.paint(fmt.Sprintf("  #%d %s", c.Seq, c.Cause), faint)
		} else if c.Seq != 0 {
			line += out.paint(fmt.Sprintf("  #%d", c.Seq), faint)
		}
		if err := out.line("%s", line); err != nil {
			return err
		}
		for _, l := range c.lines() {
			if err := out.line("    %s", l); err != nil {
				return err
			}
		}
	}
	return nil
}

// explainer says what records say, in one line each.
type explainer struct {
	log   events.Reader // nil: nothing is known
	known map[uint64]string
}

func newExplainer(p *past.Past) *explainer {
	e := &explainer{known: map[uint64]string{}}
	if p.Log != nil {
		e.log = p.Log
	}
	return e
}

// cause is what record seq says; empty where the log no longer has it.
func (e *explainer) cause(ctx context.Context, seq uint64) string {
	if seq == 0 || e.log == nil {
		return ""
	}
	text, ok := e.known[seq]
	if !ok {
		if r, err := e.log.Get(ctx, seq); err == nil {
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

// causes finds the records that changed rows between two versions: the newest of
// each. It reads no further back than it must.
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
