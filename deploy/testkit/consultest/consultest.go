// Package consultest runs real Consul servers and client agents for tests: one server, or
// three with a client agent. They are the version that deploy/tools/get pins, listen on
// loopback only, and keep all their files in one directory.
//
// An agent can be stopped, killed, paused and started again, and keeps its ports and, unless
// Wipe is called, its data. Gossip between datacenters, DNS and gRPC are off.
package consultest

import (
	"context"
	"crypto/tls"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strconv"
	"sync"
	"testing"
	"time"

	"meshlog.dev/deploy/testkit/certtest"
	"meshlog.dev/deploy/testkit/program"
	"meshlog.dev/deploy/testkit/testport"
)

// Datacenter is the name of the datacenter of all agents.
const Datacenter = "dc1"

// Options change the agents. The zero value is plain HTTP without ACLs.
type Options struct {
	// Token turns ACLs on. It becomes the management token, which the agents use too. A
	// request without a token is denied.
	Token string
	// CA replaces plain HTTP by HTTPS with a certificate of this CA.
	CA *certtest.CA
	// Settings are further settings of Consul's configuration file, such as "limits".
	Settings map[string]any
}

// Agent is a Consul process, a server or a client agent.
type Agent struct {
	*program.Server // its Name is the name of the node
	// Client sends Options.Token. Its connections are not limited in number.
	Client
	// Addr is the address of its HTTP API.
	Addr string

	serf int // the port of the gossip in its datacenter
}

// Cluster is three servers and a client agent that joined them.
type Cluster struct {
	Servers []*Agent
	Agent   *Agent
}

// Start runs one server until the test ends.
func Start(t testing.TB, o Options) *Agent {
	t.Helper()
	a, err := StartIn(t.Context(), t.TempDir(), o)
	if err != nil {
		t.Fatal(err)
	}
	endAfter(t, a)
	return a
}

// StartIn runs one server that keeps its files in dir, and waits until it is ready. The
// caller ends it with Stop or Kill.
func StartIn(ctx context.Context, dir string, o Options) (*Agent, error) {
	a, err := prepare(ctx, dir, "server-0", o, map[string]any{"server": true, "bootstrap_expect": 1})
	if err != nil {
		return nil, err
	}
	return a, a.Start(ctx)
}

// StartCluster runs a cluster until the test ends.
func StartCluster(t testing.TB, o Options) *Cluster {
	t.Helper()
	c, err := StartClusterIn(t.Context(), t.TempDir(), o)
	if err != nil {
		t.Fatal(err)
	}
	endAfter(t, append(c.Servers, c.Agent)...)
	return c
}

// StartClusterIn runs a cluster that keeps its files in dir, and waits until each agent is
// ready. The caller ends it with Kill.
func StartClusterIn(ctx context.Context, dir string, o Options) (*Cluster, error) {
	const servers = 3
	c := &Cluster{}
	var join []string // the servers before this one
	for i := range servers + 1 {
		name, own := fmt.Sprint("server-", i), map[string]any{"server": true, "bootstrap_expect": servers}
		if i == servers {
			name, own = "client", map[string]any{"server": false}
		}
		own["retry_join"], own["retry_interval"] = join, "200ms"
		a, err := prepare(ctx, dir, name, o, own)
		if err != nil {
			return nil, err
		}
		join = append(join, loopback(a.serf))
		if i == servers {
			c.Agent = a
		} else {
			c.Servers = append(c.Servers, a)
		}
	}
	all := append(c.Servers[:servers:servers], c.Agent)
	errs := make([]error, len(all))
	var wg sync.WaitGroup
	for i, a := range all { // none is ready before most of the servers run
		wg.Go(func() { errs[i] = a.Start(ctx) })
	}
	wg.Wait()
	if err := errors.Join(errs...); err != nil {
		c.Kill()
		return nil, err
	}
	return c, nil
}

// Kill kills the client agent and then the servers.
func (c *Cluster) Kill() {
	c.Agent.Kill()
	for _, a := range c.Servers {
		a.Kill()
	}
}

func endAfter(t testing.TB, agents ...*Agent) {
	t.Cleanup(func() {
		for _, a := range agents {
			a.Kill()
			if t.Failed() {
				t.Logf("last output of %s:\n%s", a.Name, a.Tail(20))
			}
		}
	})
}

// prepare writes the configuration of an agent.
func prepare(ctx context.Context, dir, name string, o Options, own map[string]any) (*Agent, error) {
	bin, err := program.Tool(ctx, "consul")
	if err != nil {
		return nil, err
	}
	var api, serf, rpc int
	for _, port := range []*int{&api, &rpc} {
		if *port, err = testport.TCP(); err != nil {
			return nil, err
		}
	}
	if serf, err = testport.Both(); err != nil {
		return nil, err
	}
	a := &Agent{Addr: loopback(api), serf: serf}
	a.Client = Client{URL: "http://" + a.Addr, Token: o.Token, HTTP: &http.Client{Transport: transport(o.CA)}}
	data := filepath.Join(dir, name)
	ports := map[string]int{"http": api, "serf_lan": serf, "server": rpc, "serf_wan": -1, "dns": -1, "grpc": -1, "grpc_tls": -1}
	settings := map[string]any{
		"datacenter": Datacenter, "node_name": name, "data_dir": data,
		"bind_addr": "127.0.0.1", "client_addr": "127.0.0.1", "ports": ports,
		"disable_update_check": true,
		// A signal must not remove the node from the catalog, as it would for a client agent.
		"leave_on_terminate": false,
		// Elections as fast as in production, where servers have a core of their own.
		"performance": map[string]any{"raft_multiplier": 1},
	}
	if o.Token != "" {
		settings["acl"] = map[string]any{
			"enabled": true, "default_policy": "deny",
			"tokens": map[string]string{"initial_management": o.Token, "agent": o.Token},
		}
	}
	if o.CA != nil {
		a.URL, ports["http"], ports["https"] = "https://"+a.Addr, -1, api
		if settings["tls"], err = certificate(o.CA, dir, name); err != nil {
			return nil, err
		}
	}
	maps.Copy(settings, own)
	maps.Copy(settings, o.Settings)
	content, err := json.Marshal(settings)
	if err != nil {
		return nil, err
	}
	file := filepath.Join(dir, name+".json")
	if err := os.WriteFile(file, content, 0o600); err != nil {
		return nil, err
	}
	a.Server = &program.Server{Name: name, Dir: dir, Data: data, Argv: []string{bin, "agent", "-config-file", file}, Ready: a.ready}
	return a, nil
}

// ready returns nil when there is a leader that knows the agent as a healthy node, and,
// with ACLs, the agent's token.
func (a *Agent) ready(ctx context.Context) error {
	var checks []struct{ CheckID, Status string }
	if _, err := a.Get(ctx, "/v1/health/node/"+a.Name, &checks); err != nil {
		return err
	}
	for _, c := range checks {
		if c.CheckID == "serfHealth" && c.Status == "passing" {
			return nil
		}
	}
	return fmt.Errorf("the leader does not know the node %s yet", a.Name)
}

// certificate writes a certificate for an agent and returns Consul's settings for it.
func certificate(ca *certtest.CA, dir, name string) (any, error) {
	pair := ca.Server(name, time.Now().Add(24*time.Hour))
	in := func(file string) string { return filepath.Join(dir, name+file) }
	for path, content := range map[string][]byte{in("-ca.pem"): ca.PEM(), in(".pem"): pair.Cert, in("-key.pem"): pair.Key} {
		if err := os.WriteFile(path, content, 0o600); err != nil {
			return nil, err
		}
	}
	return map[string]any{"https": map[string]string{"ca_file": in("-ca.pem"), "cert_file": in(".pem"), "key_file": in("-key.pem")}}, nil
}

// transport trusts only ca. With HTTPS it negotiates HTTP/2.
func transport(ca *certtest.CA) *http.Transport {
	t := http.DefaultTransport.(*http.Transport).Clone()
	if ca != nil {
		t.TLSClientConfig = &tls.Config{RootCAs: ca.Pool()}
	}
	return t
}

func loopback(port int) string { return net.JoinHostPort("127.0.0.1", strconv.Itoa(port)) }
