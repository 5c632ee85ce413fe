package frontend_test

import (
	"testing"
	"time"

	"meshlog.dev/deploy/testkit/certtest"
	registryv1 "meshlog.dev/proto/meshlog/registry/v1"
	"meshlog.dev/services/mesh/meshtest"
)

// CA-9, S17: a revocation list in the TrustBundle counts at sidecars that get the roots from
// the frontend: a server refuses the revoked client in its next handshake, and a client
// refuses the revoked server. If the list has ended, the server refuses every client.
func TestRevokedPeers(t *testing.T) {
	t.Parallel()
	ca := certtest.NewCA("mesh")
	web, client := ca.Peer("web", webIdentity), ca.Peer("client", clientIdentity)
	p := newPeersBy(t, map[string]certtest.Pair{"web": web, "client": client}, "")
	p.mode("STRICT")
	trust := func(list []byte) {
		t.Helper()
		p.applied(p.mesh.Publish(meshtest.Object("TrustBundle", "", "cluster.local", &registryv1.TrustBundle{
			TrustDomain: "cluster.local", Crl: string(list),
			Roots: []*registryv1.Root{{Certificate: string(ca.PEM()), State: registryv1.RootState_ROOT_STATE_ACTIVE}},
		})))
	}
	stolen := ca.Peer("stolen", clientIdentity)
	by := func(name string, pair certtest.Pair) way { return way{name: name, outside: true, tls: showing(pair)} }
	expect := func(what string, w way, may bool) {
		t.Helper()
		if got, err := p.call(w, "tcp"); (err == nil) != may {
			t.Errorf("%s: %s: %q, %v; may pass: %v", what, w.name, got, err, may)
		}
	}
	sidecar, lasts := way{name: "sidecar"}, time.Now().Add(time.Hour)
	trust(nil)
	for _, w := range []way{by("stolen", stolen), by("own", client), sidecar} {
		expect("no list", w, true)
	}
	trust(ca.RevocationList(lasts, stolen))
	expect("one is revoked", by("stolen", stolen), false)
	expect("one is revoked", by("own", client), true)
	expect("one is revoked", sidecar, true)
	trust(ca.RevocationList(lasts, web))
	expect("the server is revoked", sidecar, false)
	expect("the server is revoked", by("stolen", stolen), true)
	trust(ca.RevocationList(time.Now().Add(-time.Hour)))
	expect("the list has ended", by("own", client), false)
}
