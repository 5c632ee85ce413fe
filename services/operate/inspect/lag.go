package inspect

import (
	"context"
	"fmt"
	"iter"
	"time"

	"meshlog.dev/proto/ident"
	"meshlog.dev/services/operate/command"
	"meshlog.dev/store"
)

// lagView is how far a proxy is behind the newest version.
type lagView struct {
	// Versions is the number of versions that it has not applied; More says that
	// there are more. Both are absent if it has applied none yet.
	Versions int  `json:"versions,omitempty"`
	More     bool `json:"more,omitempty"`
	// Seconds counts since the first of these versions was published.
	Seconds float64 `json:"seconds,omitempty"`
}

func (l *lagView) String() string {
	switch {
	case l == nil:
		return "-"
	case l.Versions == 0:
		return "all"
	case l.More:
		return fmt.Sprintf("%d or more", l.Versions)
	}
	return fmt.Sprintf("%d (%s)", l.Versions, command.Age(time.Duration(l.Seconds*float64(time.Second))))
}

// maxLag is how many versions are counted.
const maxLag = 256

// lagging computes how far proxies are behind.
type lagging struct {
	chain interface {
		History(ctx context.Context) iter.Seq2[*store.Manifest, error]
	}
	now time.Time
}

// of sets how far each proxy is behind head. It reads the chain back to the
// oldest version that a proxy has.
func (l lagging) of(ctx context.Context, head ident.Position, views []proxyView) error {
	if head.IsZero() {
		return nil
	}
	behind := map[ident.Position]*lagView{{}: {}} // the zero position: nothing applied
	oldest := head
	for i := range views {
		v, _ := ident.ParsePosition(views[i].Version)
		if v.IsZero() || v.Less(head) {
			if behind[v] == nil {
				behind[v] = &lagView{}
			}
			views[i].Behind = behind[v]
		}
		if !v.IsZero() && v.Less(oldest) {
			oldest = v
		}
	}
	delete(behind, ident.Position{})
	return l.count(ctx, head, oldest, behind)
}

// count goes back from head to the oldest version.
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
			continue // published after the reports
		}
		if !oldest.Less(v) {
			return nil
		}
		if n == maxLag {
			break
		}
		n++
		for at, lag := range behind {
			if at.Less(v) {
				lag.Versions = n
				lag.Seconds = max(0, l.now.Sub(m.GetPublishTime().AsTime()).Seconds())
			}
		}
	}
	for _, lag := range behind { // the count ended, or the chain begins, before the oldest version
		lag.More = lag.Versions == n
	}
	return nil
}
