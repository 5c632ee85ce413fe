package history

import (
	"context"
	"strings"

	"meshlog.dev/proto/ident"
	"meshlog.dev/services/operate/past"
	"meshlog.dev/store"
)

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
