package inspect

import (
	"fmt"
	"iter"
	"time"

	"meshlog.dev/proto/ident"
	"meshlog.dev/services/operate/command"
	"meshlog.dev/store"
)

// lagView is how far a proxy is behind the newest version.
type lagView struct {
	// Versions is the number of versions that it has not applied; More is true if
	// there are more. Both are absent if it has not applied any yet.
	Versions int  `json:"versions,omitempty"`
	More     bool `json:"more,omitempty"`
	// Seconds counts since the first of these versions was published.
	Seconds float64 `json:"seconds,omitempty"`
}

func (l *lagView) String() string {
	switch {
	case l == nil:
		return "-"
	case l.Versions == 0 && l.More:
		return "an unknown number"
	case l.Versions == 0:
		return "all"
	case l.More:
		return fmt.Sprintf("%d or more", l.Versions)
	}
	return fmt.Sprintf("%d (%s)", l.Versions, command.Age(time.Duration(l.Seconds*float64(time.Second))))
}

// maxLag is the number of versions at which setLag stops counting.
const maxLag = 256

// setLag sets how far each proxy is behind head. It reads chain, which yields the
// newest version first, back to the oldest version that a proxy has. The error is why it
// could not be read so far back: the count ends there.
func setLag(views []ProxyView, head ident.Position, chain iter.Seq2[*store.Manifest, error], now time.Time) error {
	behind := map[ident.Position]*lagView{}
	oldest := head
	for i := range views {
		v := views[i].Version
		if !v.IsZero() && !v.Less(head) || head.IsZero() {
			continue
		}
		if behind[v] == nil {
			behind[v] = &lagView{}
		}
		views[i].Behind = behind[v]
		if !v.IsZero() && v.Less(oldest) {
			oldest = v
		}
	}
	delete(behind, ident.Position{}) // these proxies have applied none, so nothing is counted
	if len(behind) == 0 {
		return nil
	}
	n := 0
	var unread error
	for m, err := range chain {
		if err != nil {
			unread = err
			break
		}
		v := store.VersionOf(m.GetVersion())
		switch {
		case head.Less(v):
			continue // published after the reports
		case !oldest.Less(v):
			return nil
		}
		if n == maxLag {
			break
		}
		n++
		for at, lag := range behind {
			if at.Less(v) {
				lag.Versions = n
				lag.Seconds = max(0, now.Sub(m.GetPublishTime().AsTime()).Seconds())
			}
		}
	}
	for _, lag := range behind { // the count ended, or the chain begins, before the oldest version
		lag.More = lag.Versions == n
	}
	return unread
}
