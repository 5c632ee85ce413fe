package history

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"github.com/spf13/cobra"

	"meshlog.dev/events/archive"
	"meshlog.dev/services/operate/command"
	"meshlog.dev/services/operate/past"
)

// exportView is an archive that was written.
type exportView struct {
	File  string `json:"file"`
	Bytes uint64 `json:"bytes"`
	*past.Export
}

// Export returns the command `export`.
func Export() *cobra.Command {
	cmd := &cobra.Command{
		Use: "export FILE", Short: "Write the log and the versions to an archive", Args: command.Args(1, 1, "FILE"),
		Long: `Write the log and the versions to one file, an archive: the records, the versions
with their content, and what a replay of the log needs. Every command about the
past reads it with --archive FILE; ` + "`meshlog import`" + ` creates a mesh from it.

The archive of a mesh that runs also holds the nodes of the proxies that are connected,
so that ` + "`meshlog why PROXY`" + ` and the like find them by name.

An archive holds all objects that were on the log: protect it as you protect the
configuration. Equal logs, versions and proxies give equal files.

With --since it begins there or, if the log cannot be replayed from there, at the
nearest checkpoint before.`,
		Example: `  meshlog export --data data/ mesh.archive
  meshlog export --bus nats://10.0.0.1:4222 incident.archive --since "yesterday 13:00"
  meshlog verify --archive incident.archive`,
	}
	since := cmd.Flags().String("since", "", "first `position` or time; default: the start of the log")
	return command.Past(cmd, func(ctx context.Context, e *command.Env, args []string) error {
		file := args[0]
		if _, err := os.Lstat(file); err == nil {
			return exists(file)
		}
		p, err := e.PastLog(ctx)
		if err != nil {
			return err
		}
		from, err := command.SeqOrTime(ctx, p.Log, "--since", *since, 0)
		if err != nil {
			return err
		}
		plan, err := past.PlanExport(ctx, p, from)
		if err != nil {
			return err
		}
		if err := addNodes(ctx, e, p, plan); err != nil {
			return err
		}
		wrote := e.Progress("written")
		size, err := writeArchive(ctx, plan, file, wrote)
		wrote.Done()
		if err != nil {
			return err
		}
		v := exportView{File: file, Bytes: size, Export: plan}
		e.Print(v, func() { v.show(e.Output) })
		return nil
	})
}

// addNodes adds the proxies that are connected now, or those that the archive holds which is
// copied. Without a frontend there is no word about them.
func addNodes(ctx context.Context, e *command.Env, p *past.Past, plan *past.Export) error {
	read := p.Nodes
	if p.Live {
		read = e.Nodes
	}
	if read == nil {
		return nil
	}
	nodes, err := read(ctx)
	if errors.Is(err, past.ErrNoNodes) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("the proxies that are connected: %w", err)
	}
	return plan.AddNodes(nodes)
}

func exists(file string) error {
	return fmt.Errorf("%s: exists; remove it, or name another file", file)
}

// writeArchive writes the whole file or none.
func writeArchive(ctx context.Context, plan *past.Export, path string, wrote *command.Progress) (size uint64, err error) {
	f, err := os.CreateTemp(filepath.Dir(path), filepath.Base(path)+".*") // mode 0600
	if err != nil {
		return 0, fmt.Errorf("export: %w", err)
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, os.Remove(f.Name()))
		}
	}()
	w, err := archive.NewWriter(f, plan.First)
	if err == nil {
		err = plan.Write(ctx, w, wrote.Show)
	}
	if err == nil {
		err = w.Close()
	}
	if err == nil {
		err = f.Sync()
	}
	if err = errors.Join(err, f.Close()); err != nil {
		return 0, err
	}
	// A rename would replace a file that another process has made meanwhile.
	if err := os.Link(f.Name(), path); errors.Is(err, fs.ErrExist) {
		return 0, exists(path)
	} else if err != nil {
		return w.Size(), os.Rename(f.Name(), path) // a file system without links
	}
	return w.Size(), os.Remove(f.Name())
}

func (v *exportView) show(out *command.Output) {
	versions := "no versions"
	if v.Versions > 0 {
		versions = fmt.Sprintf("%s, %s to %s", command.Plural(v.Versions, "version", "versions"), v.From, v.To)
	}
	if v.Proxies > 0 {
		versions += "; " + command.Plural(v.Proxies, "proxy", "proxies")
	}
	out.Line("%s: %s, %d to %d; %s; %s.\nRead it with --archive %[1]s.",
		v.File, command.Plural(int(v.Last+1-v.First), "record", "records"), v.First, v.Last, versions, size(v.Bytes))
}

func size(n uint64) string {
	switch {
	case n < 10<<10:
		return fmt.Sprintf("%d bytes", n)
	case n < 10<<20:
		return fmt.Sprintf("%d KiB", n>>10)
	}
	return fmt.Sprintf("%d MiB", n>>20)
}
