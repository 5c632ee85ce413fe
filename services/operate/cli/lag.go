package cli

import (
	"context"
	"fmt"
	"iter"
	"time"

	"meshlog.dev/proto/ident"
	"meshlog.dev/services/internal/bus"
	"meshlog.dev/store"
)

// lagView is how far something is behind the newest version.
type lagView struct {
	// Versions is how many it has not applied; More says that there are more
	// than were counted. Both are absent of one that has applied none so far.
	Versions int  `json:"versions,omitempty"`
	More     bool `json:"more,omitempty"`
	// Seconds is for how long: since the first of them was published.
	Seconds float64 `json:"seconds,omitempty"`
}

func (l *lagView) String() string {
	switch {
	case l == nil:
		return ""
	case l.Versions == 0:
		return "all"
	case l.More:
		return fmt.Sprintf("%d or more", l.Versions)
	}
	return fmt.Sprintf("%d (%s)", l.Versions, age(time.Duration(l.Seconds*float64(time.Second))))
}

// maxLag is how many versions are looked at.
const maxLag = 256

// lagging finds out how far proxies are behind.
type lagging struct {
	chain interface {
		History(ctx context.Context) iter.Seq2[*store.Manifest, error]
	}
	now time.Time
}

// of says of each how far it is behind head. The chain is read as far back as
// the last of them.
func (l lagging) of(ctx context.Context, head ident.Position, views []proxyView) error {
	behind := map[ident.Position]*lagView{}
	applied := make([]ident.Position, len(views))
	oldest := head
	for i, v := range views {
		if v.Version == "" {
			continue
		}
		applied[i], _ = ident.ParsePosition(v.Version) // it was printed by viewProxy
		if applied[i].Less(head) {
			behind[applied[i]] = &lagView{}
			if applied[i].Less(oldest) {
				oldest = applied[i]
			}
		}
	}
	if err := l.count(ctx, head, oldest, behind); err != nil {
		return err
	}
	for i := range views {
		switch {
		case head.IsZero():
		case applied[i].IsZero():
			views[i].Behind = &lagView{}
		default:
			views[i].Behind = behind[applied[i]]
		}
	}
	return nil
}

// count goes back from head to the oldest.
func (l lagging) count(ctx context.Context, head, oldest ident.Position, behind map[ident.Position]*lagView) error {
	if len(behind) == 0 {
		return nil
	}
	n := 0
	for m, err := range l.chain.History(ctx) {
		if err != nil {
			return err
		}
		v := store.VersionOf(m.GetVersion())
		if head.Less(v) {
			continue // published since the reports
		}
		if !oldest.Less(v) {
			return nil
		}
		if n++; n > maxLag {
			for _, lag := range behind {
				lag.More = lag.Versions == maxLag
			}
			return nil
		}
		for at, lag := range behind {
			if at.Less(v) {
				lag.Versions = n
				lag.Seconds = max(0, l.now.Sub(m.GetPublishTime().AsTime()).Seconds())
			}
		}
	}
	for _, lag := range behind { // the chain begins later than the oldest of them
		lag.More = lag.Versions == n
	}
	return nil
}

// newestHead is the head of the chain as builders know it or, if none answers,
// the newest version that a frontend serves.
func newestHead(r *bus.Reports) ident.Position {
	var head ident.Position
	if b := newest(r.Builders); b != nil {
		head = store.VersionOf(b.GetHead())
	}
	for _, f := range r.Frontends {
		if v := store.VersionOf(f.GetServing()); len(r.Builders) == 0 && head.Less(v) {
			head = v
		}
	}
	return head
}
