package process

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"maps"
	"os"
	"slices"
	"strings"
	"sync/atomic"

	"golang.org/x/term"
)

// Component is the attribute of a log line that says which part of the process
// it is from. A part of a part says it again: its word counts.
const Component = "component"

// components are those that have a level of their own, in all programs alike:
// one value of the setting does for all.
var components = []string{
	"admin",    // the admin server
	"builder",  // fold, versions, leadership
	"bus",      // connections to the bus, the embedded server
	"frontend", // the replica, the xDS port and its certificates
	"watcher",  // sources, sessions
	"xds",      // what happens on the streams of proxies
}

// levelNames as they are written, the least first.
var levelNames = []string{"debug", "info", "warn", "error"}

// logLevels are the least levels that are logged. They may be changed at any
// time, from any goroutine.
type logLevels struct{ now atomic.Pointer[levels] }

// levels do not change.
type levels struct {
	all slog.Level
	of  map[string]slog.Level // components that differ
}

func (l *levels) least(component string) slog.Level {
	if level, ok := l.of[component]; ok {
		return level
	}
	return l.all
}

func newLogLevels(spec string) (*logLevels, error) {
	l := &logLevels{}
	l.now.Store(&levels{all: slog.LevelInfo})
	return l, l.set(spec)
}

// set changes levels as spec says: a level for all components, pairs of a
// component and its level, or both, separated by commas. Nothing changes if
// any of it is wrong.
func (l *logLevels) set(spec string) error {
	before := l.now.Load()
	next := &levels{all: before.all, of: maps.Clone(before.of)}
	own := map[string]slog.Level{}
	for part := range strings.SplitSeq(spec, ",") {
		component, name, isPair := strings.Cut(strings.TrimSpace(part), "=")
		if !isPair {
			component, name = "", component
		}
		level, err := parseLevel(name)
		switch {
		case isPair && !slices.Contains(components, component):
			return fmt.Errorf("no component %q; %s", component,
				suggest(component, components, "there are "+strings.Join(components, ", ")))
		case err != nil:
			return err
		case isPair:
			own[component] = level
		default:
			next.all, next.of = level, nil
		}
	}
	if next.of == nil {
		next.of = own
	} else {
		maps.Copy(next.of, own)
	}
	l.now.Store(next)
	return nil
}

func parseLevel(name string) (level slog.Level, err error) {
	if !slices.Contains(levelNames, name) {
		return 0, fmt.Errorf("no level %q: want debug, info, warn or error, or COMPONENT=LEVEL", name)
	}
	return level, level.UnmarshalText([]byte(name))
}

// levelsReport is what there is to say about the levels.
type levelsReport struct {
	All        string            `json:"all"`
	Components map[string]string `json:"components"`
}

func (l *logLevels) report() levelsReport {
	now := l.now.Load()
	r := levelsReport{All: levelName(now.all), Components: map[string]string{}}
	for _, c := range components {
		r.Components[c] = levelName(now.least(c))
	}
	return r
}

func levelName(l slog.Level) string { return strings.ToLower(l.String()) }

// logForms are the forms of the log.
var logForms = []string{"auto", "text", "json"}

// newLogger makes the log of a process, in one of the forms.
func newLogger(w io.Writer, form string, levels *logLevels) *slog.Logger {
	f, isFile := w.(*os.File)
	o := &slog.HandlerOptions{Level: slog.LevelDebug, ReplaceAttr: readable} // levels decide
	var h slog.Handler = slog.NewJSONHandler(w, o)
	if form == "text" || form == "auto" && isFile && term.IsTerminal(int(f.Fd())) {
		h = slog.NewTextHandler(w, o)
	}
	return slog.New(&componentHandler{Handler: h, levels: levels})
}

// componentHandler logs what the level of its component lets through.
type componentHandler struct {
	slog.Handler
	levels    *logLevels
	component string
}

// Enabled implements slog.Handler.
func (h *componentHandler) Enabled(_ context.Context, l slog.Level) bool {
	return l >= h.levels.now.Load().least(h.component)
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

// readable is an attribute as people read it: JSON would have a duration as a
// number.
func readable(_ []string, a slog.Attr) slog.Attr {
	if a.Value.Kind() == slog.KindDuration {
		a.Value = slog.StringValue(a.Value.Duration().String())
	}
	return a
}
