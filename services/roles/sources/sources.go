package sources

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/spf13/pflag"

	"meshlog.dev/proto/ident"
	"meshlog.dev/services/internal/bus"
	"meshlog.dev/services/internal/process"
	"meshlog.dev/services/roles/watcher"
)

const (
	// reread is the time between two reads of the file.
	reread = 2 * time.Second
	// restartPause is the pause before a watcher that failed is started again.
	restartPause = 5 * time.Second
)

// Settings name the file.
type Settings struct {
	File string
}

// Flags binds the settings.
func (s *Settings) Flags(fs *pflag.FlagSet) {
	fs.StringVar(&s.File, "sources", s.File, "`file` with a list of sources to watch, each with a type ("+allTypes.names()+") and the settings of its watcher; it is read again every 2 s, and watchers start and stop with their entries. "+
		"Set it to change what is watched without a restart")
}

// Check returns an error without a file.
func (s *Settings) Check() error {
	if s.File == "" {
		return process.Invalid("sources", "is missing: give the file with the list of sources")
	}
	return nil
}

// Verify checks the file and the files that it names.
func (s *Settings) Verify() error {
	if s.File == "" {
		return nil
	}
	l, _, err := s.read(allTypes)
	if err != nil {
		return process.Invalid("sources", "%w", err)
	}
	var errs []error
	for _, w := range l.warnings {
		errs = append(errs, process.Invalid("sources", "%s", w))
	}
	for _, e := range l.entries {
		if err := errors.Join(e.Verify(), e.as(bus.ConnectOptions{URL: "nats://x"}).Verify()); err != nil {
			errs = append(errs, process.Invalid("sources", "%s:%d: %w", s.File, e.line, err))
		}
	}
	return errors.Join(errs...)
}

func (s *Settings) read(types typeTable) (list, []byte, error) {
	data, err := os.ReadFile(s.File)
	if err != nil {
		return list{}, nil, err
	}
	l, err := parse(types, s.File, data)
	return l, data, err
}

// Options connect the watchers with their process.
type Options struct {
	Domain string
	// Holder names this process, stable over restarts.
	Holder  string
	Process *process.Process
	// LogShare is how much of the log the records of one source may take, in percent.
	LogShare int
	// Own are the shards that this process watches besides: entries for them are ignored,
	// with a warning.
	Own []ident.Shard
	// Connect returns the function that connects to the bus for a shard. user changes the
	// options of a connection.
	Connect func(shard ident.Shard, user func(bus.ConnectOptions) bus.ConnectOptions) func(context.Context) (*bus.Conn, error)
}

// Run watches the sources until ctx is done.
func (s *Settings) Run(ctx context.Context, o Options) error {
	r := &runner{Settings: s, types: allTypes, options: o, running: map[ident.Shard]running{}}
	r.tell(errors.New("the file is not read yet"))
	o.Process.Admin.Warn("sources", func() error { return *r.told.Load() })
	return r.run(ctx)
}

// runner runs a watcher for each entry of the file.
type runner struct {
	*Settings
	types   typeTable
	options Options
	running map[ident.Shard]running
	content []byte // of the file, as it was read last
	seen    bool   // content was read
	told    atomic.Pointer[error]
}

// running is a watcher that runs.
type running struct {
	text string
	stop func() // returns when the watcher has ended
}

// tell stores what is wrong with the file; nil: nothing.
func (r *runner) tell(err error) { r.told.Store(&err) }

func (r *runner) run(ctx context.Context) error {
	ctx, cancel := context.WithCancel(ctx)
	defer func() {
		cancel() // of all watchers, before the first wait
		for _, w := range r.running {
			w.stop()
		}
	}()
	tick := time.NewTicker(reread)
	defer tick.Stop()
	for {
		r.follow(ctx)
		select {
		case <-tick.C:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// follow reads the file and, if it has changed and is good, starts, restarts and stops
// watchers so that exactly its entries are watched.
func (r *runner) follow(ctx context.Context) {
	log := r.options.Process.Log.With(process.Component, "sources", "file", r.File)
	l, data, err := r.read(r.types)
	if err != nil {
		if old := *r.told.Load(); old == nil || old.Error() != err.Error() {
			log.Error("the file of sources cannot be used; nothing changes", "error", err)
		}
		r.content, r.seen = nil, false
		r.tell(fmt.Errorf("the file of sources cannot be used, nothing changes: %w", err))
		return
	}
	if r.seen && bytes.Equal(data, r.content) {
		return
	}
	r.content, r.seen = data, true
	var warnings []error
	for _, w := range append(l.warnings, l.leaveOut(r.File, r.options.Own)...) {
		log.Warn(w)
		warnings = append(warnings, errors.New(w))
	}
	r.tell(errors.Join(warnings...))
	for shard, w := range r.running {
		if !slices.ContainsFunc(l.entries, func(e entry) bool { return e.Shard() == shard }) {
			w.stop()
			delete(r.running, shard)
			log.Info("stopped watching a source that the file does not list any more; its objects stay as they are", "source", shard.String())
		}
	}
	for _, e := range l.entries {
		shard := e.Shard()
		switch w, known := r.running[shard]; {
		case !known:
			log.Info("watching a source", "source", shard.String())
		case w.text == e.text:
			continue
		default:
			w.stop()
			log.Info("restarting the watcher of a source whose entry has changed", "source", shard.String())
		}
		r.running[shard] = running{e.text, r.start(ctx, e)}
	}
}

// leaveOut removes the entries of shards that are watched already, and returns warnings
// about them.
func (l *list) leaveOut(path string, own []ident.Shard) (warnings []string) {
	l.entries = slices.DeleteFunc(l.entries, func(e entry) bool {
		there := slices.Contains(own, e.Shard())
		if there {
			warnings = append(warnings, fmt.Sprintf("%s:%d: this process watches the source %s already: the entry is ignored; give it another instance", path, e.line, e.Shard()))
		}
		return there
	})
	return warnings
}

// start watches a source until stop.
func (r *runner) start(ctx context.Context, e entry) (stop func()) {
	ctx, cancel := context.WithCancel(ctx)
	at := watcher.Place{
		Domain: r.options.Domain, Holder: r.options.Holder, Process: r.options.Process, LogShare: r.options.LogShare,
		Connect: r.options.Connect(e.Shard(), e.as), Optional: true,
	}
	var watching sync.WaitGroup
	watching.Go(func() {
		for {
			err := e.Run(ctx, at)
			if ctx.Err() != nil {
				return
			}
			at.Process.Log.Error("the watcher of a source failed; restarting", process.Component, "sources", "source", e.Shard().String(), "error", err, "again_in", restartPause)
			select {
			case <-time.After(restartPause):
			case <-ctx.Done():
				return
			}
		}
	})
	return func() {
		cancel()
		watching.Wait()
	}
}
