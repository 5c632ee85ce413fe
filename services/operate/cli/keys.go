package cli

import (
	"cmp"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"meshlog.dev/proto/ident"
	"meshlog.dev/services/internal/process"
	"meshlog.dev/services/mesh/kind"
	"meshlog.dev/services/mesh/world"
	"meshlog.dev/store"
)

// keyPattern says which objects are meant: each that is not empty must match
// one of its values.
type keyPattern struct {
	kinds, namespaces, names, sources, instances []string
}

// flags binds the filters.
func (k *keyPattern) flags(cmd *cobra.Command) {
	f := cmd.Flags()
	f.StringSliceVar(&k.kinds, "kind", nil, "only objects of this `kind`")
	f.StringSliceVarP(&k.namespaces, "namespace", "N", nil, "only objects in this `namespace`")
	f.StringSliceVar(&k.names, "name", nil, "only objects of this `name`")
	k.sourceFlags(cmd)
}

func (k *keyPattern) sourceFlags(cmd *cobra.Command) {
	f := cmd.Flags()
	f.StringSliceVar(&k.sources, "source", nil, "only what this `source` said: SOURCE or SOURCE/INSTANCE")
	f.StringSliceVar(&k.instances, "instance", nil, "only what this `instance` of a source said")
}

// isEmpty says whether every key matches.
func (k *keyPattern) isEmpty() bool {
	return len(k.kinds)+len(k.namespaces)+len(k.names)+len(k.sources)+len(k.instances) == 0
}

// matches says whether key is meant. What has no key, such as an overlay,
// matches only where nothing is asked for.
func (k *keyPattern) matches(key ident.Key) bool {
	if key == (ident.Key{}) {
		return k.isEmpty()
	}
	return among(k.kinds, key.Kind) && among(k.namespaces, key.Namespace) && among(k.names, key.Name) && k.matchesShard(key.Shard())
}

// matchesShard says whether what a source said is meant.
func (k *keyPattern) matchesShard(s ident.Shard) bool {
	return (len(k.sources) == 0 || slices.Contains(k.sources, s.Source) || slices.Contains(k.sources, s.String())) && among(k.instances, s.Instance)
}

func among(wanted []string, s string) bool {
	return len(wanted) == 0 || s != "" && slices.ContainsFunc(wanted, func(w string) bool { return strings.EqualFold(w, s) })
}

// parseKey reads KIND/NAMESPACE/NAME or KIND/NAME, also as tables print it:
// "KIND NAMESPACE/NAME (SOURCE/INSTANCE)".
func parseKey(s string) (*keyPattern, error) {
	k := &keyPattern{}
	name := s
	if rest, source, ok := strings.Cut(s, " ("); ok && strings.HasSuffix(source, ")") {
		k.sources, name = []string{strings.TrimSuffix(source, ")")}, rest
	}
	parts := strings.Split(strings.Replace(name, " ", "/", 1), "/")
	if len(parts) < 2 || len(parts) > 3 || slices.Contains(parts, "") {
		return nil, usage("object %q: want KIND/NAMESPACE/NAME, or KIND/NAME for one without a namespace", s)
	}
	k.kinds, k.names = []string{parts[0]}, []string{parts[len(parts)-1]}
	if kd, ok := kind.ByName(parts[0]); ok && !kd.Namespaced && len(parts) == 3 {
		return nil, usage("object %q: a %s has no namespace", s, kd.Name)
	}
	if len(parts) == 3 {
		k.namespaces = []string{parts[1]}
	}
	return k, nil
}

// find returns the keys that are meant, sorted; where there is none, an error
// with the one that is near, or else with what to do.
func (k *keyPattern) find(asked string, known []ident.Key, otherwise string) ([]ident.Key, error) {
	var found []ident.Key
	for _, key := range known {
		if k.matches(key) {
			found = append(found, key)
		}
	}
	if len(found) > 0 {
		slices.SortFunc(found, func(a, b ident.Key) int { return cmp.Compare(a.Row(), b.Row()) })
		return found, nil
	}
	names := map[string]bool{}
	for _, key := range known {
		names[slashed(key)] = true
	}
	if meant, ok := process.Nearest(asked, sortedNames(names)); ok {
		return nil, notFound("object %s: there is none; did you mean %s?", asked, meant)
	}
	return nil, notFound("object %s: there is none; %s", asked, otherwise)
}

// slashed is a key as it is typed.
func slashed(k ident.Key) string {
	if k.Namespace == "" {
		return k.Kind + "/" + k.Name
	}
	return k.Kind + "/" + k.Namespace + "/" + k.Name
}

func sortedNames(set map[string]bool) []string {
	names := make([]string, 0, len(set))
	for name := range set {
		names = append(names, name)
	}
	slices.Sort(names)
	return names
}

// keysIn are the keys of objects in a content, those under overlays included.
func keysIn(s *store.Snapshot) []ident.Key {
	var keys []ident.Key
	for row := range s.Rows() {
		k, overlay, err := ident.ParseRow(row.Key)
		if err != nil {
			continue
		}
		if overlay == "" {
			keys = append(keys, k)
			continue
		}
		if o, err := world.UnmarshalOverlay(overlay, row.Value); err == nil {
			for _, v := range o.Values {
				if v.Resource == nil {
					keys = append(keys, v.Key)
				}
			}
		}
	}
	slices.SortFunc(keys, func(a, b ident.Key) int { return cmp.Compare(a.Row(), b.Row()) })
	return slices.Compact(keys)
}
