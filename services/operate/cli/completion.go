package cli

import (
	"cmp"
	"context"
	"errors"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"meshlog.dev/proto/ident"
	"meshlog.dev/services/internal/bus"
	"meshlog.dev/services/internal/process"
	"meshlog.dev/services/mesh/kind"
	"meshlog.dev/store"
)

func completionCommand() *cobra.Command {
	return &cobra.Command{
		Use: "completion bash|zsh|fish", Short: "Writes what completes commands in a shell",
		Long: `Writes a script by which a shell completes commands and flags and, where --data or
--bus is given or set, proxies, versions, objects and sources of the mesh.`,
		Example: `  source <(meshlog completion bash)                                    # now
  meshlog completion bash > /etc/bash_completion.d/meshlog             # always
  meshlog completion zsh > "${fpath[1]}/_meshlog"
  meshlog completion fish > ~/.config/fish/completions/meshlog.fish`,
		Args: args(1, 1, "the name of a shell (bash, zsh or fish)"), ValidArgs: []string{"bash", "zsh", "fish"},
		RunE: func(cmd *cobra.Command, args []string) error {
			switch args[0] {
			case "bash":
				return cmd.Root().GenBashCompletionV2(cmd.OutOrStdout(), true)
			case "zsh":
				return cmd.Root().GenZshCompletion(cmd.OutOrStdout())
			case "fish":
				return cmd.Root().GenFishCompletion(cmd.OutOrStdout(), true)
			}
			return usage("shell %q: want bash, zsh or fish", args[0])
		},
	}
}

// completeWithin is how long somebody waits who presses a key.
const completeWithin = 1500 * time.Millisecond

// lister lists what may stand in a place of the command line, each as it is to
// be written, with a tab and a few words behind it where they help.
type lister func(ctx context.Context, t *target) ([]string, error)

// completions is what completes the arguments of commands, by path.
var completions = map[string][]lister{
	"proxy-status":   {offerProxies},
	"proxy-config":   {offerProxies, fixed("clusters", "endpoints", "listeners", "routes")},
	"wait":           {offerVersions},
	"versions":       {offerVersions},
	"show":           {offerVersions, offerKeys},
	"diff":           {offerVersions, offerVersions},
	"history":        {offerKeys},
	"sources remove": {offerSources},
	"approve":        {offerHeld},
}

// flagCompletions is what completes flags, by name; of a command that has them.
var flagCompletions = map[string]lister{
	"output":   fixed("table", "json", "yaml"),
	"severity": fixed("error", "warning", "info"),
	"fail-on":  fixed("error", "warning", "info"),
	"frontend": offerFrontends,
	"proxy":    offerProxies,
	"version":  offerVersions,
	"source":   offerSources,
	"kind":     offerKinds,
}

// complete binds what completes commands to root.
func complete(root *cobra.Command) {
	for path, listers := range completions {
		cmd, _, err := root.Find(strings.Fields(path))
		if err != nil {
			panic("completion of a command that is not there: " + path)
		}
		cmd.ValidArgsFunction = func(cmd *cobra.Command, args []string, part string) ([]string, cobra.ShellCompDirective) {
			if len(args) >= len(listers) {
				return nil, cobra.ShellCompDirectiveNoFileComp
			}
			return listers[len(args)].run(cmd, part)
		}
	}
	for _, cmd := range slices.Concat(root.Commands(), subcommands(root)) {
		for name, list := range flagCompletions {
			if f := cmd.Flags().Lookup(name); f == nil || f.Value.Type() == "bool" {
				continue
			}
			err := cmd.RegisterFlagCompletionFunc(name, func(cmd *cobra.Command, _ []string, part string) ([]string, cobra.ShellCompDirective) {
				return list.run(cmd, part)
			})
			if err != nil {
				panic(err) // the flag is there, and nobody else completes it
			}
		}
	}
}

func subcommands(root *cobra.Command) (all []*cobra.Command) {
	for _, c := range root.Commands() {
		all = append(all, c.Commands()...)
	}
	return all
}

// run lists what begins with part. What cannot be found out completes nothing.
func (l lister) run(cmd *cobra.Command, part string) ([]string, cobra.ShellCompDirective) {
	ctx, cancel := context.WithTimeout(cmp.Or(cmd.Context(), context.Background()), completeWithin)
	defer cancel()
	t := targetOf(cmd)
	all, err := l(ctx, t)
	if err := errors.Join(err, t.close()); err != nil {
		cobra.CompDebugln(err.Error(), false)
		return nil, cobra.ShellCompDirectiveNoFileComp
	}
	return slices.DeleteFunc(all, func(s string) bool { return !strings.HasPrefix(s, part) }), cobra.ShellCompDirectiveNoFileComp
}

// targetOf is the mesh that the flags of a command name, as far as they are
// typed by now.
func targetOf(cmd *cobra.Command) *target {
	typed := &cobra.Command{}
	t := targetFlags(typed)
	typed.Flags().VisitAll(func(f *pflag.Flag) {
		if g := cmd.Flags().Lookup(f.Name); g != nil && g.Changed {
			_ = f.Value.Set(g.Value.String()) // it was read by the same sort of flag
		}
	})
	_ = process.ApplySettings(typed.Flags(), os.LookupEnv) // what cannot be read is said when the command runs
	return t
}

func fixed(names ...string) lister {
	return func(context.Context, *target) ([]string, error) { return slices.Clone(names), nil }
}

func offerKinds(context.Context, *target) ([]string, error) {
	var names []string
	for _, k := range kind.All() {
		names = append(names, k.Name)
	}
	slices.Sort(names)
	return names, nil
}

func (t *target) reports(ctx context.Context, with bus.Detail) (*bus.Reports, error) {
	nc, err := t.connect()
	if err != nil {
		return nil, err
	}
	return t.fleet(nc).Reports(ctx, with)
}

func offerProxies(ctx context.Context, t *target) ([]string, error) {
	reports, err := t.reports(ctx, bus.Proxies)
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

func offerFrontends(ctx context.Context, t *target) ([]string, error) {
	reports, err := t.reports(ctx, bus.Summary)
	if err != nil {
		return nil, err
	}
	var ids []string
	for _, f := range reports.Frontends {
		ids = append(ids, f.GetFrontend())
	}
	return ids, nil
}

func offerHeld(ctx context.Context, t *target) ([]string, error) {
	reports, err := t.reports(ctx, bus.Summary)
	if err != nil {
		return nil, err
	}
	b := newest(reports.Builders)
	var ids []string
	for _, h := range b.GetHolds() {
		ids = append(ids, h.GetId()+"\t"+h.GetReason())
	}
	for _, q := range b.GetQuarantines() {
		ids = append(ids, q.GetId()+"\t"+q.GetReason())
	}
	return ids, nil
}

// offeredVersions is how many versions are offered.
const offeredVersions = 30

// manifests are the newest ones.
func (t *target) manifests(ctx context.Context, most int) ([]*store.Manifest, error) {
	nc, err := t.connect()
	if err != nil {
		return nil, err
	}
	chain, err := t.chain(ctx, nc)
	if err != nil {
		return nil, err
	}
	var all []*store.Manifest
	for m, err := range chain.History(ctx) {
		if err != nil {
			return nil, err
		}
		if all = append(all, m); len(all) == most {
			break
		}
	}
	return all, nil
}

func offerVersions(ctx context.Context, t *target) ([]string, error) {
	manifests, err := t.manifests(ctx, offeredVersions)
	if err != nil {
		return nil, err
	}
	all := []string{latest + "\tthe newest"}
	for _, m := range manifests {
		all = append(all, store.VersionOf(m.GetVersion()).String()+"\t"+clock(publishedAt(m)))
	}
	return all, nil
}

func offerSources(ctx context.Context, t *target) ([]string, error) {
	manifests, err := t.manifests(ctx, 1)
	if err != nil {
		return nil, err
	}
	var all []string
	for _, m := range manifests {
		for _, w := range m.GetWatermark() {
			all = append(all, w.GetSource()+"/"+w.GetInstance())
		}
	}
	return all, nil
}

func offerKeys(ctx context.Context, t *target) ([]string, error) {
	manifests, err := t.manifests(ctx, 1)
	if err != nil || len(manifests) == 0 {
		return nil, err
	}
	chain, err := t.chain(ctx, t.nc)
	if err != nil {
		return nil, err
	}
	head, err := chain.Fetch(ctx, store.VersionOf(manifests[0].GetVersion()))
	if err != nil {
		return nil, err
	}
	var all []string
	for row := range head.Snapshot.Rows() {
		k, overlay, err := ident.ParseRow(row.Key)
		if err != nil || overlay != "" {
			continue
		}
		parts := []string{k.Kind, k.Namespace, k.Name}
		if k.Namespace == "" {
			parts = []string{k.Kind, k.Name}
		}
		all = append(all, strings.Join(parts, "/")+"\t"+k.Shard().String())
	}
	slices.Sort(all)
	return slices.Compact(all), nil
}
