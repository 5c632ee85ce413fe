package command

import (
	"cmp"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"meshlog.dev/proto/ident"
	"meshlog.dev/services/mesh/kind"
	"meshlog.dev/services/nearest"
)

// Objects selects objects: each field that is not empty must contain the
// object's.
type Objects struct {
	Kinds, Namespaces, Names, Sources, Instances []string
}

// Flags binds the filters.
func (o *Objects) Flags(cmd *cobra.Command) {
	f := cmd.Flags()
	f.StringSliceVar(&o.Kinds, "kind", nil, "only objects of this `kind`")
	f.StringSliceVarP(&o.Namespaces, "namespace", "N", nil, "only objects in this `namespace`")
	f.StringSliceVar(&o.Names, "name", nil, "only objects of this `name`")
	o.SourceFlags(cmd)
}

// SourceFlags binds the filters by source.
func (o *Objects) SourceFlags(cmd *cobra.Command) {
	f := cmd.Flags()
	f.StringSliceVar(&o.Sources, "source", nil, "only objects of this `source`: SOURCE or SOURCE/INSTANCE")
	f.StringSliceVar(&o.Instances, "instance", nil, "only objects of this `instance` of a source")
}

// IsEmpty reports whether every object is selected.
func (o *Objects) IsEmpty() bool {
	return len(o.Kinds)+len(o.Namespaces)+len(o.Names)+len(o.Sources)+len(o.Instances) == 0
}

// Match reports whether key is selected. The zero key, of an overlay, matches
// only if there is no filter.
func (o *Objects) Match(key ident.Key) bool {
	if key == (ident.Key{}) {
		return o.IsEmpty()
	}
	return o.MatchName(key) && o.MatchShard(key.Shard())
}

// MatchName reports whether kind, namespace and name are selected.
func (o *Objects) MatchName(key ident.Key) bool {
	return Among(o.Kinds, key.Kind) && Among(o.Namespaces, key.Namespace) && Among(o.Names, key.Name)
}

// MatchShard reports whether objects of a source are selected.
func (o *Objects) MatchShard(s ident.Shard) bool {
	return (len(o.Sources) == 0 || slices.Contains(o.Sources, s.Source) || slices.Contains(o.Sources, s.String())) && Among(o.Instances, s.Instance)
}

// Among reports whether wanted is empty or has s, in whatever case.
func Among(wanted []string, s string) bool {
	return len(wanted) == 0 || s != "" && slices.ContainsFunc(wanted, func(w string) bool { return strings.EqualFold(w, s) })
}

// ParseKey reads KIND/NAMESPACE/NAME or KIND/NAME, also in the form of tables:
// "KIND NAMESPACE/NAME (SOURCE/INSTANCE)". It adds the sources of only.
func ParseKey(s string, only Objects) (*Objects, error) {
	o := &Objects{Sources: only.Sources, Instances: only.Instances}
	name := s
	if rest, source, ok := strings.Cut(s, " ("); ok && strings.HasSuffix(source, ")") {
		o.Sources, name = append([]string{strings.TrimSuffix(source, ")")}, o.Sources...), rest
	}
	parts := strings.Split(strings.Replace(name, " ", "/", 1), "/")
	if len(parts) < 2 || len(parts) > 3 || slices.Contains(parts, "") {
		return nil, Usage("object %q: want KIND/NAMESPACE/NAME, or KIND/NAME for one without a namespace", s)
	}
	o.Kinds, o.Names = []string{parts[0]}, []string{parts[len(parts)-1]}
	if k, ok := kind.ByName(parts[0]); ok && !k.Namespaced && len(parts) == 3 {
		return nil, Usage("object %q: a %s has no namespace", s, k.Name)
	}
	if len(parts) == 3 {
		o.Namespaces = []string{parts[1]}
	}
	return o, nil
}

// Select returns the selected keys, sorted.
func (o *Objects) Select(known []ident.Key) []ident.Key {
	type found struct {
		row string
		key ident.Key
	}
	var rows []found // a row is made once, and not in each comparison
	for _, key := range known {
		if o.Match(key) {
			rows = append(rows, found{key.Row(), key})
		}
	}
	slices.SortFunc(rows, func(a, b found) int { return cmp.Compare(a.row, b.row) })
	keys := make([]ident.Key, 0, len(rows))
	for _, r := range rows {
		keys = append(keys, r.key)
	}
	return keys
}

// Find is Select for an argument that the user gave: asked. If there is none, the error names the
// nearest one or says what to do.
func (o *Objects) Find(asked string, known []ident.Key, advice string) ([]ident.Key, error) {
	if found := o.Select(known); len(found) > 0 {
		return found, nil
	}
	var names []string
	for _, key := range known {
		names = append(names, Slashed(key))
	}
	slices.Sort(names)
	if near, ok := nearest.Name(asked, names); ok {
		advice = "did you mean " + near + "?"
	}
	return nil, NotFound("object %s: there is none; %s", asked, advice)
}

// Slashed returns a key as it is typed.
func Slashed(k ident.Key) string {
	if k.Namespace == "" {
		return k.Kind + "/" + k.Name
	}
	return k.Kind + "/" + k.Namespace + "/" + k.Name
}
