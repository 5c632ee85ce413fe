package redirected_test

import "testing"

// noCalls is a policy of web that refuses everything.
const noCalls = `
apiVersion: security.istio.io/v1
kind: AuthorizationPolicy
metadata: {name: closed, namespace: shop}
spec: {action: DENY, rules: [{}]}
`

// MTLS-12: what a workload sends to its own pod, by its address or by its service, passes
// the inbound chains, so policies and modes hold for it. Without the rule for what Envoy
// sends over loopback a call of the address gets past them.
func TestOwnPod(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		name string
		redirection
	}{{"REDIRECT", redirection{}}, {"TPROXY", redirection{transparent: true}}} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			r := newRig(t, settings{redirection: test.redirection})
			address := way{name: "its address", from: r.web, to: webIP}
			service := way{name: "its service", from: r.web, to: serviceIP}
			expect := func(what string, w way, want string) {
				t.Helper()
				w.identity = webIdentity
				for _, name := range []string{"http", "auto", "tcp", "auto-tcp"} {
					p, want := portOf(name), want
					if want != closed && p.speaks != "http" {
						want = arrives
					}
					if got := r.outcome(w, p); got != want {
						t.Errorf("%s: %s, %s: %s, want %s", what, w.name, name, got, want)
					}
				}
			}
			expect("no policy", address, plain)
			expect("no policy", service, as)
			r.mode("STRICT")
			expect("STRICT", address, closed)
			expect("STRICT", service, as)
			r.mode("PERMISSIVE")
			r.publish(noCalls)
			expect("DENY", address, closed)
			expect("DENY", service, closed)
		})
	}
	t.Run("without the rule", func(t *testing.T) {
		t.Parallel()
		r := newRig(t, settings{redirection: redirection{open: true}, documents: noCalls})
		for _, name := range []string{"http", "tcp"} {
			p := portOf(name)
			if got := r.outcome(way{from: r.node, to: webIP}, p); got != closed {
				t.Errorf("DENY: a caller elsewhere, %s: %s", name, got)
			}
			if got := r.outcome(way{from: r.web, to: webIP}, p); got == closed {
				t.Errorf("%s: the call of the own pod does not get past the policy, so the rule is not needed", name)
			}
			// The client's side of the sidecar encrypts, and nothing decrypts.
			if got := r.outcome(way{from: r.web, to: serviceIP}, p); got == as {
				t.Errorf("%s: the call of the own service: %s", name, got)
			}
		}
	})
}
