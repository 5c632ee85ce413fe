package frontend_test

import (
	"crypto/sha256"
	"encoding/pem"
	"fmt"
	"slices"
	"testing"

	"meshlog.dev/deploy/testkit/certtest"
	"meshlog.dev/proto/ident"
	registryv1 "meshlog.dev/proto/meshlog/registry/v1"
	reportv1 "meshlog.dev/proto/meshlog/report/v1"
	. "meshlog.dev/services/mesh/meshtest"
)

// CA-10: a frontend reports the roots that it serves, and how many streams have applied
// which: a stream counts when it has ACKed them, and with the old ones until then. One that
// does not ask for them does not count.
func TestRootsAreReported(t *testing.T) {
	p := startTLS(t, true)
	older, newer := certtest.NewCA("older"), certtest.NewCA("newer")
	sum := func(ca *certtest.CA) string {
		block, _ := pem.Decode(ca.PEM())
		s := sha256.Sum256(block.Bytes)
		return string(s[:])
	}
	publish := func(roots ...*certtest.CA) {
		b := &registryv1.TrustBundle{TrustDomain: "cluster.local"}
		for i, r := range roots {
			b.Roots = append(b.Roots, &registryv1.Root{Certificate: string(r.PEM()), State: registryv1.RootState(i + 1)})
		}
		p.serves(p.mesh.Publish(Object("TrustBundle", "", "cluster.local", b)))
	}
	same := func(got [][]byte, want ...*certtest.CA) bool {
		var sums []string
		for _, ca := range want {
			sums = append(sums, sum(ca))
		}
		slices.Sort(sums)
		return slices.EqualFunc(got, sums, func(b []byte, s string) bool { return string(b) == s })
	}
	applied := func(r *reportv1.FrontendReport, streams uint32, want ...*certtest.CA) bool {
		return slices.ContainsFunc(r.GetRootsApplied(), func(a *reportv1.RootsApplied) bool { return a.GetStreams() == streams && same(a.GetRoots(), want...) })
	}
	publish(older)
	client := p.clientCA.Client("cart", "spiffe://cluster.local/ns/default/sa/cart")
	follows, lags, other := p.join(t, client, node("follows", "demo")), p.join(t, client, node("lags", "demo")), p.join(t, client, node("other", "demo"))
	for _, e := range []*envoy{follows, lags, other} {
		e.ack(e.receive())
	}
	for _, e := range []*envoy{follows, lags} {
		e.ask(ident.SDS, "ROOTCA")
		e.ack(e.receive(), "ROOTCA")
	}
	p.until("both have the root", func(r *reportv1.FrontendReport) bool { return applied(r, 2, older) })

	publish(older, newer)
	follows.ack(follows.receive(), "ROOTCA")
	p.until("one has both roots", func(r *reportv1.FrontendReport) bool { return applied(r, 1, older, newer) && applied(r, 1, older) })
	r := p.server.Report()
	if !same(r.GetRoots(), older, newer) {
		t.Errorf("%d roots are reported as served", len(r.GetRoots()))
	}
	for _, x := range r.GetProxies() {
		want := map[string][]*certtest.CA{"follows": {older, newer}, "lags": {older}, "other": nil}[x.GetId()]
		if gets := x.GetId() != "other"; x.GetGetsRoots() != gets || !same(x.GetRoots(), want...) {
			t.Errorf("%s: gets them %v, has %d", x.GetId(), x.GetGetsRoots(), len(x.GetRoots()))
		}
	}
	lags.ack(lags.receive(), "ROOTCA")
	p.until("both have both roots", func(r *reportv1.FrontendReport) bool {
		return applied(r, 2, older, newer) && len(r.GetRootsApplied()) == 1
	})
}

// CA-10, CA-13: a stream that verifies peers of several trust domains has applied those roots
// of the mesh that are in all secrets which it gets.
func TestRootsAmongThoseOfOtherDomains(t *testing.T) {
	p := startTLS(t, true)
	older, newer, far := certtest.NewCA("older"), certtest.NewCA("newer"), certtest.NewCA("far")
	publish := func(roots ...*certtest.CA) {
		b := &registryv1.TrustBundle{TrustDomain: "cluster.local"}
		for i, r := range roots {
			b.Roots = append(b.Roots, &registryv1.Root{Certificate: string(r.PEM()), State: registryv1.RootState(i + 1)})
		}
		p.serves(p.mesh.Publish(append(YAML(t, fmt.Sprintf(`
apiVersion: mesh.istio.io/v1alpha1
kind: MeshConfig
metadata: {name: default}
spec: {caCertificates: [{trustDomains: [two.example], pem: %q}]}
`, far.PEM())), Object("TrustBundle", "", "cluster.local", b))...))
	}
	applied := func(want ...int) func(*reportv1.FrontendReport) bool {
		return func(r *reportv1.FrontendReport) bool {
			var got []int
			for _, a := range r.GetRootsApplied() {
				for range a.GetStreams() {
					got = append(got, len(a.GetRoots()))
				}
			}
			slices.Sort(got)
			return slices.Equal(got, want)
		}
	}
	const several = "ROOTCA:cluster.local,two.example"
	publish(older)
	client := p.clientCA.Client("cart", "spiffe://cluster.local/ns/default/sa/cart")
	both, only := p.join(t, client, node("both", "demo")), p.join(t, client, node("only", "demo"))
	for _, e := range []*envoy{both, only} {
		e.ack(e.receive())
	}
	both.ask(ident.SDS, "ROOTCA", several)
	for range 2 {
		both.ack(both.receive(), "ROOTCA", several)
	}
	only.ask(ident.SDS, several)
	only.ack(only.receive(), several)
	p.until("both have the mesh's root", applied(1, 1))
	publish(older, newer)
	only.ack(only.receive(), several)
	both.ack(both.receive(), "ROOTCA", several)
	p.until("one has the new root in one secret only", applied(1, 2))
	both.ack(both.receive(), "ROOTCA", several)
	p.until("both have the new root", applied(2, 2))
}
