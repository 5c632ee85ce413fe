package history

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"

	"github.com/spf13/cobra"

	"meshlog.dev/events/archive"
	"meshlog.dev/proto/ident"
	"meshlog.dev/services/internal/bus"
	"meshlog.dev/services/internal/process"
	"meshlog.dev/services/operate/command"
	"meshlog.dev/services/operate/past"
)

// importView is the content of an archive that was restored.
type importView struct {
	Into    string         `json:"into"`
	First   uint64         `json:"first"` // record of the log
	Last    uint64         `json:"last"`
	Version ident.Position `json:"version,omitzero"` // the last one, which is served first
}

// Import returns the command `import`.
func Import() *cobra.Command {
	cmd := &cobra.Command{
		Use: "import FILE", Short: "Create a mesh from an archive", Args: command.Args(1, 1, "FILE"),
		Long: `Create a data directory for ` + "`meshlog up`" + ` from an archive or, with --bus, fill a
bus on which no builder has run yet, with the administrator's key. The destination
has to be empty.

The records keep their numbers, and the versions their content. The server gives
the records new times, so a builder that starts afterwards reads another log than
the one that the last version was made from: it begins a new epoch with that
version as its base. Frontends serve that version at once, and sources replace its
objects as they list.`,
		Example: `  meshlog import mesh.archive --data copy/
  meshlog up --config mesh/ --data copy/
  meshlog import mesh.archive --bus nats://10.0.0.1:4222 --bus-nkey auth/admin.nk --replicas 3`,
	}
	replicas := cmd.Flags().Int("replicas", 1, "how many servers of the bus keep the streams: 1, or 3 on a cluster")
	command.Live(cmd, func(ctx context.Context, e *command.Env, args []string) error {
		// MESHLOG_DATA and MESHLOG_BUS name a mesh that exists already.
		data, url := e.Given("data"), e.Given("bus")
		if data == url {
			return command.Usage("where to? Give --data DIR for a new data directory, or --bus URL; one of them")
		}
		a, err := archive.Open(ctx, args[0])
		if err != nil {
			return err
		}
		e.CloseLater(a.Close)
		restored := e.Progress("restored")
		v := importView{Into: e.Data}
		if data {
			err = intoDirectory(e.Data, func(nc *bus.Conn) error {
				return command.Restore(ctx, nc, a, process.DefaultDomain, 1, restored.Show)
			})
		} else {
			v.Into = e.Bus.URL
			e.AsAdmin()
			var nc *bus.Conn
			if nc, err = e.Conn(); err == nil {
				err = command.Restore(ctx, nc, a, e.Bus.Domain, *replicas, restored.Show)
			}
		}
		restored.Done()
		if err != nil {
			return err
		}
		if err := v.fill(ctx, a); err != nil {
			return err
		}
		e.Print(v, func() { v.show(data, e.Output) })
		return nil
	})
	cmd.Flags().Lookup("data").Usage = "data `directory` to create"
	return cmd
}

// intoDirectory creates the whole data directory or none. It calls fill with a
// connection to the server of the directory.
func intoDirectory(dir string, fill func(*bus.Conn) error) error {
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
	err = intoServer(tmp, fill)
	if err == nil && entries != nil {
		err = os.Remove(dir) // it is empty
	}
	if err != nil {
		return errors.Join(err, os.RemoveAll(tmp))
	}
	return os.Rename(tmp, dir)
}

// intoServer fills dir by a server that runs on it.
func intoServer(dir string, fill func(*bus.Conn) error) (err error) {
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
	return fill(nc)
}

// fill reads the bounds and the last version of an archive.
func (v *importView) fill(ctx context.Context, a *archive.Archive) error {
	b, err := a.Bounds(ctx)
	if err != nil {
		return err
	}
	v.First, v.Last = b.First, b.Last
	head, err := command.Head(ctx, past.FromArchive("", a).Versions)
	v.Version = head.Version
	return err
}

func (v *importView) show(directory bool, out *command.Output) {
	next := "Start a builder on it."
	if directory {
		next = fmt.Sprintf("Start `meshlog up --config DIR --data %s` on it.", v.Into)
	}
	version := "it had no versions"
	if !v.Version.IsZero() {
		version = "its last version is " + v.Version.String()
	}
	out.Line("%s: records %d to %d are restored; %s.\n%s", v.Into, v.First, v.Last, version, next)
}
