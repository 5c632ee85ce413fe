package redirected_test

import (
	"strings"
	"testing"
)

// LSN-12: with INTERCEPTION_MODE TPROXY a workload sees the address of its caller, in
// mutual TLS and in plain text, and with REDIRECT that of its own sidecar (LSN-11).
func TestAddressOfCaller(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		name             string
		redirection      redirection
		sidecar, outside string
	}{
		{"TPROXY", redirection{transparent: true}, clientIP, nodeIP},
		{"REDIRECT", redirection{}, ownSource, ownSource},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			r := newRig(t, settings{redirection: test.redirection, documents: detection + "1s}"})
			expect := func(w way, want string, names ...string) {
				t.Helper()
				for _, name := range names {
					w.h2 = name == "http2"
					got, err := r.call(w, portOf(name))
					if fields := strings.Fields(got); err != nil || len(fields) < 2 || fields[1] != want {
						t.Errorf("%s to %s: %q, %v; want it from %s", w.name, name, got, err, want)
					}
				}
			}
			expect(way{name: "plain", from: r.node, to: webIP}, test.outside, "http", "http2", "auto", "first")
			r.mode("STRICT")
			expect(way{name: "sidecar", from: r.client, to: serviceIP}, test.sidecar, "http", "http2", "auto", "first")
		})
	}
}
