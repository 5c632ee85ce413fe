package frontend

import (
	"cmp"
	"crypto/sha256"
	"slices"
	"strings"

	reportv1 "meshlog.dev/proto/meshlog/report/v1"
)

// place is where a client connects from. Unlike its node, it is no claim of the
// client.
type place struct {
	// identity is the name in the client's certificate; empty: it has none.
	identity string
	// address is that of addressOf.
	address string
}

// payers are those for whose shares of --classes the classes of the stream's proxy
// count: its address and its identity, if their streams are limited.
func (c *conn) payers() []string {
	var all []string
	if l := c.server.cfg.Limits; c.place.address != "" && l.StreamsPerAddress > 0 {
		all = append(all, "address "+c.place.address)
	}
	if l := c.server.cfg.Limits; c.place.identity != "" && l.StreamsPerIdentity > 0 {
		all = append(all, "identity "+c.place.identity)
	}
	return all
}

// maxRejectors is how many proxies a verdict names.
const maxRejectors = 8

// rejectorsOf returns the proxies that reject a resource, one for each place, the
// first by node id. If there are many places, which ones are named depends on the
// resource: a quarantine is charged to one of them, and each may cause only some.
func (t *tally) rejectorsOf() []*reportv1.Rejector {
	type where struct {
		place
		id string // only if the place is unknown: no network connection
	}
	at := map[where]string{}
	for _, r := range t.rejectors {
		key := where{place: r.place}
		if r.place == (place{}) {
			key.id = r.proxy.ID
		}
		if id, seen := at[key]; !seen || r.proxy.ID < id {
			at[key] = r.proxy.ID
		}
	}
	type one struct {
		order [32]byte
		*reportv1.Rejector
	}
	all := make([]one, 0, len(at))
	for w, id := range at {
		r := &reportv1.Rejector{Proxy: strings.ToValidUTF8(id, ""), Identity: w.identity, Address: w.address}
		all = append(all, one{sha256.Sum256([]byte(strings.Join([]string{w.identity, w.address, w.id, string(t.Sum[:])}, "\x00"))), r})
	}
	slices.SortFunc(all, func(a, b one) int { return cmp.Compare(string(a.order[:]), string(b.order[:])) })
	rejectors := make([]*reportv1.Rejector, 0, maxRejectors)
	for _, r := range all[:min(len(all), maxRejectors)] {
		rejectors = append(rejectors, r.Rejector)
	}
	slices.SortFunc(rejectors, func(a, b *reportv1.Rejector) int { return cmp.Compare(a.GetProxy(), b.GetProxy()) })
	return rejectors
}
