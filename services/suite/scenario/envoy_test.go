package scenario

import (
	"net/http"
	"net/url"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/tools/txtar"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/wrapperspb"

	listenerv3 "github.com/envoyproxy/go-control-plane/envoy/config/listener/v3"
	routev3 "github.com/envoyproxy/go-control-plane/envoy/config/route/v3"
	hcmv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/network/http_connection_manager/v3"

	"meshlog.dev/proto/ident"
	"meshlog.dev/services/mesh/simulate"
	"meshlog.dev/services/mesh/xds"
)

// asked is a call of a story with its simulated outcome. manager is the index of
// the HTTP connection manager that gets the same request in Envoy.
type asked struct {
	story, line string
	call        simulate.Call
	outcome     simulate.Outcome
	manager     int
}

// A real Envoy does what the simulation says: with the routes that the proxies of
// the stories are served, each call of a story matches the same route, and goes to
// one of the same clusters or gets the same answer.
func TestSimulatedAsEnvoyRoutes(t *testing.T) {
	files, err := filepath.Glob("testdata/*.txtar")
	if err != nil {
		t.Fatal(err)
	}
	var all []asked
	var managers []*hcmv3.HttpConnectionManager
	var clusters []string
	for _, file := range files {
		for _, a := range calls(t, file) {
			m := manager(t, a.sets, a.outcome)
			if m == nil || slices.ContainsFunc(a.outcome.Notes, func(n string) bool { return strings.Contains(n, "aborted with") }) {
				continue // not HTTP, or an injected fault answers before the call is routed
			}
			index := slices.IndexFunc(managers, func(o *hcmv3.HttpConnectionManager) bool { return proto.Equal(o, m) })
			if index < 0 {
				index, managers = len(managers), append(managers, m)
			}
			all = append(all, asked{filepath.Base(file), a.line, a.call, a.outcome, index})
			for _, to := range a.outcome.To {
				clusters = append(clusters, to.Cluster)
			}
		}
	}
	if len(all) < 30 {
		t.Fatalf("only %d calls to compare", len(all))
	}
	slices.Sort(clusters)
	envoy := newRouter(t, managers, slices.Compact(clusters))
	for _, a := range all {
		got, err := envoy.ask(request(a.call), a.manager)
		if err != nil {
			t.Errorf("%s: %s: %v", a.story, a.line, err)
			continue
		}
		if diff := cmp.Diff(expected(a.outcome, got), got); diff != "" {
			t.Errorf("%s: %s (-simulated +Envoy):\n%s", a.story, a.line, diff)
		}
	}
}

// expected returns the outcome as Envoy should report it. If the outcome has
// several clusters, Envoy's choice among them is accepted.
func expected(o simulate.Outcome, got answer) answer {
	want := answer{Route: o.Route, Status: int(o.Status), Location: o.Location}
	for i, to := range o.To {
		if i == 0 || to.Cluster == got.Cluster {
			want.Cluster = to.Cluster
		}
		want.Status = http.StatusServiceUnavailable // no server listens behind the cluster
	}
	return want
}

func request(c simulate.Call) *http.Request {
	r := &http.Request{Method: c.Method, Host: c.Host, URL: &url.URL{Opaque: c.Path}, Header: http.Header{}}
	for name, value := range c.Headers {
		r.Header.Set(name, value)
	}
	return r
}

// manager returns the HTTP connection manager that takes the call, with its routes
// in it, or nil if none does.
func manager(t *testing.T, sets [ident.ResourceTypes]*xds.Set, o simulate.Outcome) *hcmv3.HttpConnectionManager {
	t.Helper()
	var routes routev3.RouteConfiguration
	if r := sets[ident.RDS].Find(o.RouteConfiguration); r == nil {
		return nil
	} else if err := proto.Unmarshal(r.Value(), &routes); err != nil {
		t.Fatal(err)
	}
	routes.ValidateClusters = wrapperspb.Bool(false) // the default for routes by RDS
	var l listenerv3.Listener
	if err := proto.Unmarshal(sets[ident.LDS].Find(o.Listener).Value(), &l); err != nil {
		t.Fatal(err)
	}
	for _, chain := range append(l.GetFilterChains(), l.GetDefaultFilterChain()) {
		for _, f := range chain.GetFilters() {
			m := new(hcmv3.HttpConnectionManager)
			if !f.GetTypedConfig().MessageIs(m) {
				continue
			}
			if err := f.GetTypedConfig().UnmarshalTo(m); err != nil {
				t.Fatal(err)
			}
			if m.GetRds().GetRouteConfigName() == o.RouteConfiguration {
				m.RouteSpecifier = &hcmv3.HttpConnectionManager_RouteConfig{RouteConfig: &routes}
				return m
			}
		}
	}
	return nil
}

// made is a call of a story, its simulated outcome, and what its proxy is served.
type made struct {
	line    string
	call    simulate.Call
	outcome simulate.Outcome
	sets    [ident.ResourceTypes]*xds.Set
}

// calls returns the calls of a story, except bare connections and calls of gRPC
// clients.
func calls(t *testing.T, file string) []made {
	t.Helper()
	ar, err := txtar.ParseFile(file)
	if err != nil {
		t.Fatal(err)
	}
	s := newStage(t)
	var all []made
	for _, section := range ar.Files {
		text := string(section.Data)
		found, args, err := find(section.Name)
		if err != nil {
			t.Fatal(err)
		}
		if found.input != nil {
			if err := found.input(s, args, text); err != nil {
				t.Fatal(err)
			}
		}
		if section.Name != "calls" {
			continue
		}
		for line := range strings.Lines(text) {
			words := strings.Fields(strings.TrimPrefix(line, ">"))
			if !strings.HasPrefix(line, ">") || words[1] == "tcp" || strings.HasPrefix(words[0], "grpc") {
				continue
			}
			p, err := s.proxy(words[0])
			if err != nil {
				t.Fatal(err)
			}
			c, err := parseCall(words[1], words[2], words[3:])
			if err != nil {
				t.Fatal(err)
			}
			m := made{line: strings.TrimSpace(line), call: c, sets: s.sets(s.pc, p)}
			simulated, err := simulate.NewProxy(m.sets)
			if err != nil {
				t.Fatal(err)
			}
			m.outcome = simulated.Call(c)
			all = append(all, m)
		}
	}
	return all
}
