package apply

import (
	"context"
	"fmt"
	"slices"

	"github.com/spf13/cobra"

	"meshlog.dev/proto/ident"
	"meshlog.dev/services/builder/jury"
	"meshlog.dev/services/builder/ledger"
	"meshlog.dev/services/mesh/fold"
	"meshlog.dev/services/mesh/index"
	"meshlog.dev/services/mesh/kind"
	"meshlog.dev/services/mesh/problem"
	"meshlog.dev/services/mesh/world"
	"meshlog.dev/services/operate/command"
	"meshlog.dev/services/operate/past"
	"meshlog.dev/store"
)

// Exit codes of what-if.
const (
	exitChanges = 3
	exitHeld    = 4
)

// WhatIf returns the command `what-if`.
func WhatIf() *cobra.Command {
	cmd := &cobra.Command{
		Use: "what-if -f FILE", Short: "Show what a change would do to each class of proxies", Args: command.Args(0, 0, ""),
		Long: `Show what a change of objects would do, and write nothing: which objects would
differ, which problems the mesh would find, which classes of proxies would get other
resources and what would differ in them, whether a proxy would lose a route or its
last endpoint, and whether the guard would hold the change back.

An object takes the place of the one that is served by that name, whatever its
source; one that nobody serves is of --as. --delete removes an object.

The mesh may run, have ended, or lie in an archive: the change is judged on top of the
last record of its log.

Exit code 0: nothing would change. 1: an object is invalid. 3: something would change.
4: the guard would hold it back.`,
		Example: `  meshlog what-if --data data/ -f mesh/
  meshlog what-if --archive mesh.archive -f routes.yaml --markdown
  meshlog what-if --data data/ --delete DestinationRule/shop/cart
  meshlog what-if --data data/ -f routes.yaml --node envoy.yaml -o json`,
	}
	w := whatIf{}
	files := cmd.Flags().StringArrayP("filename", "f", nil, "`file` or directory with the objects, or - for standard input; may be repeated")
	cmd.Flags().StringArrayVar(&w.deletes, "delete", nil, "`object` that goes: KIND/NAMESPACE/NAME; may be repeated")
	as := cmd.Flags().String("as", ident.API+"/default", "`source` of new objects: SOURCE/INSTANCE")
	cmd.Flags().StringVar(&w.proxy.File, "node", "", "only for this proxy: `file` with Envoy's bootstrap, or its node")
	cmd.Flags().StringVar(&w.proxy.ID, "proxy", "", "only for this connected `proxy`")
	cmd.Flags().BoolVar(&w.markdown, "markdown", false, "print a summary in Markdown, for a pull request")
	return command.Past(cmd, func(ctx context.Context, e *command.Env, _ []string) error {
		if len(*files)+len(w.deletes) == 0 {
			return command.Usage("-f and --delete are missing: give the objects that would change")
		}
		var err error
		if w.as, err = parseShard(*as); err != nil {
			return err
		}
		d := &documents{shard: w.as}
		if len(*files) > 0 {
			if err := d.read(*files, e.Stdin); err != nil {
				return err
			}
		}
		if failed(d.problems) {
			w.view = newWhatIfView()
			w.view.add(d.problems)
			e.Print(w.view, func() { w.view.show(e.Output, w.markdown) })
			return errNothing(d.problems, "judged")
		}
		return w.run(ctx, e, d)
	})
}

// whatIf judges a change on top of the last record of a log.
type whatIf struct {
	deletes  []string
	as       ident.Shard
	proxy    command.ProxyQuery
	markdown bool

	fold          *fold.Fold
	before, after *world.World
	contentBefore *store.Snapshot
	view          *whatIfView
}

func (w *whatIf) run(ctx context.Context, e *command.Env, d *documents) error {
	p, err := e.Past(ctx)
	if err != nil {
		return err
	}
	if err := w.read(ctx, e, p); err != nil {
		return err
	}
	w.view = newWhatIfView()
	w.view.Position = w.fold.Position()
	w.view.add(d.problems)
	problems, err := w.change(d)
	if err != nil {
		return err
	}
	if !failed(problems) {
		if err := w.weigh(ctx, e, p); err != nil {
			return err
		}
	}
	e.Print(w.view, func() { w.view.show(e.Output, w.markdown) })
	switch {
	case failed(problems):
		return errNothing(problems, "judged further")
	case w.view.Held != "":
		return command.Coded(exitHeld, "the guard would hold the change back")
	case len(w.view.Objects)+len(w.view.Classes) > 0:
		return command.Coded(exitChanges, "the mesh would change")
	}
	return nil
}

func (w *whatIf) read(ctx context.Context, e *command.Env, p *past.Past) error {
	if p.Log == nil {
		return past.ErrNoLog
	}
	bounds, err := p.Log.Bounds(ctx)
	if err != nil {
		return err
	}
	progress := e.Progress("read")
	w.fold, err = past.Fold(ctx, p, bounds.Last, progress.Show)
	progress.Done()
	if err != nil {
		return err
	}
	w.fold.AssumeSigned()
	w.fold.Unstage() // what a change comes to when it has reached all proxies
	content := w.fold.Content()
	w.contentBefore = ledger.Content(content)
	w.before, _, err = world.NewWorld().Apply(content)
	return err
}

// change has the fold apply the change, and notes the objects that would be served
// otherwise and the problems.
func (w *whatIf) change(d *documents) (problems []problem.Diagnostic, err error) {
	byShard := map[ident.Shard][]*item{}
	for _, i := range d.items {
		i.take(w.shardOf(i.key))
		byShard[i.key.Shard()] = append(byShard[i.key.Shard()], i)
	}
	deletes, err := w.deleted()
	if err != nil {
		return nil, err
	}
	for _, k := range deletes {
		if _, ok := byShard[k.Shard()]; !ok {
			byShard[k.Shard()] = nil
		}
	}
	for _, name := range sortedShards(byShard) {
		s := &shard{name: name, fold: w.fold}
		s.keep()
		c := newChange(s, byShard[name], false)
		for _, k := range deletes {
			if k.Shard() == name {
				if o, ok := s.offers[k]; ok {
					c.steps = append(c.steps, step{item: &item{key: k}, action: deleted, before: &o})
				}
			}
		}
		if err := c.judge(s); err != nil {
			return nil, err
		}
		problems = append(problems, c.problems...)
		w.view.Problems = append(w.view.Problems, diagnostics(c.others)...) // of other objects: no reason to stop
	}
	w.view.add(problems)
	return problems, nil
}

// shardOf returns the source whose object one of that name takes the place of.
func (w *whatIf) shardOf(k ident.Key) ident.Shard {
	if served := w.before.Winner(k); served != nil {
		return served.Key.Shard()
	}
	return w.as
}

// staged reports whether a rollout gives k to some proxies before the others.
func staged(k ident.Key) bool {
	kd, ok := kind.ByName(k.Kind)
	return ok && kd.Staged()
}

// deleted returns the keys that --delete names.
func (w *whatIf) deleted() (keys []ident.Key, err error) {
	var known []ident.Key
	for _, s := range w.fold.Shards() {
		for _, o := range w.fold.Offers(s.Shard) {
			known = append(known, o.Key)
		}
	}
	for _, name := range w.deletes {
		only, err := command.ParseKey(name, command.Objects{})
		if err != nil {
			return nil, err
		}
		some, err := only.Find(name, known, "`meshlog show latest` lists the objects")
		if err != nil {
			return nil, err
		}
		keys = append(keys, some...)
	}
	return keys, nil
}

// weigh finds what the change does to objects, to proxies, and to the guard.
func (w *whatIf) weigh(ctx context.Context, e *command.Env, p *past.Past) error {
	content := w.fold.Content()
	after, changed, err := w.before.Apply(content)
	if err != nil {
		return err
	}
	w.after = after
	for _, k := range changed {
		was, is := w.before.Served(k), after.Served(k)
		var values [2]*ident.Value
		for i, o := range []*world.Object{was, is} {
			if o != nil {
				values[i] = &o.Value
			}
		}
		if values[0] != nil || values[1] != nil {
			w.view.Objects = append(w.view.Objects, past.CompareValues(k, values[0], values[1]))
		}
	}
	hold, err := jury.Guard(w.fold, w.before.Policy().Guard, w.view.Position, w.contentBefore, store.Diff(w.contentBefore, ledger.Content(content)))
	if err != nil {
		return err
	}
	if hold != nil {
		w.view.Held = hold.Reason
	}
	if steps := w.before.Policy().Rollout; len(steps) > 0 && slices.ContainsFunc(changed, staged) {
		w.view.Staged = fmt.Sprintf("in %s, the first of which reaches %s", command.Plural(len(steps), "step", "steps"), steps[0].Reached)
	}
	pc := index.NewPushContext(w.before)
	i := &impact{before: pc}
	if w.proxy != (command.ProxyQuery{}) {
		proxy, err := w.proxy.Find(ctx, e.Target, p)
		if err != nil {
			return err
		}
		w.view.Proxy = proxy.ID
		i.classes = []index.ProxyClass{index.Classify(pc, proxy)}
	} else {
		i.classes = pc.Classes()
	}
	w.view.Classes = i.of(after, changed)
	w.view.Problems = append(w.view.Problems, diagnostics(i.problems)...)
	if p.Live && w.view.Proxy == "" {
		return w.countProxies(ctx, e)
	}
	return nil
}
