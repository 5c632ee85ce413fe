//go:build registries

package consul_test

import (
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"meshlog.dev/deploy/testkit/certtest"
	"meshlog.dev/deploy/testkit/consultest"
)

func must(t *testing.T, errs ...error) {
	t.Helper()
	if err := errors.Join(errs...); err != nil {
		t.Fatal(err)
	}
}

// fill registers services svc-FIRST to svc-LAST with instances each on node n, whose
// addresses are 10.x.y.z.
func fill(t *testing.T, c consultest.Client, first, last, instances int) {
	t.Helper()
	must(t, c.Put(t.Context(), "/v1/catalog/register", map[string]any{"Node": "n", "Address": "10.0.0.1"}, nil))
	var ops []any
	for i := first; i <= last; i++ {
		for k := range instances {
			ops = append(ops, map[string]any{"Service": map[string]any{"Verb": "set", "Node": "n", "Service": map[string]any{
				"ID": fmt.Sprintf("svc-%d-%d", i, k), "Service": fmt.Sprintf("svc-%d", i), "Address": fmt.Sprintf("10.%d.%d.%d", i/250, i%250, k+1), "Port": 80,
			}}})
			if len(ops) == 64 || i == last && k == instances-1 {
				must(t, c.Put(t.Context(), "/v1/txn", ops, nil))
				ops = nil
			}
		}
	}
}

func deregister(t *testing.T, c consultest.Client, id string) {
	t.Helper()
	must(t, c.Put(t.Context(), "/v1/catalog/deregister", map[string]any{"Node": "n", "ServiceID": id}, nil))
}

// TST-3, REG-10, CON-8: two of three servers die while polls hang. The source is down within 20 s
// and keeps its objects; when the servers are back, it is read whole.
func TestTST3NoLeader(t *testing.T) {
	c := consultest.StartCluster(t, consultest.Options{})
	fill(t, c.Agent.Client, 1, 20, 1)
	m := watch(t, settings(c.Agent.Addr))
	m.await("20 services", time.Minute, func() bool { return m.services() == 20 && !m.partial })
	var leader string
	_, err := c.Agent.Get(t.Context(), "/v1/status/leader", &leader)
	must(t, err)
	var servers []*consultest.Agent
	for _, s := range c.Servers {
		var self struct{ DebugConfig map[string]any }
		_, err := s.Get(t.Context(), "/v1/agent/self", &self)
		must(t, err)
		if strings.Contains(fmt.Sprint(self.DebugConfig["RPCAdvertiseAddr"], self.DebugConfig["ServerPort"]), leader[strings.LastIndex(leader, ":")+1:]) {
			servers = append([]*consultest.Agent{s}, servers...)
		} else {
			servers = append(servers, s)
		}
	}
	servers[0].Kill()
	servers[1].Kill()
	took := m.await("down", 20*time.Second, func() bool { return m.down != nil })
	t.Logf("down after %s: %v", took, m.down)
	if n := m.services(); n != 20 {
		t.Errorf("%d services are left", n)
	}
	for _, s := range servers[:2] { // neither is ready before both run
		s.Process, err = s.Process.Again()
		must(t, err)
	}
	listed := m.listed
	m.await("listed again", 90*time.Second, func() bool { return m.listed > listed && m.down == nil && !m.partial })
	if n := m.services(); n != 20 {
		t.Errorf("%d services after the servers came back", n)
	}
}

// TST-3, REG-9, CON-2: a restored snapshot lacks half of the services. The watcher notices
// it although no poll ends, and removes nothing until a second listing agrees.
func TestTST3Snapshot(t *testing.T) {
	s := consultest.Start(t, consultest.Options{})
	fill(t, s.Client, 1, 20, 1)
	var snapshot []byte
	_, err := s.Get(t.Context(), "/v1/snapshot", &snapshot)
	must(t, err)
	fill(t, s.Client, 21, 40, 1)
	m := watch(t, settings(s.Addr))
	m.await("40 services", time.Minute, func() bool { return m.services() == 40 && m.status.Report().GetPolled() == 40 })
	must(t, s.Put(t.Context(), "/v1/snapshot", snapshot, nil))
	took := m.await("doubt", 10*time.Second, func() bool { return m.partial && m.status.Report().GetDoubted() != "" })
	t.Logf("doubted after %s: %s", took, m.status.Report().GetDoubted())
	if n := m.services(); n != 40 || !m.says("until then") {
		t.Errorf("%d services while the listing is doubted; problems %v", n, m.said)
	}
	took = m.await("the second listing", 50*time.Second, func() bool { return !m.partial })
	if n := m.services(); n != 20 || took < 25*time.Second {
		t.Errorf("%d services after %s, want 20 after 30 s", n, took)
	}
	if d := m.status.Report().GetDoubted(); d != "" {
		t.Errorf("still doubted: %s", d)
	}
}

const readAll = `service_prefix "" { policy = "read" } node_prefix "" { policy = "read" }`

// TST-3, CON-8, CON-9, REG-14: a token that is narrowed, while polls hang, removes nothing; nor
// does one that is deleted, with which the source is down until the file has a good one.
func TestTST3Token(t *testing.T) {
	s := consultest.Start(t, consultest.Options{Token: "f9b4a3c8-6f0e-4c3c-8f51-0d6d1a0f2f11"})
	fill(t, s.Client, 1, 20, 2)
	token, err := s.NewToken(t.Context(), "watcher", readAll)
	must(t, err)
	file := filepath.Join(t.TempDir(), "token")
	must(t, os.WriteFile(file, []byte(token.Secret+"\n"), 0o600))
	o := settings(s.Addr)
	o.TokenFile = file
	m := watch(t, o)
	whole := func(n int) func() bool {
		return func() bool { return m.services() == n && !m.partial && m.down == nil }
	}
	m.await("20 services", time.Minute, whole(20))

	must(t, s.SetRules(t.Context(), token, `service_prefix "svc-1" { policy = "read" } node_prefix "" { policy = "read" }`))
	deregister(t, s.Client, "svc-2-0") // while the watcher may not see it
	took := m.await("partial", 15*time.Second, func() bool { return m.partial && m.says("service_prefix") })
	t.Logf("a narrowed token was noticed after %s", took)
	deregister(t, s.Client, "svc-1-0") // it may see this one
	m.await("a change that the token may see", 10*time.Second, func() bool { return len(m.endpoints("svc-1")) == 1 })
	if n := m.services(); n != 20 || len(m.endpoints("svc-2")) != 2 {
		t.Errorf("%d services, svc-2 has %v", n, m.endpoints("svc-2"))
	}
	must(t, s.SetRules(t.Context(), token, readAll))
	m.await("whole", 15*time.Second, func() bool { return whole(20)() && len(m.endpoints("svc-2")) == 1 })

	must(t, s.SetRules(t.Context(), token, `service_prefix "" { policy = "read" }`)) // no node, so no instance
	m.await("partial without nodes", 15*time.Second, func() bool { return m.partial })
	if n := m.services(); n != 20 || len(m.endpoints("svc-3")) != 2 {
		t.Errorf("%d services, svc-3 has %v", n, m.endpoints("svc-3"))
	}
	must(t, s.SetRules(t.Context(), token, readAll))
	m.await("whole", 15*time.Second, whole(20))

	must(t, s.DeleteToken(t.Context(), token))
	took = m.await("down", 15*time.Second, func() bool { return m.down != nil })
	if !strings.Contains(m.down.Error(), file) || strings.Contains(m.down.Error(), token.Secret) {
		t.Errorf("a deleted token, after %s: %v", took, m.down)
	}
	if n := m.services(); n != 20 {
		t.Errorf("%d services are left", n)
	}
	again, err := s.NewToken(t.Context(), "again", readAll)
	must(t, err)
	must(t, os.WriteFile(file, []byte(again.Secret), 0o600))
	m.await("the new token", 30*time.Second, whole(20))
}

// TST-3, CON-9: without a token, and with a default policy that denies, Consul answers 200
// with nothing, and no header says that something was left out.
func TestTST3NoToken(t *testing.T) {
	s := consultest.Start(t, consultest.Options{Token: "f9b4a3c8-6f0e-4c3c-8f51-0d6d1a0f2f11"})
	fill(t, s.Client, 1, 3, 1)
	m := watch(t, settings(s.Addr))
	m.await("partial", 15*time.Second, func() bool { return m.listed > 0 && m.partial && m.says("--consul-token-file") })
}

// TST-3, CON-10, CON-11: with 300 services on plain HTTP, where Consul takes 200
// connections, no request is refused, half of the services are read in turn, and `meshlog
// sources` says so. A change of health is seen at once all the same.
func TestTST3PlainHTTP(t *testing.T) {
	s := consultest.Start(t, consultest.Options{})
	fill(t, s.Client, 1, 300, 1)
	m := watch(t, settings(s.Addr))
	m.await("150 polls", time.Minute, func() bool {
		r := m.status.Report()
		return m.services() == 300 && r.GetPolled() == 150 && r.GetSwept() == 150
	})
	if r := m.status.Report(); !strings.Contains(r.GetRemedy(), "https") {
		t.Errorf("reports %v", r)
	}
	// svc-1 was registered first, so it has no poll.
	critical := map[string]any{"Node": "n", "Address": "10.0.0.1", "Check": map[string]any{"CheckID": "c", "Name": "c", "Status": "critical", "ServiceID": "svc-1-0"}}
	must(t, s.Put(t.Context(), "/v1/catalog/register", critical, nil))
	took := m.await("unhealthy", 5*time.Second, func() bool { return slices.Equal(m.endpoints("svc-1"), []string{"10.0.1.1:80 unhealthy"}) })
	t.Logf("a critical check was seen after %s", took)
	deregister(t, s.Client, "svc-2-0")
	m.await("a deregistration", 15*time.Second, func() bool { return m.services() == 299 })
	fill(t, s.Client, 301, 301, 1)
	m.await("a new service", 5*time.Second, func() bool { return m.services() == 300 })
	if r := m.status.Report(); r.GetError() != "" {
		t.Errorf("a read failed: %s", r.GetError())
	}
}

// TST-3, CON-10: over HTTPS 1000 services are all polled, far below the limit of 200
// connections.
func TestTST3HTTPS(t *testing.T) {
	ca := certtest.NewCA("consul")
	s := consultest.Start(t, consultest.Options{CA: ca})
	fill(t, s.Client, 1, 1000, 1)
	o := settings("https://" + s.Addr)
	o.CAFile = certtest.WriteFile(t, t.TempDir(), "ca.pem", ca.PEM())
	m := watch(t, o)
	took := m.await("1000 polls", time.Minute, func() bool { return m.services() == 1000 && m.status.Report().GetPolled() == 1000 })
	t.Logf("1000 services were polled after %s", took)
	for _, i := range []int{1, 500, 1000} {
		deregister(t, s.Client, fmt.Sprintf("svc-%d-0", i))
		took := m.await("a deregistration", 3*time.Second, func() bool { return len(m.endpoints(fmt.Sprintf("svc-%d", i))) == 0 })
		t.Logf("a deregistration was seen after %s", took)
	}
	if r := m.status.Report(); r.GetError() != "" {
		t.Errorf("a read failed: %s", r.GetError())
	}
}

// TST-3, CON-7, REG-11: other clients of this address hold most of the 200 connections that
// Consul takes, so that it refuses some of 150 polls (429). The watcher polls fewer services
// and reads the others in turn, nothing is removed, and changes arrive.
func TestTST3Overloaded(t *testing.T) {
	s := consultest.Start(t, consultest.Options{})
	fill(t, s.Client, 1, 150, 1)
	s.HTTP.CloseIdleConnections()
	for range 100 {
		conn, err := net.Dial("tcp", s.Addr)
		must(t, err)
		t.Cleanup(func() { _ = conn.Close() })
	}
	m := watch(t, settings(s.Addr))
	took := m.await("fewer polls", 90*time.Second, func() bool {
		r := m.status.Report()
		return m.services() == 150 && !m.partial && r.GetPolled() <= 75 && r.GetSwept() >= 75
	})
	r := m.status.Report()
	t.Logf("%d polled and %d read in turn after %s, with 100 connections of others; the last error: %s", r.GetPolled(), r.GetSwept(), took, r.GetError())
	deregister(t, s.Client, "svc-1-0")
	m.await("a deregistration", 30*time.Second, func() bool { return m.services() == 149 })
	if m.down != nil {
		t.Errorf("down: %v", m.down)
	}
}

// TST-3, CON-15, CON-19: an instance becomes critical, is in maintenance, and is
// deregistered.
func TestTST3Health(t *testing.T) {
	s := consultest.Start(t, consultest.Options{})
	put := func(path string, body any) { t.Helper(); must(t, s.Put(t.Context(), path, body, nil)) }
	for i, address := range []string{"10.0.0.1", "10.0.0.2"} {
		put("/v1/agent/service/register", map[string]any{
			"ID": fmt.Sprint("web-", i), "Name": "web", "Address": address, "Port": 80,
			"Check": map[string]any{"CheckID": fmt.Sprint("check-", i), "TTL": "1h", "Status": "passing"},
		})
	}
	m := watch(t, settings(s.Addr))
	is := func(want ...string) {
		t.Helper()
		took := m.await(fmt.Sprint(want), 10*time.Second, func() bool { return slices.Equal(m.endpoints("web"), want) })
		t.Logf("%v after %s", want, took)
	}
	is("10.0.0.1:80 healthy", "10.0.0.2:80 healthy")
	put("/v1/agent/check/fail/check-0", nil)
	is("10.0.0.1:80 unhealthy", "10.0.0.2:80 healthy")
	put("/v1/agent/check/warn/check-0", nil)
	is("10.0.0.1:80 healthy", "10.0.0.2:80 healthy")
	put("/v1/agent/service/maintenance/web-1?enable=true", nil)
	is("10.0.0.1:80 healthy", "10.0.0.2:80 draining")
	put("/v1/agent/service/deregister/web-1", nil)
	is("10.0.0.1:80 healthy")
	put("/v1/agent/service/deregister/web-0", nil)
	m.await("no service", 10*time.Second, func() bool { return len(m.objects) == 0 })
}

// TST-3, CON-10: the client agent dies. With another address the watcher goes on; without,
// the source is down and keeps its objects.
func TestTST3AgentKilled(t *testing.T) {
	c := consultest.StartCluster(t, consultest.Options{})
	fill(t, c.Agent.Client, 1, 20, 1)
	one := watch(t, settings(c.Agent.Addr))
	two := watch(t, settings(c.Agent.Addr, c.Servers[0].Addr))
	for _, m := range []*mesh{one, two} {
		m.await("20 services", time.Minute, func() bool { return m.services() == 20 && !m.partial })
	}
	c.Agent.Kill()
	fill(t, c.Servers[1].Client, 21, 22, 1)
	took := two.await("new services", 4*time.Second, func() bool { return two.services() == 22 && two.down == nil })
	t.Logf("the other address had them after %s", took)
	deregister(t, c.Servers[1].Client, "svc-3-0")
	two.await("a deregistration", 15*time.Second, func() bool { return two.services() == 21 && two.down == nil })
	one.await("down", 20*time.Second, func() bool { return one.down != nil })
	if n := one.services(); n != 20 {
		t.Errorf("%d services are left", n)
	}
	must(t, c.Agent.Start(t.Context()))
	one.await("the agent", 30*time.Second, func() bool { return one.services() == 21 && one.down == nil })
}

// REG-9, CON-5: the server loses its data and starts again, empty. Nothing is removed in
// the first half minute, in which its services could register again; what is still gone
// then is removed.
func TestREG9ServerEmptied(t *testing.T) {
	dir := t.TempDir()
	s, err := consultest.StartIn(t.Context(), dir, consultest.Options{})
	must(t, err)
	t.Cleanup(s.Kill)
	fill(t, s.Client, 1, 20, 2)
	m := watch(t, settings(s.Addr))
	m.await("20 services", time.Minute, func() bool { return m.services() == 20 && m.status.Report().GetPolled() == 20 })
	s.Kill()
	must(t, os.RemoveAll(filepath.Join(dir, "server-0")))
	must(t, s.Start(t.Context()))
	fill(t, s.Client, 1, 12, 1) // some are back, with one instance of two
	m.await("doubt", 20*time.Second, func() bool { return m.partial && m.status.Report().GetDoubted() != "" })
	if n := m.services(); n != 20 || len(m.endpoints("svc-1")) != 2 {
		t.Errorf("%d services, svc-1 has %v", n, m.endpoints("svc-1"))
	}
	// A registry that is filling is asked again.
	took := m.await("the second listing", 100*time.Second, func() bool { return m.services() == 12 && !m.partial })
	if took < 25*time.Second || len(m.endpoints("svc-1")) != 1 {
		t.Errorf("after %s svc-1 has %v", took, m.endpoints("svc-1"))
	}
}
