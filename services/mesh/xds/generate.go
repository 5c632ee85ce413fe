package xds

import (
	"slices"
	"strings"

	"meshlog.dev/proto/ident"
	"meshlog.dev/services/mesh/index"
	"meshlog.dev/services/mesh/problem"
	"meshlog.dev/services/mesh/xds/cluster"
	"meshlog.dev/services/mesh/xds/listener"
	"meshlog.dev/services/mesh/xds/nametable"
	"meshlog.dev/services/mesh/xds/patch"
	"meshlog.dev/services/mesh/xds/piece"
	"meshlog.dev/services/mesh/xds/policy"
	"meshlog.dev/services/mesh/xds/route"
	"meshlog.dev/services/mesh/xds/secret"
)

// partsOf returns the parts of the resources of type t for a class; of several
// resources of one name the first wins, so raw resources come first. It reads
// only what decides which parts there are; the parts read their content
// themselves.
func partsOf(r *index.Reader, class index.ProxyClass, t ident.ResourceType) []piece.Part {
	var parts []piece.Part
	switch t {
	case ident.CDS:
		parts = cluster.Clusters(r, class.CDS)
	case ident.EDS:
		parts = cluster.Endpoints(r, class.EDS)
	case ident.LDS:
		parts = listener.Listeners(r, class.LDS)
	case ident.RDS:
		parts = route.Routes(r, class.RDS)
	case ident.ECDS:
		parts = policy.Parts(r, class.ECDS)
	case ident.SDS:
		parts = secret.Parts(r, class.SDS)
	case ident.NDS:
		parts = nametable.Parts(r, class.NDS)
	}
	parts, added, others := patch.Parts(kindOfClient(class, t), t, class.Filters(t), parts)
	raw, own := rawParts(r, t, class.Raw(t))
	if t == ident.LDS && class.LDS.Client == index.ClientRouter {
		return slices.Concat(raw, added, parts, own, others) // the listeners of Gateways come before own ones (POL-17)
	}
	return slices.Concat(raw, own, added, others, parts)
}

// rawPart is a raw resource, served with the bytes from the log.
type rawPart struct {
	t        ident.ResourceType
	selector string
	name     string
}

// rawParts returns the raw resources of the selectors that matched, those apart that reach
// only their own namespace.
func rawParts(r *index.Reader, t ident.ResourceType, selected index.SelectorSet) (all, own []piece.Part) {
	var found []*index.RawResource
	for _, s := range selected.Selectors() {
		found = append(found, r.Raw(t, s)...)
	}
	slices.SortFunc(found, func(a, b *index.RawResource) int {
		if c := strings.Compare(a.Name, b.Name); c != 0 {
			return c
		}
		return r.CompareRaw(a, b)
	})
	found = slices.CompactFunc(found, func(a, b *index.RawResource) bool { return a.Name == b.Name })
	for _, raw := range found {
		p := rawPart{t, raw.Selector.String(), raw.Name}
		if raw.Own {
			own = append(own, p)
		} else {
			all = append(all, p)
		}
	}
	return all, own
}

func (p rawPart) Make(r *index.Reader) ([]piece.Piece, []problem.Diagnostic) {
	raw := r.RawOne(p.t, p.selector, p.name)
	if raw == nil {
		return nil, nil
	}
	return []piece.Piece{{Name: p.name, Value: raw.Value}}, nil
}
