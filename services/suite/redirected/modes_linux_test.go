package redirected_test

import (
	"cmp"
	"context"
	"crypto/tls"
	"fmt"
	"net"
	"net/http"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"meshlog.dev/deploy/testkit/certtest"
	"meshlog.dev/deploy/testkit/program"
)

// trusting returns the TLS settings of a client that does not look at the server's
// certificate, offers these names by ALPN, and has these certificates.
func trusting(protocols []string, pairs ...certtest.Pair) *tls.Config {
	c := &tls.Config{NextProtos: protocols, MinVersion: tls.VersionTLS12, InsecureSkipVerify: true} //nolint:gosec // the server's identity is not what is tried here
	for _, p := range pairs {
		c.Certificates = append(c.Certificates, p.TLS())
	}
	return c
}

// caller is a way to call web, with the outcome that a mode and a port give it.
type caller struct {
	way
	ports []string
	want  func(mode string, p port) string
}

// unknown is the outcome of a call in plain text.
func unknown(mode string, p port) string {
	switch {
	case mode == "STRICT":
		return closed
	case p.speaks == "http":
		return plain
	}
	return arrives
}

// callers returns each way of T-1 in which the caller speaks first.
func (r *rig) callers() []caller {
	always := func(outcome string) func(string, port) string { return func(string, port) string { return outcome } }
	ofMesh := func(mode string, p port) string { // in mutual TLS, if the port takes that
		switch {
		case p.speaks != "http":
			return arrives
		case mode == "DISABLE":
			return plain
		}
		return as
	}
	mutual := func(mode string, _ port) string { // a peer without a sidecar, in mutual TLS whatever the mode is
		if mode == "DISABLE" {
			return closed
		}
		return as
	}
	requests, connections := []string{"http", "auto"}, []string{"tcp", "auto-tcp"}
	both, plainly := append([]string{"http2"}, requests...), append(connections, requests...)
	all := []caller{
		{way{name: "sidecar", from: r.client, to: serviceIP}, plainly, ofMesh},
		{way{name: "sidecar, h2", from: r.client, to: serviceIP, h2: true}, both, ofMesh},
		{way{name: "sidecar, own TLS", from: r.client, to: serviceIP, tls: trusting(nil)}, []string{"tls", "auto-tls"}, always(arrives)},
		{way{name: "sidecar, pod IP", from: r.client, to: webIP}, plainly, unknown},
		{way{name: "plain", from: r.node, to: webIP}, plainly, unknown},
		{way{name: "plain, h2", from: r.node, to: webIP, h2: true}, both, unknown},
		{way{name: "foreign TLS", from: r.node, to: webIP, tls: trusting(nil)}, []string{"tls", "auto-tls"}, unknown},
		{way{name: "foreign TLS", from: r.node, to: webIP, tls: trusting(nil)}, requests, always(closed)},
		{way{name: "peer", from: r.node, to: webIP, tls: trusting([]string{"istio-http/1.1", "istio"}, r.certs.Peer("x", clientIdentity))}, requests, mutual},
	}
	for _, stranger := range []way{
		{name: "no certificate", tls: trusting([]string{"istio"})},
		{name: "of another CA", tls: trusting([]string{"istio"}, certtest.NewCA("other").Peer("x", clientIdentity))},
		{name: "of another trust domain", tls: trusting([]string{"istio"}, r.certs.Peer("x", "spiffe://other.example/ns/client/sa/client"))},
		{name: "without an identity", tls: trusting([]string{"istio"}, r.certs.Peer("x"))},
	} {
		stranger.from, stranger.to = r.node, webIP
		all = append(all, caller{stranger, []string{"http", "tcp", "auto", "auto-tcp"}, always(closed)})
	}
	return all
}

// T-1: with redirection, what reaches a workload by the mode of its port, the protocol of the
// port, and what the caller speaks (MTLS-1 to MTLS-4, MTLS-7 to MTLS-10, DR-19, PA-4), for
// the mode of the workload and for that of a port.
func TestModes(t *testing.T) {
	t.Parallel()
	for _, mode := range []string{"PERMISSIVE", "STRICT", "DISABLE"} {
		t.Run(mode, func(t *testing.T) {
			t.Parallel()
			r := newRig(t, settings{})
			r.mode(mode)
			r.check(func(port) string { return mode })
		})
	}
	t.Run("modes of ports", func(t *testing.T) {
		t.Parallel()
		own := map[string]string{
			"http": "PERMISSIVE", "auto-tcp": "PERMISSIVE", "auto-tls": "PERMISSIVE", "auto": "DISABLE", "tcp": "DISABLE", "tls": "DISABLE",
		}
		var levels []string
		for name, mode := range own {
			levels = append(levels, fmt.Sprintf("%d: {mode: %s}", portOf(name).target, mode))
		}
		r := newRig(t, settings{})
		r.mode("STRICT", levels...)
		r.check(func(p port) string { return cmp.Or(own[p.name], "STRICT") })
	})
}

// T-1, MTLS-9: with redirection, a server that speaks first is heard at once through
// sidecars where the service says that the port is TCP, and after the time that a listener
// waits for the first bytes elsewhere; a STRICT port refuses a plain caller.
func TestServerFirst(t *testing.T) {
	t.Parallel()
	r := newRig(t, settings{})
	if got := r.outcome(way{from: r.client, to: serviceIP}, portOf("auto-first")); got != arrives {
		t.Errorf("a mesh that does not say how long to wait for the client: %s", got)
	}
	r.publish(detection + "0.3s}")
	for _, mode := range []string{"PERMISSIVE", "STRICT", "DISABLE"} {
		r.mode(mode)
		for _, c := range []caller{
			{way{name: "sidecar", from: r.client, to: serviceIP}, nil, func(string, port) string { return arrives }},
			{way{name: "sidecar, pod IP", from: r.client, to: webIP}, nil, unknown},
			{way{name: "plain", from: r.node, to: webIP}, nil, unknown},
		} {
			for _, name := range []string{"first", "auto-first"} {
				if got, want := r.outcome(c.way, portOf(name)), c.want(mode, portOf(name)); got != want {
					t.Errorf("%s: %s to %s: %s, want %s", mode, c.name, name, got, want)
				}
			}
		}
	}
	r.publish(detection + "60s}")
	r.mode("STRICT")
	if got := r.outcome(way{from: r.client, to: serviceIP}, portOf("first")); got != arrives {
		t.Errorf("a port that is known as TCP waits for the client: %s", got)
	}
}

// MTLS-10: on a port whose protocol is detected, a plain caller that waits longer than the
// listener is not read, so its header about a certificate arrives. On a port that is known
// as HTTP it never does.
func TestSlowCaller(t *testing.T) {
	t.Parallel()
	r := newRig(t, settings{documents: detection + "0.1s}"})
	for name, forged := range map[string]bool{"auto": true, "http": false} {
		p := portOf(name)
		c, err := way{from: r.node, to: webIP}.dial(t.Context(), p)
		r.must(err)
		listener := "listener.0.0.0.0_15006.downstream_pre_cx_active"
		ctx, cancel := context.WithTimeout(t.Context(), waitLimit)
		defer cancel()
		r.must(program.Until(ctx, "the listener to go on", func(context.Context) error {
			if n := r.stat(r.web, listener); n != "0" || r.stat(r.web, "listener.0.0.0.0_15006.downstream_cx_active") != "1" {
				return fmt.Errorf("%s connections wait", n)
			}
			return nil
		}))
		got, err := request(ctx, &http.Transport{DialContext: func(context.Context, string, string) (net.Conn, error) { return c, nil }}, way{}, p)
		if err != nil || strings.Contains(got, "forged") != forged {
			t.Errorf("%s: %q, %v; want the forged header to arrive: %v", name, got, err, forged)
		}
		r.must(c.Close())
		r.must(program.Until(ctx, "the end of the connection", func(context.Context) error {
			if n := r.stat(r.web, "listener.0.0.0.0_15006.downstream_cx_active"); n != "0" {
				return fmt.Errorf("%s connections", n)
			}
			return nil
		}))
	}
}

// detection begins a MeshConfig that says how long listeners wait for the first bytes.
const detection = `
apiVersion: mesh.istio.io/v1alpha1
kind: MeshConfig
metadata: {name: default}
spec: {protocolDetectionTimeout: `

// check calls web in each way.
func (r *rig) check(modeOf func(port) string) {
	r.Helper()
	calls := 0
	for _, c := range r.callers() {
		for _, name := range c.ports {
			p := portOf(name)
			calls++
			if got, want := r.outcome(c.way, p), c.want(modeOf(p), p); got != want {
				r.Errorf("%s to %s: %s, want %s", c.name, name, got, want)
			}
		}
	}
	r.Logf("%d calls", calls)
}

// T-1: with redirection, while a port goes from PERMISSIVE to STRICT and back, no call of a
// client of the mesh fails, on new connections to its sidecar and on those that stand.
func TestModesUnderLoad(t *testing.T) {
	t.Parallel()
	r := newRig(t, settings{})
	w := way{name: "sidecar", from: r.client, to: serviceIP}
	ctx, stop := context.WithCancel(t.Context())
	var all sync.WaitGroup
	var calls atomic.Int64
	count := func(p port, got string) {
		if got != as && got != arrives {
			t.Errorf("a call of %s is %s", p.name, got)
		}
		calls.Add(1)
	}
	for _, name := range []string{"http", "auto", "tcp", "auto-tcp"} {
		p := portOf(name)
		all.Go(func() { // each on a connection of its own
			for ctx.Err() == nil {
				count(p, r.outcome(w, p))
			}
		})
		all.Go(func() { r.keep(ctx, w, p, count) })
	}
	for range 5 {
		for _, mode := range []string{"STRICT", "PERMISSIVE"} {
			r.mode(mode)
			for before := calls.Load(); calls.Load() < before+200 && !t.Failed(); runtime.Gosched() {
			}
		}
	}
	stop()
	all.Wait()
	t.Logf("%d calls", calls.Load())
}

// keep calls a port on one connection until ctx ends.
func (r *rig) keep(ctx context.Context, w way, p port, count func(port, string)) {
	if p.speaks == "http" {
		t := w.transport(p)
		defer t.CloseIdleConnections()
		for ctx.Err() == nil {
			got, err := request(context.WithoutCancel(ctx), t, w, p)
			count(p, judge(got, err, w, p))
		}
		return
	}
	c, err := w.dial(ctx, p)
	if err != nil {
		r.Error(err)
		return
	}
	defer func() { _ = c.Close() }()
	for ctx.Err() == nil {
		got, err := echo(c)
		count(p, judge(got, err, w, p))
	}
}
