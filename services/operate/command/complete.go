package command

import (
	"cmp"
	"context"
	"errors"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"meshlog.dev/services/internal/bus"
	"meshlog.dev/services/internal/process"
	"meshlog.dev/services/mesh/kind"
	"meshlog.dev/services/operate/past"
	"meshlog.dev/store"
)

// A lister lists the values of an argument or a flag, each with an optional
// description after a tab.
type lister func(ctx context.Context, t *Target) ([]string, error)

// argumentListers complete the arguments of commands, by name.
var argumentListers = map[string][]lister{
	"proxy-status": {listProxies},
	"proxy-config": {listProxies, fixed("clusters", "endpoints", "listeners", "routes")},
	"simulate":     {listProxies, fixed("GET", "POST", "PUT", "DELETE", "tcp")},
	"why":          {listProxies, fixed("cluster/", "endpoint/", "listener/", "route/", "filter/")},
	"why-not":      {listProxies},
	"bisect":       {listProxies},
	"wait":         {listVersions},
	"versions":     {listVersions},
	"show":         {listVersions, listKeys},
	"diff":         {listVersions, listVersions},
	"history":      {listKeys},
	"remove":       {listSources},
	"approve":      {listHeld},
	"drain":        {listProxies},
	"get":          {listKinds},
	"delete":       {listKinds},
}

// flagListers complete flags by name, in all commands that have them.
var flagListers = map[string]lister{
	"output":   fixed(Table, JSON, YAML),
	"severity": fixed("error", "warning", "info"),
	"fail-on":  fixed("error", "warning", "info"),
	"frontend": listFrontends,
	"proxy":    listProxies,
	"version":  listVersions,
	"at":       listVersions,
	"good":     listVersions,
	"bad":      listVersions,
	"source":   listSources,
	"kind":     listKinds,
}

// complete binds the completions to a command. They use its target: the flags on the
// partial command line are parsed by then.
func (t *Target) complete(cmd *cobra.Command) {
	if listers := argumentListers[cmd.Name()]; listers != nil {
		cmd.ValidArgsFunction = t.completion(func(args []string) lister {
			if len(args) >= len(listers) {
				return fixed()
			}
			return listers[len(args)]
		})
	}
	for name, l := range flagListers {
		if f := cmd.Flags().Lookup(name); f == nil || f.Value.Type() == "bool" {
			continue
		}
		err := cmd.RegisterFlagCompletionFunc(name, t.completion(func([]string) lister { return l }))
		if err != nil {
			panic(err) // the flag exists, and has no other completion
		}
	}
}

// completeWithin is how long a completion may take.
const completeWithin = 1500 * time.Millisecond

// completion lists the values that begin with the last word; none if an error
// occurs. Choose returns the lister for the words before it.
func (t *Target) completion(choose func(args []string) lister) cobra.CompletionFunc {
	return func(cmd *cobra.Command, args []string, part string) ([]string, cobra.ShellCompDirective) {
		ctx, cancel := context.WithTimeout(cmp.Or(cmd.Context(), context.Background()), completeWithin)
		defer cancel()
		_ = process.ApplySettings(t.flags, os.LookupEnv) // the command reports an invalid variable when it runs
		all, err := choose(args)(ctx, t)
		if err := errors.Join(err, t.Close()); err != nil {
			cobra.CompDebugln(err.Error(), false)
			all = nil
		}
		all = slices.DeleteFunc(all, func(s string) bool { return !strings.HasPrefix(s, part) })
		return all, cobra.ShellCompDirectiveNoFileComp
	}
}

func fixed(names ...string) lister {
	return func(context.Context, *Target) ([]string, error) { return slices.Clone(names), nil }
}

func listKinds(context.Context, *Target) ([]string, error) {
	var names []string
	for _, k := range kind.All() {
		names = append(names, k.Name)
	}
	return names, nil
}

func listProxies(ctx context.Context, t *Target) (ids []string, err error) {
	reports, err := t.Reports(ctx, bus.Proxies)
	if err != nil {
		return nil, err
	}
	for _, f := range reports.Frontends {
		for _, p := range f.GetProxies() {
			ids = append(ids, p.GetId()+"\tat "+f.GetFrontend())
		}
	}
	slices.Sort(ids)
	return slices.Compact(ids), nil
}

func listFrontends(ctx context.Context, t *Target) (ids []string, err error) {
	reports, err := t.Reports(ctx, bus.Summary)
	if err != nil {
		return nil, err
	}
	for _, f := range reports.Frontends {
		ids = append(ids, f.GetFrontend())
	}
	return ids, nil
}

func listHeld(ctx context.Context, t *Target) (ids []string, err error) {
	chain, err := t.Chain(ctx)
	if err != nil {
		return nil, err
	}
	head, err := FetchHead(ctx, chain)
	if err != nil {
		return nil, err
	}
	holds, quarantines, err := HeldBack(head.Snapshot)
	for _, h := range holds {
		ids = append(ids, h.GetId()+"\t"+h.GetReason())
	}
	for _, q := range quarantines {
		ids = append(ids, q.GetId()+"\t"+q.GetReason())
	}
	return ids, err
}

// listedVersions is how many versions a completion lists.
const listedVersions = 30

func listVersions(ctx context.Context, t *Target) ([]string, error) {
	chain, err := t.Chain(ctx)
	if err != nil {
		return nil, err
	}
	all := []string{Latest + "\tthe newest"}
	for m, err := range chain.History(ctx) {
		if err != nil {
			return nil, err
		}
		all = append(all, store.VersionOf(m.GetVersion()).String()+"\t"+Clock(PublishedAt(m)))
		if len(all) > listedVersions {
			break
		}
	}
	return all, nil
}

func listSources(ctx context.Context, t *Target) (all []string, err error) {
	chain, err := t.Chain(ctx)
	if err != nil {
		return nil, err
	}
	head, err := Head(ctx, chain)
	for _, w := range head.Manifest.GetWatermark() {
		all = append(all, w.GetSource()+"/"+w.GetInstance())
	}
	return all, err
}

func listKeys(ctx context.Context, t *Target) ([]string, error) {
	s, err := t.Sources(ctx)
	if err != nil {
		return nil, err
	}
	var all []string
	for k := range past.Offered(s.Head.Snapshot) {
		all = append(all, Slashed(k)+"\t"+k.Shard().String())
	}
	slices.Sort(all)
	return slices.Compact(all), nil
}
