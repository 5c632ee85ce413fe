package consul_test

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"
)

// reply is an answer of a scripted agent.
type reply struct {
	status int // 0: 200
	header string
	index  int
	body   string
}

// agent answers as a test says: reads at once, and polls when the test sends a reply.
type agent struct {
	*httptest.Server
	mu    sync.Mutex
	reads map[string]reply // by path
	made  map[string]int   // reads
	polls map[string]chan reply
}

func newAgent(t *testing.T) *agent {
	a := &agent{made: map[string]int{}, polls: map[string]chan reply{}, reads: map[string]reply{
		"/v1/catalog/services":        {index: 10, body: `{"consul": [], "web": []}`},
		"/v1/config/service-defaults": {index: 1, body: `[]`},
		"/v1/health/service/web":      {index: 10, body: instances("1", "2")},
		"/v1/health/state/any":        {index: 1, body: `[]`},
	}}
	a.Server = httptest.NewServer(http.HandlerFunc(a.serve))
	t.Cleanup(a.Close)
	return a
}

// instances are instances of web at 10.0.0.X.
func instances(last ...string) string {
	var all []string
	for _, x := range last {
		all = append(all, fmt.Sprintf(`{"Node": {"Node": "n", "Datacenter": "dc1"}, "Service": {"ID": "web-%s", "Address": "10.0.0.%[1]s", "Port": 80, "Weights": {"Passing": 1}}}`, x))
	}
	return "[" + strings.Join(all, ",") + "]"
}

func (a *agent) poll(path string) chan reply {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.polls[path] == nil {
		a.polls[path] = make(chan reply)
	}
	return a.polls[path]
}

func (a *agent) set(path string, r reply) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.reads[path] = r
}

func (a *agent) count(path string) int {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.made[path]
}

func (a *agent) serve(w http.ResponseWriter, r *http.Request) {
	var is reply
	if r.URL.Query().Get("index") != "" {
		select {
		case is = <-a.poll(r.URL.Path):
		case <-r.Context().Done():
			return
		}
	} else {
		a.mu.Lock()
		is = a.reads[r.URL.Path]
		a.made[r.URL.Path]++
		a.mu.Unlock()
	}
	if name, value, ok := strings.Cut(is.header, ": "); ok {
		w.Header().Set(name, value)
	}
	w.Header().Set("X-Consul-Index", strconv.Itoa(is.index))
	w.WriteHeader(max(is.status, http.StatusOK))
	_, _ = w.Write([]byte(is.body))
}

const (
	web      = "/v1/health/service/web"
	filtered = "X-Consul-Results-Filtered-By-Acls: true"
)

// has returns a condition: web has these endpoints.
func (m *mesh) has(last ...string) func() bool {
	var want []string
	for _, x := range last {
		want = append(want, fmt.Sprintf("10.0.0.%s:80 healthy", x))
	}
	return func() bool { return strings.Join(m.endpoints("web"), ",") == strings.Join(want, ",") }
}

func (m *mesh) keeps(what string, last ...string) {
	m.t.Helper()
	m.mu.Lock()
	defer m.mu.Unlock()
	if !m.has(last...)() {
		m.t.Errorf("%s: web has %v, want those at %v", what, m.endpoints("web"), last)
	}
}

// CON-6, CON-2: a poll's body counts if its index has risen and no instance is missing.
func TestCON6Polls(t *testing.T) {
	a := newAgent(t)
	m := watch(t, settings(a.Listener.Addr().String()))
	m.await("the listing", 5*time.Second, m.has("1", "2"))
	polls, reads := a.poll(web), a.count(web)

	polls <- reply{index: 10, body: "[]"} // the same index, another body
	polls <- reply{index: 11, body: instances("1", "2", "3")}
	m.await("an instance more", 5*time.Second, m.has("1", "2", "3"))
	if n := a.count(web); n != reads {
		t.Errorf("%d reads; an unchanged index and an instance more need none", n-reads)
	}

	polls <- reply{index: 1, body: "[]"} // of a view without data
	m.await("a read after a lower index", 5*time.Second, func() bool { return a.count(web) > reads })
	a.set(web, reply{index: 13, body: instances("1", "2", "3")})
	polls <- reply{index: 12, body: instances("1")} // of a view with a narrowed token
	m.await("a read after an instance less", 5*time.Second, func() bool { return a.count(web) > reads+1 })
	m.keeps("a body that lacks instances", "1", "2", "3")

	a.set(web, reply{index: 14, body: instances("3")})
	polls <- reply{index: 14, body: instances("3")}
	m.await("two instances less", 5*time.Second, m.has("3"))
	a.set(web, reply{index: 15, body: "[]"})
	polls <- reply{index: 15, body: "[]"}
	m.await("the service to be gone", 5*time.Second, func() bool { return len(m.objects) == 0 }) // CON-19
}

// CON-9: an answer from which something was left out removes nothing, and the listing is
// partial until it is whole.
func TestCON9Filtered(t *testing.T) {
	a := newAgent(t)
	m := watch(t, settings(a.Listener.Addr().String()))
	m.await("the listing", 5*time.Second, func() bool { return m.has("1", "2")() && !m.partial })
	a.set(web, reply{index: 11, header: filtered, body: instances("1")})
	a.poll(web) <- reply{index: 11, body: instances("1")}
	m.await("a partial listing", 5*time.Second, func() bool { return m.partial && m.says("may not read") })
	m.keeps("a filtered read", "1", "2")
	a.set(web, reply{index: 12, body: instances("2")})
	a.poll(web) <- reply{index: 12, body: instances("2")}
	m.await("a whole listing", 5*time.Second, func() bool { return m.has("2")() && !m.partial })
}

// CON-9: without a token a default policy that denies makes every answer partial.
func TestCON9NoToken(t *testing.T) {
	a := newAgent(t)
	a.set("/v1/catalog/services", reply{index: 10, header: "X-Consul-Default-Acl-Policy: deny", body: `{}`})
	m := watch(t, settings(a.Listener.Addr().String()))
	m.await("a partial listing", 5*time.Second, func() bool { return m.listed > 0 && m.partial && m.says("--consul-token-file") })
}

// REG-11: a service that fails three times makes the listing partial; once it can be read,
// everything is listed.
func TestREG11Failing(t *testing.T) {
	a := newAgent(t)
	a.set("/v1/catalog/services", reply{index: 10, body: `{"web": [], "db": []}`})
	a.set("/v1/health/service/db", reply{status: 500, body: "rpc error"})
	m := watch(t, settings(a.Listener.Addr().String()))
	m.await("a partial listing", 10*time.Second, func() bool { return m.has("1", "2")() && m.partial && m.says("service db cannot be read") })
	if n := a.count("/v1/health/service/db"); n < 3 {
		t.Errorf("db was read %d times, want 3", n)
	}
	a.set("/v1/health/service/db", reply{index: 3, body: strings.ReplaceAll(instances("9"), "web", "db")})
	m.await("a whole listing", 20*time.Second, func() bool { return m.services() == 2 && !m.partial })
}

// many makes the agent answer for n services, of which web is one.
func (a *agent) many(n int) {
	names := `"web": []`
	for i := range n - 1 {
		name := fmt.Sprint("s", i)
		names += fmt.Sprintf(`, %q: []`, name)
		a.set("/v1/health/service/"+name, reply{index: 5, body: strings.ReplaceAll(instances("7"), "web", name)})
	}
	a.set("/v1/catalog/services", reply{index: 10, body: "{" + names + "}"})
}

// CON-7: after a 429 half as many services are polled, and nothing is removed.
func TestCON7Limited(t *testing.T) {
	a := newAgent(t)
	a.many(20)
	o := settings(a.Listener.Addr().String())
	o.MaxPolls = 20
	m := watch(t, o)
	m.await("20 polls", 10*time.Second, func() bool { return m.services() == 20 && m.status.Report().GetPolled() == 20 })
	a.poll(web) <- reply{status: 429, body: "Your IP is issuing too many concurrent connections"}
	m.await("10 polls", 10*time.Second, func() bool {
		r := m.status.Report()
		return r.GetPolled() == 10 && r.GetSwept() == 10 && strings.Contains(r.GetRemedy(), "429") && strings.Contains(r.GetError(), "429")
	})
	m.mu.Lock()
	defer m.mu.Unlock()
	if n := m.services(); n != 20 {
		t.Errorf("%d services are left", n)
	}
}

// CON-1: service-defaults name the protocol of a service whose instances name none, and
// the setting that of the others.
func TestCON1Protocol(t *testing.T) {
	a := newAgent(t)
	a.set("/v1/config/service-defaults", reply{index: 5, body: `[{"Kind": "service-defaults", "Name": "web", "Protocol": "grpc"}, {"Name": "db"}]`})
	m := watch(t, settings(a.Listener.Addr().String()))
	port := func(name string) func() bool {
		return func() bool { return strings.Contains(string(m.objects["Service web"].Value.Bytes), name) }
	}
	m.await("grpc", 5*time.Second, port("grpc"))
	a.poll("/v1/config/service-defaults") <- reply{index: 6, body: `[{"Name": "web", "Protocol": "http2"}]`}
	m.await("http2", 5*time.Second, port("http2"))
	a.poll("/v1/config/service-defaults") <- reply{index: 7, header: filtered, body: `[]`}
	a.poll("/v1/config/service-defaults") <- reply{index: 8, body: `[]`}
	m.await("no protocol", 5*time.Second, port("port-80"))
}

// CON-20, CON-17: a service that gets an excluded tag is hidden, and is back without it. One
// with proxies only is never there.
func TestCON20Hidden(t *testing.T) {
	a := newAgent(t)
	a.set("/v1/catalog/services", reply{index: 10, body: `{"consul": [], "web": [], "web-proxy": []}`})
	a.set("/v1/health/service/web-proxy", reply{index: 10, body: strings.ReplaceAll(strings.ReplaceAll(instances("5"), "web", "web-proxy"), `"ID"`, `"Kind": "connect-proxy", "ID"`)})
	o := settings(a.Listener.Addr().String())
	o.ExcludeTags = []string{"k8s"}
	m := watch(t, o)
	m.await("web alone", 5*time.Second, func() bool { return m.has("1", "2")() && m.services() == 1 })
	if n := a.count("/v1/health/service/consul"); n != 0 {
		t.Errorf("consul was read %d times", n)
	}
	names := a.poll("/v1/catalog/services")
	names <- reply{index: 11, body: `{"consul": [], "web": ["k8s"], "web-proxy": []}`}
	m.await("no service", 5*time.Second, func() bool { return len(m.objects) == 0 && !m.partial })
	names <- reply{index: 12, body: `{"consul": [], "web": [], "web-proxy": []}`}
	m.await("web again", 5*time.Second, m.has("1", "2"))
}

// REG-10, REG-14: a token that is refused takes the source down; the problem names the file
// and not the token. So does an agent of another datacenter.
func TestREG10Refused(t *testing.T) {
	a := newAgent(t)
	m := watch(t, settings(a.Listener.Addr().String()))
	m.await("the listing", 5*time.Second, m.has("1", "2"))
	a.set("/v1/catalog/services", reply{status: 403, body: "rpc error making call: ACL not found"})
	a.poll(web) <- reply{status: 403, body: "ACL not found"} // so that the probe comes at once
	m.await("down", 5*time.Second, func() bool { return m.down != nil })
	m.keeps("a refused token", "1", "2")
	if !strings.Contains(m.down.Error(), "--consul-token-file") {
		t.Errorf("down: %v", m.down)
	}

	b := newAgent(t)
	b.set(web, reply{index: 10, body: strings.ReplaceAll(instances("1"), "dc1", "dc2")})
	m = watch(t, settings(b.Listener.Addr().String()))
	m.await("down", 5*time.Second, func() bool { return m.down != nil && strings.Contains(m.down.Error(), "--consul-datacenter") })

	c := newAgent(t)
	c.set("/v1/catalog/services", reply{status: 301, header: "Location: " + a.URL})
	m = watch(t, settings(c.Listener.Addr().String()))
	m.await("down", 5*time.Second, func() bool { return m.down != nil && strings.Contains(m.down.Error(), "redirects") })
}

// CON-2, REG-9: the catalog's index goes back, and most services are gone. Nothing is
// removed.
func TestCON2IndexWentBack(t *testing.T) {
	a := newAgent(t)
	a.many(10)
	m := watch(t, settings(a.Listener.Addr().String()))
	m.await("10 polls", 10*time.Second, func() bool { return m.services() == 10 && m.status.Report().GetPolled() == 10 })
	a.set("/v1/catalog/services", reply{index: 7, body: `{"web": []}`})
	a.set(web, reply{index: 7, body: instances("1")})
	m.await("doubt", 10*time.Second, func() bool {
		return m.partial && strings.Contains(m.status.Report().GetDoubted(), "went back from 10 to 7")
	})
	m.keeps("a doubted listing", "1", "2")
	m.mu.Lock()
	defer m.mu.Unlock()
	if n := m.services(); n != 10 {
		t.Errorf("%d services are left", n)
	}
}

// CON-5, CON-8: an answer without a leader, or of a follower that is behind, is no answer.
func TestCON5Stale(t *testing.T) {
	for _, header := range []string{"X-Consul-Knownleader: false", "X-Consul-Lastcontact: 6000"} {
		a := newAgent(t)
		a.set("/v1/catalog/services", reply{index: 10, header: header, body: `{}`})
		m := watch(t, settings(a.Listener.Addr().String()))
		m.await("down", 5*time.Second, func() bool { return m.down != nil && m.listed == 0 })
	}
}

// CON-21: the variables that Consul's own client reads have no effect.
func TestCON21Environment(t *testing.T) {
	for name, value := range map[string]string{
		"CONSUL_HTTP_ADDR": "127.0.0.1:1", "CONSUL_HTTP_TOKEN": "another", "CONSUL_HTTP_AUTH": "user:word", "CONSUL_HTTP_SSL": "true", "CONSUL_NAMESPACE": "another",
	} {
		t.Setenv(name, value)
	}
	a := newAgent(t)
	odd := make(chan string, 1)
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Header.Get("X-Consul-Token") != "" || r.Header.Get("Authorization") != "" || r.URL.Query().Has("ns") {
			select {
			case odd <- r.URL.String():
			default:
			}
		}
		a.serve(w, r)
	}))
	t.Cleanup(s.Close)
	m := watch(t, settings(s.Listener.Addr().String()))
	m.await("the listing", 5*time.Second, m.has("1", "2"))
	select {
	case request := <-odd:
		t.Errorf("%s has a token or a namespace", request)
	default:
	}
}
