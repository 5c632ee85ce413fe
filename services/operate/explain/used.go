package explain

import (
	"meshlog.dev/proto/ident"
	"meshlog.dev/services/builder/ledger"
	"meshlog.dev/services/mesh/proxy"
	"meshlog.dev/services/mesh/why"
	"meshlog.dev/services/operate/command"
	"meshlog.dev/store"
)

// Use is what a proxy is served of a type, and was made from an object.
type Use struct {
	Proxy     string
	Type      string // CDS, EDS, ...
	Word      string // of `meshlog why`; empty: it explains none of this type
	Resources []string
}

// UsedBy returns the resources of proxies that are made from an object of a content.
func UsedBy(content *store.Snapshot, k ident.Key, proxies []*proxy.Proxy) ([]Use, error) {
	w, err := ledger.World(content)
	if err != nil {
		return nil, err
	}
	used, err := why.Used(w, k, proxies)
	if err != nil {
		return nil, command.NotFound("%s: %w", k, err)
	}
	var all []Use
	for i, p := range proxies {
		for t := range ident.ResourceTypes {
			if len(used[i][t]) > 0 {
				all = append(all, Use{p.ID, t.String(), ResourceWord(t), used[i][t]})
			}
		}
	}
	return all, nil
}
