package history

import (
	"context"
	"strings"

	"meshlog.dev/services/operate/past"
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
