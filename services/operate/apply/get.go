package apply

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"meshlog.dev/proto/ident"
	"meshlog.dev/services/mesh/document"
	"meshlog.dev/services/mesh/fold"
	"meshlog.dev/services/mesh/kind"
	"meshlog.dev/services/mesh/problem"
	"meshlog.dev/services/nearest"
	"meshlog.dev/services/operate/command"
)

// Get returns the command `get`.
func Get() *cobra.Command {
	cmd := &cobra.Command{
		Use: "get [KIND [NAME]]", Short: "Show objects that were applied", Args: command.Args(0, 2, ""),
		Long: `Show the objects that "meshlog apply" has created, as they were applied. "meshlog show"
shows what is served, of all sources.

With -o yaml or json the output is documents that "meshlog apply -f -" takes, and that
change nothing there. resourceVersion is the position that changed the object last.
It is kept in a document to be sure that no other change is undone, and removed from
one that is to count whatever the object is.

Exit code 3: there is no object of that name.`,
		Example: `  meshlog get --data data/
  meshlog get --data data/ VirtualService -n demo
  meshlog get --data data/ VirtualService shop -n demo -o yaml > shop.yaml
  meshlog get --data data/ -o yaml > backup.yaml`,
	}
	instance := instanceFlag(cmd.Flags())
	namespace := cmd.Flags().StringP("namespace", "n", "", "only objects of this `namespace`")
	return command.Past(cmd, func(ctx context.Context, e *command.Env, args []string) error {
		only := command.Objects{}
		if len(args) > 0 {
			kd, err := kindOf(args[0])
			if err != nil {
				return err
			}
			only.Kinds = []string{kd.Name}
			if !kd.Namespaced && *namespace != "" {
				return command.Usage("a %s has no namespace", kd.Name)
			}
		}
		if len(args) > 1 {
			only.Names = args[1:]
		}
		if *namespace != "" {
			only.Namespaces = []string{*namespace}
		}
		p, err := e.PastLog(ctx)
		if err != nil {
			return err
		}
		progress := e.Progress("read")
		s, err := readShard(ctx, p, ident.Shard{Source: ident.API, Instance: *instance}, progress.Show)
		progress.Done()
		if err != nil {
			return err
		}
		lost, err := s.sinceLoss(ctx, p.Log)
		if err != nil {
			return err
		}
		if lost != "" {
			fmt.Fprintln(e.Stderr, lost)
		}
		found := slices.DeleteFunc(slices.Clone(s.All), func(o fold.Offer) bool { return !only.MatchName(o.Key) })
		if len(found) == 0 && len(args) > 1 {
			return command.NotFound("%s %s: %s has no such object; `meshlog get` lists its objects, `meshlog show latest` those of all sources", only.Kinds[0], args[1], s.Name)
		}
		return s.print(found, len(args) > 1 && len(found) == 1, e.Output)
	})
}

// kindOf returns the kind of that name, in whatever case.
func kindOf(name string) (*kind.Kind, error) {
	var names []string
	for _, k := range kind.All() {
		if strings.EqualFold(k.Name, name) {
			return k, nil
		}
		names = append(names, k.Name)
	}
	advice := ""
	if near, ok := nearest.Name(name, names); ok {
		advice = "; did you mean " + near + "?"
	}
	return nil, command.Usage("meshlog knows no kind %q%s", name, advice)
}

// print prints objects: as a table, or as documents that can be applied. single says that
// the output as JSON is the object and no list.
func (s *shard) print(objects []fold.Offer, single bool, out *command.Output) error {
	if out.IsTable() {
		s.table(objects, out)
		return nil
	}
	var docs []map[string]any
	var errs []error
	for _, o := range objects {
		fields, err := document.Of(o.Key, o.Value)
		if err != nil {
			errs = append(errs, fmt.Errorf("%s cannot be shown as a document: %w", o.Key, err))
			continue
		}
		fields["metadata"].(map[string]any)["resourceVersion"] = s.Version(o).String()
		docs = append(docs, fields)
	}
	switch {
	case single && len(docs) == 1 && !out.IsYAML():
		out.Print(docs[0], nil)
	case out.IsYAML():
		for _, d := range docs {
			b, err := document.YAML(d)
			errs = append(errs, err)
			fmt.Fprintf(out, "---\n%s", b)
		}
	default:
		if docs == nil {
			docs = []map[string]any{}
		}
		out.Print(struct {
			APIVersion string           `json:"apiVersion"`
			Kind       string           `json:"kind"`
			Items      []map[string]any `json:"items"`
		}{"v1", "List", docs}, nil)
	}
	return errors.Join(errs...)
}

func (s *shard) table(objects []fold.Offer, out *command.Output) {
	if len(objects) == 0 {
		out.Line("%s has no such objects. `meshlog apply -f FILE` creates objects; `meshlog show latest` shows those of all sources.", s.Name)
		return
	}
	t := command.Rows{Head: []string{"KIND", "NAMESPACE", "NAME", "VERSION", "GOOD", "FROM"}}
	for _, o := range objects {
		t.Add(o.Key.Kind, o.Key.Namespace, o.Key.Name, s.Version(o), good(&o), o.Origin)
	}
	out.Rows(&t)
}

func good(o *fold.Offer) command.Cell {
	for _, p := range o.Problems {
		if p.Severity == problem.Error {
			return command.Cell{Text: "no: " + p.Error(), Color: command.Red}
		}
	}
	if len(o.Problems) > 0 {
		return command.Cell{Text: "yes, " + command.Plural(len(o.Problems), "warning", "warnings"), Color: command.Yellow}
	}
	return command.Cell{Text: "yes"}
}
