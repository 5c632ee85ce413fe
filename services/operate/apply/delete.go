package apply

import (
	"context"

	"github.com/spf13/cobra"

	"meshlog.dev/proto/ident"
	"meshlog.dev/services/operate/command"
	"meshlog.dev/services/operate/draft"
)

// Delete returns the command `delete`.
func Delete() *cobra.Command {
	cmd := &cobra.Command{
		Use: "delete (-f FILE | KIND NAME)", Short: "Delete objects that were applied", Args: command.Args(0, 2, ""),
		Long: `Delete objects that "meshlog apply" has created: those that files name, or one. Objects
of other sources are deleted there.

All objects of one delete are one change. Of the objects in files only kind, namespace
and name count, and resourceVersion if there is one; those that do not exist are left
out. The guard does not hold the loss back, because the command names each object.

Exit code 3: there is no such object.`,
		Example: `  meshlog delete --data data/ VirtualService shop -n demo
  meshlog delete --data data/ -f shop.yaml
  meshlog delete --data data/ -f mesh/ --dry-run
  meshlog delete --data data/ -f shop.yaml --wait 100%`,
	}
	var o options
	o.flags(cmd.Flags())
	files := filesFlag(cmd, "delete")
	instance := instanceFlag(cmd.Flags())
	namespace := cmd.Flags().StringP("namespace", "n", "", "`namespace` of the object (\"default\" if it has one and none is given)")
	return command.Live(cmd, func(ctx context.Context, e *command.Env, args []string) error {
		shard := ident.Shard{Source: ident.API, Instance: *instance}
		d := &draft.Documents{Shard: shard, Named: true}
		switch {
		case len(*files) > 0 && len(args)+len(*namespace) > 0:
			return command.Usage("-f and an object: give one of them")
		case len(*files) > 0:
			if err := readFiles(d, *files, e.Stdin); err != nil {
				return err
			}
		case len(args) < 2:
			return command.Usage("want KIND NAME, or -f FILE")
		default:
			kd, err := kindOf(args[0])
			if err != nil {
				return err
			}
			k := ident.Key{Source: shard.Source, Instance: shard.Instance, Kind: kd.Name, Namespace: *namespace, Name: args[1]}
			switch {
			case kd.Namespaced && k.Namespace == "":
				k.Namespace = "default"
			case !kd.Namespaced && k.Namespace != "":
				return command.Usage("a %s has no namespace", kd.Name)
			}
			d.Items = []*draft.Item{{Key: k}}
		}
		j := &job{options: o, env: e, shard: shard, items: d.Items, deletes: true, silence: openSilence}
		return j.run(ctx, d.Problems)
	})
}

// notThere returns the error of a delete whose objects do not exist.
func notThere(items []*draft.Item) error {
	switch len(items) {
	case 0:
		return command.NotFound("no document names an object that could be deleted")
	case 1:
		return command.NotFound("%s: there is no such object; `meshlog get` lists those that were applied", items[0].Key)
	}
	return command.NotFound("none of the %d objects exists; `meshlog get` lists those that were applied", len(items))
}
