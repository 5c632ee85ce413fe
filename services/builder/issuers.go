package builder

import (
	"maps"
	"slices"
	"strings"

	"google.golang.org/protobuf/proto"

	reportv1 "meshlog.dev/proto/meshlog/report/v1"
	"meshlog.dev/services/mesh/jwks"
	"meshlog.dev/services/mesh/kind"
	"meshlog.dev/services/mesh/world"
)

// Bounds of a message with issuers, which the bus must take.
const (
	maxIssuers     = 1000
	maxUnnamed     = 1000
	maxIssuersSize = 256 << 10
	// issuersEvery is after how many ticks the issuers are repeated, for a watcher that
	// has just started.
	issuersEvery = 5
)

// keysOf begins the names of the shards with the keys of token issuers.
const keysOf = "jwks/"

// Issuers returns the token issuers that the head names, nil if this builder does not
// lead, or the world of the head is not here: another one may lack the policies of a
// source that has not listed yet, and the keys of their issuers would be removed. A first
// version that waits for nothing but these keys names them as the head does: their watcher
// cannot list before it knows the issuers.
func (m *Machine) Issuers() *reportv1.Issuers {
	if !m.leader {
		return nil
	}
	built := m.draft.err == nil && m.draft.unbuilt.records == 0
	if built && m.named.world != m.draft.world && (m.chain.head.Manifest != nil && !m.chain.worthAVersion() || waitsForKeys(m.waiting)) {
		m.named.world, m.named.issuers = m.draft.world, issuersOf(m.draft.world)
		m.named.issuers.Builder = m.cfg.ID
	}
	return m.named.issuers
}

// waitsForKeys says whether the next version waits for keys of token issuers alone.
func waitsForKeys(waiting []string) bool {
	return len(waiting) > 0 && !slices.ContainsFunc(waiting, func(w string) bool { return !strings.HasPrefix(w, keysOf) })
}

// named are the issuers that a world names.
type named struct {
	world   *world.World
	issuers *reportv1.Issuers
}

// issuersOf returns the issuers that a world names.
func issuersOf(w *world.World) *reportv1.Issuers {
	by := map[jwks.Issuer]string{}
	for o := range w.Objects("RequestAuthentication") {
		m, byProxies, _ := kind.RequestAuthentication(o.Message) // nil: a value that could not be read
		if byProxies {
			continue // POL-13
		}
		for _, rule := range m.GetJwtRules() {
			i := jwks.Issuer{Issuer: rule.GetIssuer(), URI: rule.GetJwksUri()}
			if _, known := by[i]; !known && rule.GetJwks() == "" {
				by[i] = o.Key.Namespace + "/" + o.Key.Name
			}
		}
	}
	out, size, names := &reportv1.Issuers{}, 0, map[string]bool{}
	for _, i := range slices.SortedFunc(maps.Keys(by), jwks.Issuer.Compare) {
		names[i.ObjectName()] = true
		next := &reportv1.Issuer{Issuer: i.Issuer, JwksUri: i.URI, NamedBy: by[i]}
		if size += proto.Size(next); len(out.GetIssuers()) == maxIssuers || size > maxIssuersSize {
			out.LeftOut++
			continue
		}
		out.Issuers = append(out.Issuers, next)
	}
	for o := range w.Objects("Jwks") {
		if !names[o.Key.Name] && len(out.GetUnnamed()) < maxUnnamed {
			out.Unnamed = append(out.Unnamed, o.Key.Name)
		}
	}
	return out
}

// offer publishes the issuers: when they changed, and every few ticks.
func (b *Builder) offer() error {
	next := b.m.Issuers()
	if b.offered.after++; next == nil || b.o.Offer == nil || b.offered.after < issuersEvery && proto.Equal(next, b.offered.issuers) {
		return nil
	}
	b.offered.issuers, b.offered.after = next, 0
	return b.o.Offer(next)
}

// offered are the issuers that were published last.
type offered struct {
	issuers *reportv1.Issuers
	after   int // ticks since
}
