package inspect

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"meshlog.dev/services/operate/command"
)

// Sources returns the command `sources`.
func Sources() *cobra.Command {
	cmd := &cobra.Command{
		Use: "sources", Short: "Show each source, its state and its watcher", Args: command.Args(0, 0, ""),
		Long: `Show each source: its watcher, its state, and when it was last listed, changed
and heard on the log.

  FOLLOWING  the watcher publishes each change to the log
  LISTING    the watcher lists it; nothing is removed before the listing is complete
  DOWN       it cannot be read: its objects stay as they are (frozen)
  SILENT     no watcher publishes for it: its objects stay as they are (frozen)
  NOT CONFIGURED
             the file of sources of its process does not list it any more: its
             objects stay as they are (frozen)
  AT REST    it has no watcher: operators change it with ` + "`meshlog apply`" + `
  GONE       it was removed and has no watcher; only --all shows it

If a source cannot be read for some kinds of objects (their CRD is gone, or a
permission is missing), only objects of these kinds are frozen: SYNCED counts
the kinds, and the lines below the table name them.

Of a registry of services the lines below the table say how many services and
instances it has, how many services report each change at once (polled) or are
read in turn, when the oldest read was, and the last error.

A source without a watcher or a frozen kind never removes an object;
` + "`meshlog sources remove`" + ` does.`,
		Example: `  meshlog sources --data data/
  meshlog sources --data data/ -o json
  meshlog sources remove --data data/ file/old        # show what would be removed
  meshlog sources remove --data data/ file/old --yes`,
	}
	all := cmd.Flags().BoolP("all", "a", false, "also show sources that are gone")
	return command.Live(cmd, func(ctx context.Context, e *command.Env, _ []string) error {
		s, err := e.Sources(ctx)
		if err != nil {
			return err
		}
		e.WarnSilent(s.Reports)
		views, err := s.Views(ctx)
		if err != nil {
			return err
		}
		if !*all {
			views = slices.DeleteFunc(views, func(v command.Source) bool { return v.State == command.StateGone && !v.FillsLog() })
		}
		e.Print(views, func() { showSources(views, time.Now(), e.Output) })
		return nil
	})
}

func showSources(views []command.Source, now time.Time, out *command.Output) {
	if len(views) == 0 {
		out.Line("No source has published yet. `meshlog up` watches a directory; `watcher-file --help` and `watcher-kube --help` show how to start a watcher.")
		return
	}
	t := command.Rows{Head: []string{"SOURCE", "STATE", "WATCHER", "OBJECTS", "PENDING", "SYNCED", "LISTED", "CHANGED", "HEARD", "STANDBYS"}}
	var notes []string
	for _, v := range views {
		t.Add(v.Shard(), SourceState(&v), v.Holder, v.Objects, v.Pending, SourceSynced(&v), command.Since(v.Listed, now), command.Since(v.Changed, now),
			command.Since(v.Heard, now), strings.Join(v.Standbys, ", "))
		notes = append(notes, SourceNotes(&v, now)...)
	}
	out.Rows(&t)
	out.Notes(notes)
}

// SourceState shows the state of a source.
func SourceState(v *command.Source) command.Cell {
	c := command.Cell{Text: strings.ToUpper(v.State), Color: command.Green}
	switch v.State {
	case command.StateDown, command.StateSilent:
		c.Color = command.Red
	case command.StateGone, command.StateRest, command.StateNotConfigured:
		c.Color = command.Faint
	case "listing":
		c.Color = command.Yellow
	}
	if v.Frozen {
		c.Text += ", FROZEN"
	}
	return c
}

// SourceSynced shows whether a source was listed completely.
func SourceSynced(v *command.Source) command.Cell {
	switch {
	case v.State == command.StateRest:
		return command.Cell{}
	case v.Partial:
		return command.Cell{Text: "in part", Color: command.Yellow}
	case v.Synced && len(v.FrozenKinds) > 0:
		return command.Cell{Text: "but " + command.Plural(len(v.FrozenKinds), "kind", "kinds"), Color: command.Yellow}
	case v.Synced:
		return command.Cell{Text: "yes"}
	}
	return command.Cell{Text: "no", Color: command.Yellow}
}

// SourceNotes returns the lines below the table about a source.
func SourceNotes(v *command.Source, now time.Time) (notes []string) {
	note := func(format string, args ...any) {
		notes = append(notes, v.Shard().String()+": "+fmt.Sprintf(format, args...))
	}
	switch v.State {
	case command.StateNotConfigured:
		note("the file of sources of %s does not list it any more. Its objects (%d) stay as they are: list it again, or `meshlog sources remove %s`.", v.Holder, v.Objects, v.Shard())
	case command.StateSilent:
		silent := "no watcher has ever published for it"
		if !v.Heard.IsZero() {
			silent = fmt.Sprintf("no watcher publishes for it since %s (%s)", command.Clock(v.Heard), command.Since(v.Heard, now))
		}
		note("%s. Its objects (%d) stay as they are: start its watcher, or `meshlog sources remove %s`.", silent, v.Objects, v.Shard())
	}
	if len(v.FrozenKinds) > 0 && !v.Frozen {
		var kinds, counts []string
		for _, k := range v.FrozenKinds {
			kinds, counts = append(kinds, k.Kind), append(counts, fmt.Sprintf("%d %s", k.Objects, k.Kind))
		}
		note("cannot be read for some kinds, whose objects stay as they are (%s): make them readable, or `meshlog sources remove %s --kind %s`.",
			strings.Join(counts, ", "), v.Shard(), strings.Join(kinds, ","))
	}
	if v.FillsLog() {
		note("its records take %d %% of the log (%d MiB). When the log is full, no process can write: `meshlog log` shows what changes so often; `meshlog streams --log-mib N --apply` makes room; if the watcher is not yours any more, remove its user from the bus.",
			int(100*v.LogShare), v.LogBytes>>20)
	}
	if v.Required && !v.Synced {
		note("nothing is published before it has listed in this epoch (MeshPolicy spec.requiredSources).")
	}
	if v.Registry != nil {
		registryNotes(v.Registry, now, note)
	}
	for _, p := range v.Problems[:min(len(v.Problems), command.MaxNamed)] {
		note("%s", &p)
	}
	if more := len(v.Problems) - command.MaxNamed; more > 0 {
		note("and %s; `meshlog diagnostics` shows them.", command.Plural(more, "more problem", "more problems"))
	}
	return notes
}

// registryNotes notes how a registry is read (REG-15).
func registryNotes(r *command.Registry, now time.Time, note func(format string, args ...any)) {
	text := fmt.Sprintf("%s, %s; %d polled, %d read in turn", command.Plural(int(r.Services), "service", "services"),
		command.Plural(int(r.Instances), "instance", "instances"), r.Polled, r.Swept)
	if !r.OldestRead.IsZero() {
		text += "; the oldest read was " + command.Since(r.OldestRead, now)
	}
	note("%s.", text)
	if r.Swept > 0 && r.Remedy != "" {
		note("changes of the services that are read in turn are late: %s.", r.Remedy)
	}
	if r.Doubted != "" {
		note("its last listing lacks so much that nothing is removed before a second one agrees: %s.", r.Doubted)
	}
	if r.Error != "" {
		note("last error %s: %s", command.Since(r.ErrorTime, now), r.Error)
	}
}
