package apply

import (
	"context"

	"github.com/spf13/cobra"

	"meshlog.dev/proto/ident"
	"meshlog.dev/services/operate/command"
	"meshlog.dev/services/operate/draft"
)

// Apply returns the command `apply`.
func Apply() *cobra.Command {
	cmd := &cobra.Command{
		Use: "apply -f FILE", Short: "Create or change objects", Args: command.Args(0, 0, ""),
		Long: `Create or change the objects in files, directories or standard input (-), in the form
that directories of the file watcher have: YAML or JSON, Istio's kinds, meshlog's and
those of Kubernetes. They belong to the source api/default, which has no watcher:
there is no directory to keep them in, and objects that are not in the files stay as
they are. "meshlog delete" deletes them.

All objects of one apply are one change: a version has all of them or none. If one is
invalid, or its source may not publish it (sourceRules of the MeshPolicy), nothing is
written, and the output names file, line, field, reason and what to do.

Of equal objects of several sources the one of the highest priority counts; api comes
after kubernetes and file unless the MeshPolicy says otherwise.

Two applies at one time do not mix: the later one reads again and is repeated. To
change an object without undoing the change of another operator, edit what
"meshlog get" prints: its resourceVersion names the position of the last change, and
apply refuses a document that is made from an older one.

The command waits until a version has the change; with --wait also until that share
of the connected proxies has applied the version. A proxy that the change does not
concern has applied it when its frontend serves it.`,
		Example: `  meshlog apply --data data/ -f shop.yaml
  meshlog apply --data data/ -f mesh/ --dry-run
  meshlog apply --data data/ -f shop.yaml --wait 95% --timeout 60s
  kustomize build . | meshlog apply --data data/ -f -
  meshlog get VirtualService shop -n demo -o yaml | sed s/v1/v2/ | meshlog apply -f -`,
	}
	var o options
	o.flags(cmd.Flags())
	files := filesFlag(cmd, "create or change")
	instance := instanceFlag(cmd.Flags())
	return command.Live(cmd, func(ctx context.Context, e *command.Env, _ []string) error {
		if len(*files) == 0 {
			return command.Usage("-f is missing: give a file, a directory, or - for standard input")
		}
		d := &draft.Documents{Shard: ident.Shard{Source: ident.API, Instance: *instance}}
		if err := readFiles(d, *files, e.Stdin); err != nil {
			return err
		}
		j := &job{options: o, env: e, shard: d.Shard, items: d.Items, silence: openSilence}
		return j.run(ctx, d.Problems)
	})
}

// filesFlag binds -f.
func filesFlag(cmd *cobra.Command, what string) *[]string {
	return cmd.Flags().StringArrayP("filename", "f", nil, "`file` or directory with the objects to "+what+", or - for standard input; may be repeated")
}
