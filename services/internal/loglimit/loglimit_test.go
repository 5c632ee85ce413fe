package loglimit

import (
	"log/slog"
	"strings"
	"testing"
	"testing/synctest"
	"time"
)

// A message is logged as often as it may be. Then lines are left out, and the next
// second's first line has their number. Other messages are not affected.
func TestLogger(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var out strings.Builder
		lines := func() string {
			defer out.Reset()
			return out.String()
		}
		l := New(slog.New(slog.NewTextHandler(&out, &slog.HandlerOptions{
			ReplaceAttr: func(_ []string, a slog.Attr) slog.Attr {
				if a.Key == slog.TimeKey {
					return slog.Attr{}
				}
				return a
			},
		})), 2)
		for i := range 1000 {
			l.Warn("refused", "client", i)
		}
		l.Error("other")
		l.Debug("hidden")
		want := "level=WARN msg=refused client=0\nlevel=WARN msg=refused client=1\nlevel=ERROR msg=other\n"
		if got := lines(); got != want {
			t.Errorf("logged\n%swant\n%s", got, want)
		}
		<-time.After(time.Second)
		l.Warn("refused", "client", 1000)
		l.Warn("refused", "client", 1001)
		l.Warn("refused", "client", 1002)
		want = "level=WARN msg=refused client=1000 left_out=998\nlevel=WARN msg=refused client=1001\n"
		if got := lines(); got != want {
			t.Errorf("logged\n%swant\n%s", got, want)
		}
		<-time.After(time.Second)
		l.Info("refused")
		l.Line(slog.LevelInfo, "kind", "one")
		l.Line(slog.LevelInfo, "kind", "two")
		l.Line(slog.LevelInfo, "kind", "three")
		want = "level=INFO msg=refused left_out=1\nlevel=INFO msg=one\nlevel=INFO msg=two\n"
		if got := lines(); got != want {
			t.Errorf("logged\n%swant\n%s", got, want)
		}
	})
}
