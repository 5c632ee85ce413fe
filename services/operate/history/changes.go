package history

import (
	"context"
	"fmt"
	"strings"

	"meshlog.dev/proto/ident"
	"meshlog.dev/services/operate/command"
	"meshlog.dev/services/operate/past"
	"meshlog.dev/store"
)

// signs are the signs of changes, in their colors.
var signs = map[string]command.Cell{"added": {Text: "+", Color: command.Green}, "removed": {Text: "-", Color: command.Red}, "changed": {Text: "~", Color: command.Yellow}}

// title returns the object with the sign of its change.
func title(c past.ObjectChange, out *command.Output) string {
	sign := signs[c.Change]
	return out.Paint(sign.Text+" "+c.Object, sign.Color)
}

// changeLines returns the fields that differ. An object that was added or removed
// has none.
func changeLines(c past.ObjectChange) []string {
	if c.Unreadable != "" {
		return []string{"cannot be shown: " + c.Unreadable}
	}
	return fieldLines(c.Fields)
}

func fieldLines(fields []past.FieldChange) []string {
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

// explainer returns a function that describes record seq in one line; empty if the
// log does not have it any more. The function reads each record once.
func explainer(ctx context.Context, p *past.Past) func(seq uint64) string {
	known := map[uint64]string{0: ""}
	return func(seq uint64) string {
		text, ok := known[seq]
		if ok || p.Log == nil {
			return text
		}
		if r, err := p.Log.Get(ctx, seq); err == nil {
			_, detail := summary(r)
			text = strings.TrimSpace(strings.ToUpper(past.What(r)) + " " + detail)
			if r.Event.Actor != "" {
				text += " by " + r.Event.Actor
			}
		}
		known[seq] = text
		return text
	}
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
