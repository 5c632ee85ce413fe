package cli

import (
	"bufio"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"time"

	"github.com/spf13/cobra"

	"meshlog.dev/events/archive"
	"meshlog.dev/services/operate/past"
)

// exportView is what an export wrote.
type exportView struct {
	File     string `json:"file"`
	Bytes    uint64 `json:"bytes"`
	First    uint64 `json:"first"` // record of the log
	Last     uint64 `json:"last"`
	From     string `json:"from,omitempty"` // version
	To       string `json:"to,omitempty"`
	Versions int    `json:"versions"`
	Blobs    int    `json:"blobs"`
}

func exportCommand() *cobra.Command {
	var since string
	cmd := &cobra.Command{
		Use: "export FILE", Short: "Writes log and versions into one file", Args: args(1, 1, "FILE"),
		Long: `Writes log and versions into one file, an archive: the records, the versions with
their content, and what is needed to fold the log again. Every command about
the past reads it with --archive FILE; ` + "`meshlog import`" + ` makes a mesh of it.

An archive holds everything that was on the log: treat it as the configuration
that it is. Equal logs and versions give equal files.

With --since it begins there or, where the log cannot be folded from there, at
the nearest checkpoint before it.`,
		Example: `  meshlog export --data data/ mesh.archive
  meshlog export --bus nats://10.0.0.1:4222 incident.archive --since "yesterday 13:00"
  meshlog verify --archive incident.archive`,
	}
	t := pastFlags(cmd)
	format := outputFlag(cmd)
	cmd.Flags().StringVar(&since, "since", "", "`position` or time from which on; default: all that there is")
	cmd.RunE = func(cmd *cobra.Command, args []string) (err error) {
		defer func() { err = errors.Join(err, t.close()) }()
		out, err := newOutput(cmd, *format)
		if err != nil {
			return err
		}
		if _, err := os.Lstat(args[0]); err == nil {
			return fmt.Errorf("%s: is there already; remove it, or name another file", args[0])
		}
		p, err := t.past(cmd)
		if err != nil {
			return err
		}
		if err := p.HasLog(); err != nil {
			return err
		}
		from, err := positionOrTime(cmd.Context(), p.Log, "--since", since, 0, time.Now())
		if err != nil {
			return err
		}
		plan, err := past.PlanExport(cmd.Context(), p, from)
		if err != nil {
			return err
		}
		wrote := progress{w: cmd.ErrOrStderr(), what: "written"}
		size, err := writeArchive(cmd, plan, args[0], &wrote)
		wrote.done()
		if err != nil {
			return err
		}
		v := exportView{File: args[0], Bytes: size, First: plan.First, Last: plan.Last, Versions: plan.Versions, Blobs: plan.Blobs}
		if plan.Versions > 0 {
			v.From, v.To = plan.From.String(), plan.To.String()
		}
		return out.print(v, func() error { return showExport(v, out) })
	}
	return cmd
}

// writeArchive writes a file, whole or not at all.
func writeArchive(cmd *cobra.Command, plan *past.Export, path string, wrote *progress) (size uint64, err error) {
	f, err := os.CreateTemp(filepath.Dir(path), filepath.Base(path)+".*") // mode 0600
	if err != nil {
		return 0, fmt.Errorf("export: %w", err)
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, os.Remove(f.Name()))
		}
	}()
	b := bufio.NewWriterSize(f, 1<<20)
	w, err := archive.NewWriter(b, plan.First)
	if err == nil {
		err = plan.Write(cmd.Context(), w, wrote.show)
	}
	if err == nil {
		err = w.Close()
	}
	if err == nil {
		err = b.Flush()
	}
	if err == nil {
		err = f.Sync()
	}
	if err = errors.Join(err, f.Close()); err != nil {
		return 0, err
	}
	// Not a rename: what is there by now is not to be lost.
	if err := os.Link(f.Name(), path); errors.Is(err, fs.ErrExist) {
		return 0, fmt.Errorf("%s: is there already; remove it, or name another file", path)
	} else if err != nil {
		return w.Size(), os.Rename(f.Name(), path) // a file system without links
	}
	return w.Size(), os.Remove(f.Name())
}

func showExport(v exportView, out *output) error {
	versions := "no versions"
	if v.Versions > 0 {
		versions = fmt.Sprintf("%s, %s to %s", plural(v.Versions, "version", "versions"), v.From, v.To)
	}
	records := int(v.Last + 1 - v.First)
	return out.line("%s: %s, %d to %d; %s; %s.\nRead it with --archive %[1]s.",
		v.File, plural(records, "record", "records"), v.First, v.Last, versions, size(v.Bytes))
}

// size is a number of bytes for people.
func size(n uint64) string {
	switch {
	case n < 10<<10:
		return fmt.Sprintf("%d bytes", n)
	case n < 10<<20:
		return fmt.Sprintf("%d KiB", n>>10)
	}
	return fmt.Sprintf("%d MiB", n>>20)
}
