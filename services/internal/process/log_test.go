package process

import (
	"bytes"
	"encoding/json"
	"log/slog"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// said returns the messages of a log, each with its component as a prefix.
func said(t *testing.T, log *bytes.Buffer) (all []string) {
	t.Helper()
	for line := range strings.Lines(log.String()) {
		var entry struct{ Msg, Component string }
		if err := json.Unmarshal([]byte(line), &entry); err != nil {
			t.Fatalf("%q: %v", line, err)
		}
		if strings.Count(line, Component) > 1 {
			t.Errorf("two components in %q", line)
		}
		all = append(all, entry.Component+": "+entry.Msg)
	}
	return all
}

func TestLogLevels(t *testing.T) {
	for _, c := range []struct {
		spec, change string
		want         []string
	}{
		{"info", "", []string{": info", "frontend: info", "xds: info"}},
		{"debug", "", []string{": debug", ": info", "frontend: debug", "frontend: info", "xds: debug", "xds: info"}},
		{"xds=debug", "", []string{": info", "frontend: info", "xds: debug", "xds: info"}},
		{"error, frontend=info", "", []string{"frontend: info"}},
		{"frontend=info,error", "", []string{"frontend: info"}},
		{"error,xds=debug", "frontend=info", []string{"frontend: info", "xds: debug", "xds: info"}},
		{"error,xds=debug", "info", []string{": info", "frontend: info", "xds: info"}},
		{"error,xds=debug", "error,frontend=info", []string{"frontend: info"}},
	} {
		t.Run(c.spec+" "+c.change, func(t *testing.T) {
			levels, err := newLogLevels(c.spec)
			if err != nil {
				t.Fatal(err)
			}
			var b bytes.Buffer
			log := newLogger(&b, "auto", levels)
			frontend := log.With(Component, "frontend", "id", "f1")
			all := []*slog.Logger{log, frontend, frontend.With(Component, "xds")}
			if c.change != "" {
				if err := levels.set(c.change); err != nil {
					t.Fatal(err)
				}
			}
			for _, l := range all {
				l.Debug("debug")
				l.Info("info")
			}
			if diff := cmp.Diff(c.want, said(t, &b)); diff != "" {
				t.Error(diff)
			}
		})
	}
}

func TestLogLevelsRefuse(t *testing.T) {
	for _, c := range []struct{ spec, want string }{
		{"loud", `no level "loud": want debug, info, warn or error`},
		{"INFO", `no level "INFO"`},
		{"", `no level ""`},
		{"info,", `no level ""`},
		{"frontend=", `no level ""`},
		{"frontent=debug", `no component "frontent"; did you mean frontend?`},
		{"disk=debug", `no component "disk"; components are admin, admission, agent, builder, bus, ca, events, frontend, watcher, xds`},
	} {
		levels, err := newLogLevels("warn")
		if err != nil {
			t.Fatal(err)
		}
		before := levels.report()
		if err := levels.set("debug," + c.spec); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("level %q: error %v does not say %q", c.spec, err, c.want)
		}
		if diff := cmp.Diff(before, levels.report()); diff != "" {
			t.Errorf("level %q, which is wrong, changed levels: %s", c.spec, diff)
		}
	}
}
