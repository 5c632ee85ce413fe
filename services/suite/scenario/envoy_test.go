package scenario

import (
	"net/http"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/tools/txtar"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/wrapperspb"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	listenerv3 "github.com/envoyproxy/go-control-plane/envoy/config/listener/v3"
	routev3 "github.com/envoyproxy/go-control-plane/envoy/config/route/v3"
	hcmv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/network/http_connection_manager/v3"

	"meshlog.dev/proto/ident"
	"meshlog.dev/services/mesh/simulate"
	"meshlog.dev/services/mesh/xds"
	"meshlog.dev/services/suite/envoytest"
)

// asked is a call of a story with its simulated outcome. front is the index of the port
// that gets the same request in Envoy.
type asked struct {
	story, line string
	call        simulate.Call
	outcome     simulate.Outcome
	front       int
}

// A real Envoy does what the simulation says: with the routes that the proxies of
// the stories are served, each call of a story matches the same route, and goes to
// one of the same clusters or gets the same answer. With the policies that they are
// served, it is refused by the same rule, or by none.
//
// Envoy gets only requests that reach a manager, on a port of its own: it has the
// caller's address if that is on loopback, the caller's identity and its token. So rules
// about the port and the address of the destination, and about connections without
// requests, are only simulated, and so is the choice of the filter chain.
func TestSimulatedAsEnvoyRoutes(t *testing.T) {
	files, err := filepath.Glob("testdata/*.txtar")
	if err != nil {
		t.Fatal(err)
	}
	var all []asked
	var fronts []front
	var clusters []string
	refused := 0
	for _, file := range files {
		for _, a := range calls(t, file) {
			m := manager(t, a.sets, a.outcome)
			if m == nil || !sendable(a.call, a.outcome) {
				continue
			}
			f := front{m, a.call.TLS}
			index := slices.IndexFunc(fronts, func(o front) bool { return o.tls == f.tls && proto.Equal(o.manager, f.manager) })
			if index < 0 {
				index, fronts = len(fronts), append(fronts, f)
			}
			all = append(all, asked{filepath.Base(file), a.line, a.call, a.outcome, index})
			if a.outcome.Refused {
				refused++
			}
			for _, r := range a.sets[ident.CDS].Resources {
				clusters = append(clusters, r.Name)
			}
			for _, to := range a.outcome.To {
				clusters = append(clusters, to.Cluster)
			}
		}
	}
	if len(all) < 30 || refused < 20 {
		t.Fatalf("only %d calls to compare, %d of them refused", len(all), refused)
	}
	slices.Sort(clusters)
	envoy := newRouter(t, fronts, slices.Compact(clusters))
	for _, a := range all {
		got, err := envoy.ask(a.call, a.front)
		if err != nil {
			t.Errorf("%s: %s: %v", a.story, a.line, err)
			continue
		}
		if diff := cmp.Diff(expected(a.outcome, got), got); diff != "" {
			t.Errorf("%s: %s (-simulated +Envoy):\n%s", a.story, a.line, diff)
		}
	}
}

// sendable reports whether Envoy can get the request, and answers it as the simulation
// can tell.
func sendable(c simulate.Call, o simulate.Outcome) bool {
	aborted := slices.ContainsFunc(o.Notes, func(n string) bool { return strings.Contains(n, "aborted with") })
	return !aborted && o.Unknown == "" && (!c.From.IsValid() || c.From.IsLoopback())
}

// expected returns the outcome as Envoy should report it. If the outcome has
// several clusters, Envoy's choice among them is accepted.
func expected(o simulate.Outcome, got answer) answer {
	want := answer{Route: o.Route, Status: int(o.Status), Location: o.Location}
	asked := slices.ContainsFunc(o.Decisions, func(d simulate.Decision) bool { return d.Provider != "" && !d.FailOpen })
	if asked {
		o.To, o.Refused, want.Status = nil, true, http.StatusForbidden // no provider answers
	}
	if o.Refused {
		want.Cluster = got.Cluster // that of the route
		switch last := o.Decisions[len(o.Decisions)-1]; {
		case asked:
		case last.Action == "DENY":
			want.Rule = last.Rule
		case last.Action == "ALLOW":
			want.Rule = "none"
		}
	}
	for i, to := range o.To {
		if i == 0 || to.Cluster == got.Cluster {
			want.Cluster = to.Cluster
		}
		want.Status = http.StatusServiceUnavailable // no server listens behind the cluster
	}
	return want
}

// manager returns the HTTP connection manager that takes the call, with its routes
// in it, or nil if none does.
func manager(t *testing.T, sets [ident.ResourceTypes]*xds.Set, o simulate.Outcome) *hcmv3.HttpConnectionManager {
	t.Helper()
	if o.RouteConfiguration == "" {
		return nil
	}
	routes := new(routev3.RouteConfiguration)
	if r := sets[ident.RDS].Find(o.RouteConfiguration); r == nil {
		routes = nil // the manager has its own
	} else if err := proto.Unmarshal(r.Value(), routes); err != nil {
		t.Fatal(err)
	} else {
		routes.ValidateClusters = wrapperspb.Bool(false) // the default for routes by RDS
	}
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
			if m.GetRds().GetRouteConfigName()+m.GetRouteConfig().GetName() == o.RouteConfiguration {
				if routes != nil {
					m.RouteSpecifier = &hcmv3.HttpConnectionManager_RouteConfig{RouteConfig: routes}
				}
				envoytest.InlineFilters(m, filters(t, sets[ident.ECDS]))
				return m
			}
		}
	}
	return nil
}

// filters returns the filters that connection managers ask for.
func filters(t *testing.T, set *xds.Set) []*corev3.TypedExtensionConfig {
	t.Helper()
	var all []*corev3.TypedExtensionConfig
	for _, r := range set.Resources {
		m, err := message(ident.ECDS, r)
		if err != nil {
			t.Fatal(err)
		}
		all = append(all, m.(*corev3.TypedExtensionConfig))
	}
	return all
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
