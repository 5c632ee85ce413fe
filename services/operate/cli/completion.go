package cli

import (
	"cmp"
	"context"
	"errors"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"meshlog.dev/proto/ident"
	"meshlog.dev/services/internal/bus"
	"meshlog.dev/services/mesh/kind"
	"meshlog.dev/services/operate/command"
	"meshlog.dev/store"
)

func completionCommand() *cobra.Command {
	return &cobra.Command{
		Use: "completion bash|zsh|fish", Short: "Write the completion script of a shell",
		Long: `Write the completion script of a shell. It completes commands and flags and, if
--data or --bus is given or set, proxies, versions, objects and sources of the mesh.`,
		Example: `  source <(meshlog completion bash)                                    # this shell
  meshlog completion bash > /etc/bash_completion.d/meshlog             # every shell
  meshlog completion zsh > "${fpath[1]}/_meshlog"
  meshlog completion fish > ~/.config/fish/completions/meshlog.fish`,
		Args: command.Args(1, 1, "the name of a shell (bash, zsh or fish)"), ValidArgs: []string{"bash", "zsh", "fish"},
		RunE: func(cmd *cobra.Command, args []string) error {
			switch args[0] {
			case "bash":
				return cmd.Root().GenBashCompletionV2(cmd.OutOrStdout(), true)
			case "zsh":
				return cmd.Root().GenZshCompletion(cmd.OutOrStdout())
			case "fish":
				return cmd.Root().GenFishCompletion(cmd.OutOrStdout(), true)
			}
			return command.Usage("shell %q: want bash, zsh or fish", args[0])
		},
	}
}

// completeWithin is how long a completion may take.
const completeWithin = 1500 * time.Millisecond

// lister lists the values of an argument or a flag, each with an optional
// description after a tab.
type lister func(ctx context.Context, t *command.Target) ([]string, error)

// completions complete the arguments of commands, by path.
var completions = map[string][]lister{
	"proxy-status":   {listProxies},
	"proxy-config":   {listProxies, fixed("clusters", "endpoints", "listeners", "routes")},
	"wait":           {listVersions},
	"versions":       {listVersions},
	"show":           {listVersions, listKeys},
	"diff":           {listVersions, listVersions},
	"history":        {listKeys},
	"sources remove": {listSources},
	"approve":        {listHeld},
}

// flagCompletions complete flags by name, in all commands that have them.
var flagCompletions = map[string]lister{
	"output":   fixed(command.Table, command.JSON, command.YAML),
	"severity": fixed("error", "warning", "info"),
	"fail-on":  fixed("error", "warning", "info"),
	"frontend": listFrontends,
	"proxy":    listProxies,
	"version":  listVersions,
	"source":   listSources,
	"kind":     listKinds,
}

// complete binds the completions to the commands below root.
func complete(root *cobra.Command) {
	for path, listers := range completions {
		cmd, _, err := root.Find(strings.Fields(path))
		if err != nil {
			panic("completion of an unknown command: " + path)
		}
		cmd.ValidArgsFunction = func(cmd *cobra.Command, args []string, part string) ([]string, cobra.ShellCompDirective) {
			if len(args) >= len(listers) {
				return nil, cobra.ShellCompDirectiveNoFileComp
			}
			return listers[len(args)].run(cmd, part)
		}
	}
	completeFlags(root)
}

func completeFlags(cmd *cobra.Command) {
	for name, list := range flagCompletions {
		if f := cmd.Flags().Lookup(name); f == nil || f.Value.Type() == "bool" {
			continue
		}
		err := cmd.RegisterFlagCompletionFunc(name, func(cmd *cobra.Command, _ []string, part string) ([]string, cobra.ShellCompDirective) {
			return list.run(cmd, part)
		})
		if err != nil {
			panic(err) // the flag exists, and has no other completion
		}
	}
	for _, c := range cmd.Commands() {
		completeFlags(c)
	}
}

// run lists the values that begin with part; none if an error occurs.
func (l lister) run(cmd *cobra.Command, part string) ([]string, cobra.ShellCompDirective) {
	ctx, cancel := context.WithTimeout(cmp.Or(cmd.Context(), context.Background()), completeWithin)
	defer cancel()
	t := command.Typed(cmd)
	all, err := l(ctx, t)
	if err := errors.Join(err, t.Close()); err != nil {
		cobra.CompDebugln(err.Error(), false)
		return nil, cobra.ShellCompDirectiveNoFileComp
	}
	return slices.DeleteFunc(all, func(s string) bool { return !strings.HasPrefix(s, part) }), cobra.ShellCompDirectiveNoFileComp
}

func fixed(names ...string) lister {
	return func(context.Context, *command.Target) ([]string, error) { return slices.Clone(names), nil }
}

func listKinds(context.Context, *command.Target) ([]string, error) {
	var names []string
	for _, k := range kind.All() {
		names = append(names, k.Name)
	}
	slices.Sort(names)
	return names, nil
}

func listProxies(ctx context.Context, t *command.Target) ([]string, error) {
	reports, err := t.Reports(ctx, bus.Proxies)
	if err != nil {
		return nil, err
	}
	var ids []string
	for _, f := range reports.Frontends {
		for _, p := range f.GetProxies() {
			ids = append(ids, p.GetId()+"\tat "+f.GetFrontend())
		}
	}
	slices.Sort(ids)
	return slices.Compact(ids), nil
}

func listFrontends(ctx context.Context, t *command.Target) ([]string, error) {
	reports, err := t.Reports(ctx, bus.Summary)
	if err != nil {
		return nil, err
	}
	var ids []string
	for _, f := range reports.Frontends {
		ids = append(ids, f.GetFrontend())
	}
	return ids, nil
}

func listHeld(ctx context.Context, t *command.Target) ([]string, error) {
	reports, err := t.Reports(ctx, bus.Summary)
	if err != nil {
		return nil, err
	}
	b := command.Newest(reports.Builders)
	var ids []string
	for _, h := range b.GetHolds() {
		ids = append(ids, h.GetId()+"\t"+h.GetReason())
	}
	for _, q := range b.GetQuarantines() {
		ids = append(ids, q.GetId()+"\t"+q.GetReason())
	}
	return ids, nil
}

// newest returns up to n manifests, the newest first.
func newest(ctx context.Context, t *command.Target, n int) (all []*store.Manifest, err error) {
	chain, err := t.Chain(ctx)
	if err != nil {
		return nil, err
	}
	for m, err := range chain.History(ctx) {
		if err != nil {
			return nil, err
		}
		if all = append(all, m); len(all) == n {
			break
		}
	}
	return all, nil
}

// listedVersions is how many versions a completion lists.
const listedVersions = 30

func listVersions(ctx context.Context, t *command.Target) ([]string, error) {
	manifests, err := newest(ctx, t, listedVersions)
	if err != nil {
		return nil, err
	}
	all := []string{command.Latest + "\tthe newest"}
	for _, m := range manifests {
		all = append(all, store.VersionOf(m.GetVersion()).String()+"\t"+command.Clock(command.PublishedAt(m)))
	}
	return all, nil
}

func listSources(ctx context.Context, t *command.Target) (all []string, err error) {
	manifests, err := newest(ctx, t, 1)
	for _, m := range manifests {
		for _, w := range m.GetWatermark() {
			all = append(all, w.GetSource()+"/"+w.GetInstance())
		}
	}
	return all, err
}

func listKeys(ctx context.Context, t *command.Target) ([]string, error) {
	sources, err := t.Sources(ctx)
	if err != nil || sources.Head.Snapshot == nil {
		return nil, err
	}
	var all []string
	for row := range sources.Head.Snapshot.Rows() {
		if k, overlay, err := ident.ParseRow(row.Key); err == nil && overlay == "" {
			all = append(all, command.Slashed(k)+"\t"+k.Shard().String())
		}
	}
	slices.Sort(all)
	return slices.Compact(all), nil
}
