package redirected_test

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"net"
	"strings"
	"testing"
	"time"
)

// adminEntry is a ServiceEntry of web's namespace that names the ports of its sidecar, which
// an attacker who may write there wants to reach.
const adminEntry = `
apiVersion: networking.istio.io/v1
kind: ServiceEntry
metadata: {name: admin, namespace: shop}
spec:
  hosts: [admin.example]
  addresses: [10.98.0.2]
  location: MESH_INTERNAL
  resolution: STATIC
  ports: [%s]
  endpoints: [{address: 10.97.0.3, serviceAccount: web, labels: {app: web}}]
`

// adminPorts are the ports of web's sidecar: of Envoy's administration on loopback, and
// those that an agent has on all addresses.
var adminPorts = []int{15000, 15020, 15021, 15090}

func newWalls(t *testing.T, to redirection, policy string) *rig {
	t.Helper()
	var all []string
	for _, p := range append([]int{15001, 15006}, adminPorts...) {
		all = append(all, fmt.Sprintf("{number: %d, name: tcp-%[1]d, protocol: TCP}", p))
	}
	r := newRig(t, settings{redirection: to, documents: fmt.Sprintf(adminEntry, strings.Join(all, ", "))})
	r.publish(detection + "0.3s, inboundTrafficPolicy: {mode: " + policy + "}}")
	for _, p := range adminPorts[1:] {
		go accept(r.web.listen(fmt.Sprintf("0.0.0.0:%d", p)), true)
	}
	return r
}

// ask sends a request to an address and returns the first line of the answer.
func (r *rig) ask(from *namespace, address string) (string, error) {
	ctx, cancel := context.WithTimeout(r.Context(), 20*time.Second)
	defer cancel()
	c, err := from.dial(ctx, address)
	if err != nil {
		return "", err
	}
	defer func() { _ = c.Close() }()
	if err := c.SetDeadline(time.Now().Add(20 * time.Second)); err != nil {
		return "", err
	}
	if _, err := io.WriteString(c, "GET /server_info HTTP/1.1\r\nhost: x\r\n\r\n"); err != nil {
		return "", err
	}
	return bufio.NewReader(c).ReadString('\n')
}

// MTLS-14: no connection through the inbound listener reaches the ports of the sidecar
// itself, from outside, from the mesh by a service that names them, and from the own pod,
// whatever inboundTrafficPolicy says. One to 15001 or 15006 itself ends there.
func TestSidecarPorts(t *testing.T) {
	t.Parallel()
	for _, policy := range []string{"PASSTHROUGH", "LOCALHOST"} {
		t.Run(policy, func(t *testing.T) {
			t.Parallel()
			r := newWalls(t, redirection{all: true}, policy)
			// The ports answer, where nothing is redirected.
			for _, p := range adminPorts {
				if got, err := r.ask(r.web, fmt.Sprintf("127.0.0.1:%d", p)); err != nil {
					t.Fatalf("the port %d of the sidecar: %q, %v", p, got, err)
				}
			}
			for _, c := range []struct {
				name string
				from *namespace
				to   string
			}{{"from outside", r.node, webIP}, {"from a sidecar", r.client, webIP}, {"by a service", r.client, "10.98.0.2"}, {"from the own pod", r.web, webIP}, {"from the own pod by a service", r.web, "10.98.0.2"}} {
				for _, p := range append([]int{15001, 15006}, adminPorts...) {
					if got, err := r.ask(c.from, fmt.Sprintf("%s:%d", c.to, p)); err == nil {
						t.Errorf("%s the port %d answers %q", c.name, p, got)
					}
				}
			}
		})
	}
}

// LSN-1, LSN-2: with the ports of probes left alone, a call to the sidecar's listeners
// is one connection: it does not come back to them.
func TestNoLoops(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		name string
		redirection
	}{{"REDIRECT", redirection{}}, {"TPROXY", redirection{transparent: true}}} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			r := newWalls(t, test.redirection, "PASSTHROUGH")
			connections := func() int {
				return count(t, r.stat(r.web, "listener.0.0.0.0_15001.downstream_cx_total")) + count(t, r.stat(r.web, "listener.0.0.0.0_15006.downstream_cx_total"))
			}
			for _, c := range []struct {
				from *namespace
				to   string
			}{{r.node, webIP + ":15001"}, {r.node, webIP + ":15006"}, {r.web, "127.0.0.1:15001"}, {r.web, "127.0.0.1:15006"}} {
				before := connections()
				if got, err := r.ask(c.from, c.to); err == nil {
					t.Errorf("%s answers %q", c.to, got)
				}
				if n := connections() - before; n != 1 {
					t.Errorf("a call of %s is %d connections to the sidecar, want 1", c.to, n)
				}
			}
			if got, err := r.ask(r.node, net.JoinHostPort(webIP, "15000")); err == nil {
				t.Errorf("Envoy's administration answers %q", got)
			}
			for _, p := range []string{"15020", "15021", "15090"} {
				if got, err := r.ask(r.node, net.JoinHostPort(webIP, p)); err != nil || got != "hello "+nodeIP+"\n" {
					t.Errorf("a probe of port %s: %q, %v", p, got, err)
				}
			}
		})
	}
}

func count(t *testing.T, text string) (n int) {
	t.Helper()
	if _, err := fmt.Sscan(text, &n); err != nil {
		t.Fatalf("a counter of Envoy is %q: %v", text, err)
	}
	return n
}

// MC-4: with inboundTrafficPolicy LOCALHOST a workload that listens on loopback is called
// there, on the ports that services name, and policies and modes hold.
func TestLocalhost(t *testing.T) {
	t.Parallel()
	r := newWalls(t, redirection{}, "LOCALHOST")
	go accept(r.web.listen("127.0.0.1:9100"), true)
	r.publish(`
apiVersion: networking.istio.io/v1
kind: ServiceEntry
metadata: {name: local, namespace: shop}
spec:
  hosts: [local.example]
  addresses: [10.98.0.3]
  location: MESH_INTERNAL
  resolution: STATIC
  ports: [{number: 80, name: tcp, protocol: TCP, targetPort: 9100}]
  endpoints: [{address: 10.97.0.3, serviceAccount: web, labels: {app: web}}]
`)
	r.mode("STRICT")
	if got, err := r.ask(r.client, "10.98.0.3:80"); err != nil || got != "hello 127.0.0.1\n" {
		t.Errorf("a call of the service: %q, %v", got, err)
	}
	if got, err := r.ask(r.node, net.JoinHostPort(webIP, "9100")); err == nil {
		t.Errorf("a plain call: %q", got)
	}
}
