package process

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"os"
	"slices"
	"strings"

	"golang.org/x/term"
)

// Component is the key of the log attribute that names a component. If it is set
// more than once, the last value is logged.
const Component = "component"

// components have a log level each. All programs accept all of them, so that one
// value of the setting works for all programs.
var components = []string{
	"admin",     // the admin server
	"admission", // the webhook that a Kubernetes API server asks
	"agent",     // the agent of an Envoy: certificates, restarts, DNS
	"builder",   // fold, versions, leadership
	"bus",       // connections to the bus, the embedded server
	"ca",        // certificates of workloads, the roots of the mesh
	"events",    // Events on objects of Kubernetes
	"frontend",  // the replica, the xDS port and its certificates
	"watcher",   // sources, sessions
	"xds",       // the streams of proxies
}

var levelNames = []string{"debug", "info", "warn", "error"}

// logLevels holds the minimum level of each component, and that of the lines
// without one under "". It is safe for concurrent use.
type logLevels map[string]*slog.LevelVar

func newLogLevels(spec string) (logLevels, error) {
	l := logLevels{"": new(slog.LevelVar)}
	for _, c := range components {
		l[c] = new(slog.LevelVar)
	}
	return l, l.set(spec)
}

// set changes the levels. spec is a comma-separated list of a level for all
// components and of pairs COMPONENT=LEVEL. If any part is invalid, set changes
// nothing.
func (l logLevels) set(spec string) error {
	next := map[string]slog.Level{}
	all := false
	for part := range strings.SplitSeq(spec, ",") {
		component, name, isPair := strings.Cut(strings.TrimSpace(part), "=")
		if !isPair {
			component, name, all = "", component, true
		}
		level, err := parseLevel(name)
		switch {
		case isPair && !slices.Contains(components, component):
			return fmt.Errorf("no component %q; %s", component,
				suggest(component, components, "components are "+strings.Join(components, ", ")))
		case err != nil:
			return err
		}
		next[component] = level
	}
	for component, level := range l {
		if own, ok := next[component]; ok {
			level.Set(own)
		} else if all {
			level.Set(next[""])
		}
	}
	return nil
}

func parseLevel(name string) (level slog.Level, err error) {
	if !slices.Contains(levelNames, name) {
		return 0, fmt.Errorf("no level %q: want debug, info, warn or error, or COMPONENT=LEVEL", name)
	}
	return level, level.UnmarshalText([]byte(name))
}

// levelsReport is the answer of /debug/log.
type levelsReport struct {
	All        string            `json:"all"`
	Components map[string]string `json:"components"`
}

func (l logLevels) report() levelsReport {
	r := levelsReport{All: levelName(l[""]), Components: map[string]string{}}
	for _, c := range components {
		r.Components[c] = levelName(l[c])
	}
	return r
}

func levelName(l slog.Leveler) string { return strings.ToLower(l.Level().String()) }

var logForms = []string{"auto", "text", "json"}

func newLogger(w io.Writer, form string, levels logLevels) *slog.Logger {
	f, isFile := w.(*os.File)
	// componentHandler checks the level.
	o := &slog.HandlerOptions{Level: slog.LevelDebug, ReplaceAttr: readable}
	var h slog.Handler = slog.NewJSONHandler(w, o)
	if form == "text" || form == "auto" && isFile && term.IsTerminal(int(f.Fd())) {
		h = slog.NewTextHandler(w, o)
	}
	return slog.New(&componentHandler{Handler: h, levels: levels})
}

// componentHandler applies the level of its component.
type componentHandler struct {
	slog.Handler
	levels    logLevels
	component string
}

// Enabled implements slog.Handler.
func (h *componentHandler) Enabled(_ context.Context, l slog.Level) bool {
	minimum, known := h.levels[h.component]
	if !known {
		minimum = h.levels[""]
	}
	return l >= minimum.Level()
}

// Handle implements slog.Handler.
func (h *componentHandler) Handle(ctx context.Context, r slog.Record) error {
	if h.component != "" {
		r = r.Clone()
		r.AddAttrs(slog.String(Component, h.component))
	}
	return h.Handler.Handle(ctx, r)
}

// WithAttrs implements slog.Handler.
func (h *componentHandler) WithAttrs(attrs []slog.Attr) slog.Handler {
	next := *h
	rest := slices.DeleteFunc(slices.Clone(attrs), func(a slog.Attr) bool {
		if a.Key == Component {
			next.component = a.Value.String()
		}
		return a.Key == Component
	})
	if len(rest) > 0 {
		next.Handler = h.Handler.WithAttrs(rest)
	}
	return &next
}

// WithGroup implements slog.Handler.
func (h *componentHandler) WithGroup(name string) slog.Handler {
	next := *h
	next.Handler = h.Handler.WithGroup(name)
	return &next
}

// readable formats durations as text; JSON would have a number.
func readable(_ []string, a slog.Attr) slog.Attr {
	if a.Value.Kind() == slog.KindDuration {
		a.Value = slog.StringValue(a.Value.Duration().String())
	}
	return a
}
