package cli

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"iter"
	"log/slog"
	"os"
	"path/filepath"

	"github.com/spf13/cobra"

	"meshlog.dev/events"
	"meshlog.dev/events/archive"
	"meshlog.dev/events/natslog"
	"meshlog.dev/services/internal/bus"
	"meshlog.dev/services/internal/process"
	"meshlog.dev/services/operate/past"
	"meshlog.dev/services/roles/builder"
	"meshlog.dev/store"
	"meshlog.dev/store/natsfeed"
)

// importView is what an import made.
type importView struct {
	Into    string `json:"into"`
	First   uint64 `json:"first"` // record of the log
	Last    uint64 `json:"last"`
	Version string `json:"version,omitempty"` // the last one, which is served first
}

func importCommand() *cobra.Command {
	replicas := 1
	cmd := &cobra.Command{
		Use: "import FILE", Short: "Makes a mesh of an archive", Args: args(1, 1, "FILE"),
		Long: `Makes a data directory for ` + "`meshlog up`" + ` of an archive; or, with --bus, fills a
bus on which no builder has run yet. It takes nothing that is not empty.

The log gets its records back under their numbers, and the versions their
content. A server gives records times of its own, so a builder that is started
afterwards sees another log than the last version was made from: it begins a
new epoch with that version as its base. That version is served at once, and
sources take over as they list.`,
		Example: `  meshlog import mesh.archive --data copy/
  meshlog up --config mesh/ --data copy/
  meshlog import mesh.archive --bus nats://10.0.0.1:4222 --replicas 3`,
	}
	t := targetFlags(cmd)
	cmd.Flags().Lookup("data").Usage = "data `directory` to make"
	cmd.Flags().IntVar(&replicas, "replicas", 1, "how many servers of the bus keep it: 1, or 3 on a cluster")
	format := outputFlag(cmd)
	cmd.RunE = func(cmd *cobra.Command, args []string) (err error) {
		defer func() { err = errors.Join(err, t.close()) }()
		out, err := newOutput(cmd, *format)
		if err != nil {
			return err
		}
		// Not what MESHLOG_DATA or MESHLOG_BUS say: those are of a mesh that is there.
		data, url := process.OnCommandLine(cmd.Flags(), "data"), process.OnCommandLine(cmd.Flags(), "bus")
		if data == url {
			return usage("where to? Give --data DIR for a new data directory, or --bus URL; one of them")
		}
		a, err := archive.Open(cmd.Context(), args[0])
		if err != nil {
			return err
		}
		t.closeLater(a.Close)
		im := &importer{archive: a, domain: t.bus.Domain, replicas: replicas, restored: progress{w: cmd.ErrOrStderr(), what: "restored"}}
		v := importView{Into: t.data}
		if data {
			err = im.intoDirectory(cmd.Context(), t.data)
		} else {
			v.Into = t.bus.URL
			err = im.intoBus(cmd.Context(), t)
		}
		im.restored.done()
		if err != nil {
			return err
		}
		if err := v.fill(cmd.Context(), a); err != nil {
			return err
		}
		return out.print(v, func() error { return showImport(v, data, out) })
	}
	return cmd
}

// importer restores one archive.
type importer struct {
	archive  *archive.Archive
	domain   string
	replicas int
	restored progress
}

// intoDirectory makes a data directory, whole or not at all.
func (im *importer) intoDirectory(ctx context.Context, dir string) error {
	entries, err := os.ReadDir(dir)
	if err == nil && len(entries) > 0 {
		return fmt.Errorf("%s: %w; name a new directory", dir, past.ErrNotEmpty)
	}
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	parent := filepath.Dir(filepath.Clean(dir))
	if err := os.MkdirAll(parent, 0o700); err != nil {
		return err
	}
	tmp, err := os.MkdirTemp(parent, filepath.Base(dir)+".importing-")
	if err != nil {
		return err
	}
	if err := im.make(ctx, tmp); err != nil {
		return errors.Join(err, os.RemoveAll(tmp))
	}
	if entries != nil {
		if err := os.Remove(dir); err != nil { // it is empty
			return errors.Join(err, os.RemoveAll(tmp))
		}
	}
	return os.Rename(tmp, dir)
}

// make runs a server on dir for as long as it takes.
func (im *importer) make(ctx context.Context, dir string) (err error) {
	quiet := slog.New(slog.DiscardHandler)
	server, err := bus.StartServer(bus.ServerOptions{Dir: dir, Log: quiet})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, server.Close()) }()
	nc, err := bus.Connect(bus.ConnectOptions{Server: server, Name: "meshlog", Log: quiet})
	if err != nil {
		return err
	}
	defer nc.Close()
	im.domain, im.replicas = process.DefaultDomain, 1
	return im.fill(ctx, nc)
}

func (im *importer) intoBus(ctx context.Context, t *target) error {
	nc, err := t.connect()
	if err != nil {
		return err
	}
	return im.fill(ctx, nc)
}

// fill makes the streams and restores into them.
func (im *importer) fill(ctx context.Context, nc *bus.Conn) error {
	if _, err := natsfeed.EnsureStreams(ctx, nc, natsfeed.StreamOptions{Replicas: im.replicas, MaxAge: builder.DefaultHistory}); err != nil {
		return err
	}
	chain, err := natsfeed.Open(ctx, nc, natsfeed.Options{Domain: im.domain})
	if err != nil {
		return err
	}
	err = past.Import(ctx, im.archive, &destination{Feed: chain, nc: nc, im: im}, im.restored.show)
	if errors.Is(err, natslog.ErrExists) {
		return fmt.Errorf("the bus %w: a builder has made the log already; import before one is started: %w", past.ErrNotEmpty, err)
	}
	return err
}

// destination is a bus that is filled.
type destination struct {
	*natsfeed.Feed
	nc *bus.Conn
	im *importer
}

// Restore implements history.Destination.
func (d *destination) Restore(ctx context.Context, first uint64, records iter.Seq2[events.Raw, error]) error {
	return natslog.Restore(ctx, d.nc,
		builder.LogOptions(d.im.domain, d.im.replicas, builder.DefaultHistory, builder.DefaultLogBytes), first, records)
}

// fill says what was restored.
func (v *importView) fill(ctx context.Context, a *archive.Archive) error {
	b, err := a.Bounds(ctx)
	if err != nil {
		return err
	}
	v.First, v.Last = b.First, b.Last
	for m, err := range past.FromArchive("", a).Versions.History(ctx) {
		if err != nil {
			return err
		}
		v.Version = store.VersionOf(m.GetVersion()).String()
		break
	}
	return nil
}

func showImport(v importView, directory bool, out *output) error {
	next := "Start a builder on it."
	if directory {
		next = fmt.Sprintf("Start `meshlog up --config DIR --data %s` on it.", v.Into)
	}
	version := "it had no versions"
	if v.Version != "" {
		version = "its last version is " + v.Version
	}
	return out.line("%s: records %d to %d are restored; %s.\n%s", v.Into, v.First, v.Last, version, next)
}
