package sources

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/spf13/pflag"

	"meshlog.dev/proto/ident"
	"meshlog.dev/services/internal/bus"
	"meshlog.dev/services/internal/process"
	"meshlog.dev/services/roles/dryrun"
	"meshlog.dev/services/roles/kube"
	"meshlog.dev/services/roles/watcher"
)

const (
	// reread is the time between two reads of the file.
	reread = 2 * time.Second
	// restartPause is the pause before a watcher that failed is started again.
	restartPause = 5 * time.Second
)

// Settings name the files.
type Settings struct {
	// File has a list of sources.
	File string
	// MeshConfig is a file with a MeshConfig, whose configSources are sources too.
	MeshConfig string
	// Cluster has the settings of k8s:// among configSources, and its Revision is that of
	// all of them.
	Cluster kube.Settings
}

// DefaultSettings returns settings without a file. k8s:// is the cluster of the pod.
func DefaultSettings() Settings { return Settings{Cluster: kube.DefaultSettings()} }

// Flags binds the settings of the files.
func (s *Settings) Flags(fs *pflag.FlagSet) {
	fs.StringVar(&s.File, "sources", s.File, "`file` with a list of sources to watch, each with a type ("+allTypes.names()+") and the settings of its watcher; it is read again every 2 s, and watchers start and stop with their entries. "+
		"Set it to change what is watched without a restart")
	fs.StringVar(&s.MeshConfig, "mesh-config", s.MeshConfig, "`file` with the fields of an Istio MeshConfig, which is published as the source file/mesh-config; it is read again every 2 s. If its configSources name sources (fs:///DIR, xds://HOST:PORT, k8s://), these are watched, and no others. "+
		"Set it to use a MeshConfig as istiod reads it")
}

// Check returns an error without a file, and for a MeshConfig that cannot be used.
func (s *Settings) Check() error {
	if s.File == "" && s.MeshConfig == "" {
		return process.Invalid("sources", "is missing: give the file with the list of sources")
	}
	named, err := s.ConfigSources()
	if len(named) > 0 && s.File != "" {
		return process.Invalid("sources", "has no effect: configSources of %s name the only sources; remove one of them", s.MeshConfig)
	}
	return err
}

// ConfigSources returns the sources that configSources of the MeshConfig name; none without
// a file.
func (s *Settings) ConfigSources() (named []ident.Shard, err error) {
	if s.MeshConfig == "" {
		return nil, nil
	}
	l, _, err := s.meshConfig().read()
	if err != nil {
		return nil, process.Invalid("mesh-config", "%w", err)
	}
	for _, e := range l.entries[1:] {
		named = append(named, e.Shard())
	}
	return named, nil
}

// Verify checks the files and the files that they name, and writes the problems of the
// MeshConfig to w.
func (s *Settings) Verify(ctx context.Context, w io.Writer) error {
	var errs []error
	if s.File != "" {
		errs = append(errs, s.sources().verify("sources"))
	}
	if s.MeshConfig != "" {
		f := s.meshConfig()
		errs = append(errs, f.verify("mesh-config"))
		if l, _, err := f.read(); err == nil {
			errs = append(errs, dryrun.Check(ctx, w, l.entries[0].runnable.(*meshConfigSource).publish, "mesh-config", "the MeshConfig"))
		}
	}
	return errors.Join(errs...)
}

// listFile is a file that names sources.
type listFile struct {
	path  string
	parse func(path string, data []byte) (list, error)
}

func (s *Settings) sources() listFile {
	return listFile{s.File, func(path string, data []byte) (list, error) { return parse(allTypes, path, data) }}
}

func (f listFile) read() (list, []byte, error) {
	data, err := os.ReadFile(f.path)
	if err != nil {
		return list{}, nil, err
	}
	l, err := f.parse(f.path, data)
	return l, data, err
}

// verify checks the file, which a setting names, and the files that it names.
func (f listFile) verify(setting string) error {
	l, _, err := f.read()
	if err != nil {
		return process.Invalid(setting, "%w", err)
	}
	var errs []error
	for _, w := range l.warnings {
		errs = append(errs, process.Invalid(setting, "%s", w))
	}
	for _, e := range l.entries {
		if err := errors.Join(e.Verify(), e.as(bus.ConnectOptions{URL: "nats://x"}).Verify()); err != nil {
			errs = append(errs, process.Invalid(setting, "%s:%d: %w", f.path, e.line, err))
		}
	}
	return errors.Join(errs...)
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
	var all process.Stage
	if s.MeshConfig != "" {
		f := s.meshConfig()
		l, _, err := f.read()
		if err != nil {
			return process.Invalid("mesh-config", "%w", err)
		}
		all = append(all, newRunner(f.keepNaming(len(l.entries) > 1), "mesh-config", o).run)
		o.Own = append(slices.Clone(o.Own), meshConfigShard)
	}
	if s.File != "" {
		all = append(all, newRunner(s.sources(), "sources", o).run)
	}
	return process.RunStages(ctx, all)
}

// runner runs a watcher for each entry of a file.
type runner struct {
	listFile
	options Options
	running map[ident.Shard]running
	content []byte // of the file, as it was read last
	seen    bool   // content was read
	told    atomic.Pointer[error]
	// report reports a shard that the file does not list any more.
	report func(context.Context, watcher.Place, ident.Shard) error
}

// newRunner returns the runner of the file of a setting, whose errors are warnings of the
// process.
func newRunner(f listFile, setting string, o Options) *runner {
	r := &runner{listFile: f, options: o, running: map[ident.Shard]running{}, report: watcher.ReportNotConfigured}
	r.tell(errors.New("the file is not read yet"))
	o.Process.Admin.Warn(setting, func() error { return *r.told.Load() })
	return r
}

// running is a watcher that runs, or what tells that the file does not list it any more.
type running struct {
	entry
	retired bool
	stop    func() // returns when the watcher has ended
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
	log := r.options.Process.Log.With(process.Component, "sources", "file", r.path)
	l, data, err := r.read()
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
	for _, w := range append(l.warnings, l.leaveOut(r.path, r.options.Own)...) {
		log.Warn(w)
		warnings = append(warnings, errors.New(w))
	}
	r.tell(errors.Join(warnings...))
	for shard, w := range r.running {
		if !w.retired && !slices.ContainsFunc(l.entries, func(e entry) bool { return e.Shard() == shard }) {
			w.stop()
			r.running[shard] = running{w.entry, true, r.retire(ctx, w.entry)}
			log.Info("stopped watching a source that the file does not list any more; its objects stay as they are", "source", shard.String())
		}
	}
	for _, e := range l.entries {
		shard := e.Shard()
		switch w, known := r.running[shard]; {
		case !known:
			log.Info("watching a source", "source", shard.String())
		case w.retired:
			w.stop()
			log.Info("watching a source again", "source", shard.String())
		case w.text == e.text:
			continue
		default:
			w.stop()
			log.Info("restarting the watcher of a source whose entry has changed", "source", shard.String())
		}
		r.running[shard] = running{e, false, r.start(ctx, e)}
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

// place is where the watcher of an entry runs.
func (r *runner) place(e entry) watcher.Place {
	return watcher.Place{
		Domain: r.options.Domain, Holder: r.options.Holder, Process: r.options.Process, LogShare: r.options.LogShare,
		Connect: r.options.Connect(e.Shard(), e.as), Optional: true,
	}
}

// start watches a source until stop.
func (r *runner) start(ctx context.Context, e entry) (stop func()) {
	at := r.place(e)
	return background(ctx, func(ctx context.Context) {
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
}

// retire tells `meshlog sources` until stop that the source is not configured any more, so
// that its silence is no fault (AGG-7).
func (r *runner) retire(ctx context.Context, e entry) (stop func()) {
	at := r.place(e)
	return background(ctx, func(ctx context.Context) {
		if err := r.report(ctx, at, e.Shard()); ctx.Err() == nil {
			at.Process.Log.Warn("cannot report that a source is not configured any more; it is shown as silent", process.Component, "sources", "source", e.Shard().String(), "error", err)
		}
	})
}

// background runs f until stop, which returns when f has.
func background(ctx context.Context, f func(context.Context)) (stop func()) {
	ctx, cancel := context.WithCancel(ctx)
	var running sync.WaitGroup
	running.Go(func() { f(ctx) })
	return func() {
		cancel()
		running.Wait()
	}
}
