package suite

import (
	"testing"
	"time"

	"meshlog.dev/events"
	"meshlog.dev/events/memlog"
)

func openMemlog(*testing.T) Driver {
	l := memlog.New(time.Now)
	return Driver{
		Log:           l,
		AppendRaw:     func(s events.Subject, raw []byte) { l.AppendRaw(s, raw) },
		AppendForeign: func(s events.Subject, raw []byte) { l.AppendForeign(s, raw) },
		Trim:          l.Trim,
		Rewind:        l.Rewind,
		Reconnect:     l.Reconnect,
		SetFull: func(full bool) {
			if l.SetMaxBytes(0); full {
				l.SetMaxBytes(l.Bytes())
			}
		},
		Acked: l.Acked,
	}
}
