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

	"meshlog.dev/events/natslog"
	"meshlog.dev/services/internal/bus"
	"meshlog.dev/services/internal/process"
	"meshlog.dev/services/internal/up/builderup"
	"meshlog.dev/services/internal/up/frontendup"
	"meshlog.dev/store"
	"meshlog.dev/store/bolt"
	"meshlog.dev/store/natsfeed"
)

// target is the mesh that a command looks at.
type target struct {
	data string // data directory; empty: the bus says it all
	bus  process.Bus

	closers []func() error // of what was opened, the last one first
}

// targetFlags binds the flags that say where the mesh is.
func targetFlags(cmd *cobra.Command) *target {
	t := &target{bus: process.DefaultBus()}
	cmd.Flags().StringVar(&t.data, "data", "", "data `directory` of `meshlog up`")
	t.bus.ID = strconv.Itoa(os.Getpid())
	t.bus.Flags(cmd.Flags())
	if err := cmd.Flags().MarkHidden("id"); err != nil {
		panic(err) // it was bound above
	}
	return t
}

// close closes what the command opened.
func (t *target) close() error { return closeAll(t.closers) }

// connect connects to the bus.
func (t *target) connect() (*bus.Conn, error) {
	o := t.bus.Options("meshlog", slog.New(slog.DiscardHandler))
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
	t.closers = append([]func() error{func() error { nc.Close(); return nil }}, t.closers...)
	return nc, nil
}

// log opens the log.
func (t *target) log(ctx context.Context, nc *bus.Conn) (*natslog.Log, error) {
	log, err := natslog.Open(ctx, nc, natslog.Options{Domain: t.bus.Domain})
	if err != nil {
		return nil, err
	}
	t.closers = append([]func() error{log.Close}, t.closers...)
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

// published is what a command reads of the versions.
type published struct {
	manifests iter.Seq2[*store.Manifest, error] // newest first
	nc        *bus.Conn                         // nil: read from a file
}

// versions opens the version chain; where nothing runs on the data directory,
// a copy of the file that was left there, which it says on standard error.
func (t *target) versions(cmd *cobra.Command) (*published, error) {
	ctx := cmd.Context()
	nc, err := t.connect()
	if err == nil {
		chain, err := t.chain(ctx, nc)
		if err != nil {
			return nil, err
		}
		return &published{chain.History(ctx), nc}, nil
	}
	if t.data == "" || t.bus.URL != "" || errors.As(err, new(*process.UsageError)) {
		return nil, err
	}
	file, ferr := leftFile(t.data)
	if ferr != nil {
		return nil, errors.Join(err, ferr)
	}
	left, ferr := bolt.OpenCopy(file)
	if ferr != nil {
		return nil, errors.Join(err, ferr)
	}
	t.closers = append([]func() error{left.Close}, t.closers...)
	fmt.Fprintf(cmd.ErrOrStderr(), "Nothing runs on %s; this is a copy of what was left in %s.\n", t.data, file)
	return &published{left.Manifests(ctx), nil}, nil
}

// leftFile is a file with versions in a data directory: the builder's, or else
// the frontend's.
func leftFile(data string) (string, error) {
	for _, file := range []string{builderup.File(data), frontendup.File(data)} {
		if _, err := os.Stat(file); err == nil {
			return file, nil
		}
	}
	return "", notFound("%s: holds no versions; is it the data directory of `meshlog up`, a builder or a frontend?", data)
}
