package cli

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"log/slog"
	"os"
	"path/filepath"
	"strconv"

	"github.com/spf13/cobra"

	"meshlog.dev/events/archive"
	"meshlog.dev/events/natslog"
	"meshlog.dev/services/internal/bus"
	"meshlog.dev/services/internal/process"
	"meshlog.dev/services/operate/past"
	"meshlog.dev/services/roles/builder"
	"meshlog.dev/services/roles/frontend"
	"meshlog.dev/store"
	"meshlog.dev/store/bolt"
	"meshlog.dev/store/natsfeed"
)

// target is the mesh that a command looks at.
type target struct {
	data    string // data directory; empty: the bus says it all
	archive string // file; only for commands about the past
	bus     process.Bus

	nc      *bus.Conn      // of connect
	closers []func() error // of what was opened, the last one first
}

// targetFlags binds the flags that say where the mesh is.
func targetFlags(cmd *cobra.Command) *target {
	t := &target{bus: process.DefaultBus()}
	cmd.Flags().StringVar(&t.data, "data", "", "data `directory` of `meshlog up`")
	t.bus.ID = strconv.Itoa(os.Getpid())
	t.bus.Flags(cmd.Flags())
	hideConnection(cmd)
	return t
}

// pastFlags binds the flags that say where the past of a mesh is.
func pastFlags(cmd *cobra.Command) *target {
	t := targetFlags(cmd)
	cmd.Flags().Lookup("data").Usage = "data `directory` of `meshlog up`, running or not; or of a builder or a frontend, for its versions"
	cmd.Flags().StringVar(&t.archive, "archive", "", "`file` that `meshlog export` wrote")
	return t
}

// closeLater closes something after what is opened later.
func (t *target) closeLater(c func() error) {
	t.closers = append([]func() error{c}, t.closers...)
}

// close closes what the command opened.
func (t *target) close() error { return closeAll(t.closers) }

// connect connects to the bus.
func (t *target) connect() (*bus.Conn, error) {
	o := t.bus.Options(bus.Operator(), slog.New(slog.DiscardHandler))
	switch {
	case o.URL == "" && t.data == "":
		return nil, usage("which mesh? Give --data DIR, the data directory of `meshlog up` (or set MESHLOG_DATA), or --bus URL")
	case o.URL == "":
		o.URL = filepath.Join(t.data, bus.FileName)
	}
	nc, err := bus.Connect(o)
	if errors.Is(err, bus.ErrNoBusFile) && o.URL != t.bus.URL {
		return nil, fmt.Errorf("%s: %w; start `meshlog up` on it", t.data, bus.ErrNoBusFile)
	}
	if err != nil {
		return nil, err
	}
	t.nc = nc
	t.closeLater(func() error { nc.Close(); return nil })
	return nc, nil
}

// log opens the log.
func (t *target) log(ctx context.Context, nc *bus.Conn) (*natslog.Log, error) {
	log, err := natslog.Open(ctx, nc, natslog.Options{Domain: t.bus.Domain})
	if err != nil {
		return nil, err
	}
	t.closeLater(log.Close)
	return log, nil
}

// chain opens the version chain.
func (t *target) chain(ctx context.Context, nc *bus.Conn) (*natsfeed.Feed, error) {
	return natsfeed.Open(ctx, nc, natsfeed.Options{Domain: t.bus.Domain})
}

// fleet is everybody who reports.
func (t *target) fleet(nc *bus.Conn) *bus.Fleet {
	return bus.NewFleet(nc, t.bus.Domain, slog.New(slog.DiscardHandler))
}

// past opens what can be read of the past: over the bus; or, where nothing runs
// on the data directory, from a copy of what was left there; or from an
// archive. It says on standard error which, unless it is the bus. The flags
// are pastFlags.
func (t *target) past(cmd *cobra.Command) (*past.Past, error) {
	switch {
	case t.archive != "" && (process.OnCommandLine(cmd.Flags(), "data") || process.OnCommandLine(cmd.Flags(), "bus")):
		return nil, usage("--archive and --data or --bus: give one of them")
	case t.archive != "": // whatever MESHLOG_DATA says
		return t.archived(cmd)
	case t.data == "" || t.bus.URL != "":
		return t.running(cmd.Context())
	}
	if info, err := os.Stat(t.data); err != nil || !info.IsDir() {
		return nil, notFound("--data %s: there is no such directory", t.data)
	}
	switch runs, err := bus.Running(t.data); {
	case err != nil:
		return nil, err
	case runs:
		return t.running(cmd.Context())
	}
	return t.left(cmd)
}

// published is what a command reads of the versions.
type published struct {
	manifests iter.Seq2[*store.Manifest, error] // newest first
	nc        *bus.Conn                         // nil: nothing runs
}

// versions opens the version chain, as past does.
func (t *target) versions(cmd *cobra.Command) (*published, error) {
	p, err := t.past(cmd)
	if err != nil {
		return nil, err
	}
	v := &published{manifests: p.Versions.History(cmd.Context())}
	if p.Live {
		v.nc = t.nc
	}
	return v, nil
}

// running opens the past of a mesh that runs.
func (t *target) running(ctx context.Context) (*past.Past, error) {
	nc, err := t.connect()
	if err != nil {
		return nil, err
	}
	name := t.bus.URL
	if name == "" {
		name = t.data
	}
	p, err := t.onBus(ctx, nc, name)
	if err == nil {
		p.Live = true
	}
	return p, err
}

func (t *target) onBus(ctx context.Context, nc *bus.Conn, name string) (*past.Past, error) {
	log, err := t.log(ctx, nc)
	if err != nil {
		return nil, err
	}
	chain, err := t.chain(ctx, nc)
	if err != nil {
		return nil, err
	}
	return &past.Past{Name: name, Log: log, Versions: chain, Blobs: chain}, nil
}

// left opens a copy of what a process has left: log and versions of `up`, or
// else the versions of a builder or a frontend.
func (t *target) left(cmd *cobra.Command) (*past.Past, error) {
	copied := progress{w: cmd.ErrOrStderr(), what: "copied"}
	server, err := bus.StartCopy(bus.CopyOptions{Dir: t.data, Progress: copied.show, Log: slog.New(slog.DiscardHandler)})
	copied.done()
	if errors.Is(err, bus.ErrNoStreams) {
		return t.leftFile(cmd)
	}
	if err != nil {
		return nil, err
	}
	t.closeLater(server.Close)
	nc, err := bus.Connect(bus.ConnectOptions{Server: server, Name: "meshlog", Log: slog.New(slog.DiscardHandler)})
	if err != nil {
		return nil, err
	}
	t.closeLater(func() error { nc.Close(); return nil })
	fmt.Fprintf(cmd.ErrOrStderr(), "Nothing runs on %s; this is read from a copy of what was left there.\n", t.data)
	return t.onBus(cmd.Context(), nc, t.data)
}

// leftFile opens a copy of the file of a builder or a frontend, whether it runs
// or not.
func (t *target) leftFile(cmd *cobra.Command) (*past.Past, error) {
	file, err := leftFile(t.data)
	if err != nil {
		return nil, err
	}
	left, err := bolt.OpenCopy(file)
	if err != nil {
		return nil, err
	}
	t.closeLater(left.Close)
	fmt.Fprintf(cmd.ErrOrStderr(), "This is read from a copy of %s, which has versions and no log.\n", file)
	return &past.Past{Name: file, Versions: past.FromStore(left)}, nil
}

// archived opens an archive.
func (t *target) archived(cmd *cobra.Command) (*past.Past, error) {
	a, err := archive.Open(cmd.Context(), t.archive)
	if err != nil {
		return nil, fmt.Errorf("--archive: %w", err)
	}
	t.closeLater(a.Close)
	return past.FromArchive(t.archive, a), nil
}

// leftFile is a file with versions in a data directory: the builder's, or else
// the frontend's.
func leftFile(data string) (string, error) {
	own := filepath.Join(data, filepath.Base(builder.File(""))) // in the directory itself
	for _, file := range []string{builder.File(data), frontend.File(data), own} {
		if _, err := os.Stat(file); err == nil {
			return file, nil
		}
	}
	return "", notFound("%s: holds neither a log nor versions; is it the data directory of `meshlog up`, a builder or a frontend?", data)
}
