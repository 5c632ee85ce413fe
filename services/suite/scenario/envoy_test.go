package scenario

import (
	"maps"
	"net/http"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/tools/txtar"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/wrapperspb"

	clusterv3 "github.com/envoyproxy/go-control-plane/envoy/config/cluster/v3"
	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	listenerv3 "github.com/envoyproxy/go-control-plane/envoy/config/listener/v3"
	routev3 "github.com/envoyproxy/go-control-plane/envoy/config/route/v3"
	hcmv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/network/http_connection_manager/v3"

	"meshlog.dev/proto/ident"
	"meshlog.dev/services/mesh/simulate"
	"meshlog.dev/services/mesh/xds"
	"meshlog.dev/services/suite/envoytest"
)

// asked is a call of a story with its simulated outcome. listener is the index of the one
// that gets the same call in Envoy.
type asked struct {
	story, line string
	call        simulate.Call
	outcome     simulate.Outcome
	listener    int
}

// questions are calls for one Envoy, with the listeners and clusters that they need.
type questions struct {
	*testing.T
	asked     []asked
	listeners []*listenerv3.Listener
	clusters  map[string]*clusterv3.Cluster
}

// add adds a call, unless Envoy cannot get it, or does not answer it as the simulation can
// tell.
func (q *questions) add(story string, m made) {
	q.Helper()
	aborted := slices.ContainsFunc(m.outcome.Notes, func(n string) bool { return strings.Contains(n, "aborted with") })
	if aborted || m.outcome.Unknown != "" || m.outcome.Listener == "" || m.call.From.IsValid() && !m.call.From.IsLoopback() {
		return
	}
	l := listener(q.T, m.sets, m.outcome.Listener)
	index := slices.IndexFunc(q.listeners, func(o *listenerv3.Listener) bool { return proto.Equal(o, l) })
	if index < 0 {
		index, q.listeners = len(q.listeners), append(q.listeners, l)
	}
	q.asked = append(q.asked, asked{story, m.line, m.call, m.outcome, index})
	for _, r := range m.sets[ident.CDS].Resources {
		c := new(clusterv3.Cluster)
		if err := proto.Unmarshal(r.Value(), c); err != nil {
			q.Fatal(err)
		}
		q.clusters[c.GetName()] = c
	}
	for _, to := range m.outcome.To {
		if q.clusters[to.Cluster] == nil { // it is missing, and Envoy takes no such route
			q.clusters[to.Cluster] = &clusterv3.Cluster{Name: to.Cluster}
		}
	}
}

// compare asks a real Envoy, and compares what it does with the simulation.
func (q *questions) compare() {
	q.Helper()
	envoy := newRouter(q.T, q.listeners, slices.Collect(maps.Values(q.clusters)))
	for _, a := range q.asked {
		got, err := envoy.ask(a.call, a.listener)
		if err != nil {
			q.Errorf("%s: %s: %v", a.story, a.line, err)
			continue
		}
		if diff := cmp.Diff(expected(a.call, a.outcome, got), got); diff != "" {
			q.Errorf("%s: %s\n%s\n(-simulated +Envoy):\n%s", a.story, a.line, strings.Join(a.outcome.Lines(), "\n"), diff)
		}
	}
}

// A real Envoy does what the simulation says with the calls of all stories, requests and
// bare connections, sent to routers and sidecars and for the workloads of sidecars: with the
// listeners that the proxies of the stories are served, a call takes the same filter chain,
// which decrypts it or refuses its handshake; policies refuse it by the same rule, or by
// none; it matches the same route, and goes to one of the same clusters or gets the same
// answer (POL-16).
//
// Each listener has a port of loopback. The addresses of a call come by the PROXY protocol
// where the kernel would tell them after a redirection, but for the caller's, which is on
// loopback. Clusters have other endpoints than in the stories.
func TestSimulatedAsEnvoy(t *testing.T) {
	files, err := filepath.Glob("testdata/*.txtar")
	if err != nil {
		t.Fatal(err)
	}
	q := &questions{T: t, clusters: map[string]*clusterv3.Cluster{}}
	for _, file := range files {
		for _, m := range calls(t, file) {
			q.add(filepath.Base(file), m)
		}
	}
	count := func(of func(asked) bool) (n int) {
		for _, a := range q.asked {
			if of(a) {
				n++
			}
		}
		return n
	}
	refused := count(func(a asked) bool { return a.outcome.Refused })
	inbound := count(func(a asked) bool { return a.call.Inbound })
	closed := count(func(a asked) bool { return a.call.Inbound && a.outcome.Closed })
	bare := count(func(a asked) bool { return a.call.TCP })
	t.Logf("%d calls on %d listeners: %d refused by policies, %d inbound of which %d are closed, %d bare connections", len(q.asked), len(q.listeners), refused, inbound, closed, bare)
	if len(q.asked) < 300 || refused < 60 || inbound < 60 || closed < 12 || bare < 60 {
		t.Fatal("too few calls to compare")
	}
	q.compare()
}

// expected returns the outcome as Envoy should report it. If the outcome has
// several clusters, Envoy's choice among them is accepted.
func expected(c simulate.Call, o simulate.Outcome, got answer) answer {
	want := answer{Chain: o.FilterChain, Route: o.Route, Status: int(o.Status), Location: o.Location}
	request := o.RouteConfiguration != ""
	asked := slices.ContainsFunc(o.Decisions, func(d simulate.Decision) bool { return d.Provider != "" && !d.FailOpen })
	if asked { // no provider answers
		o.To, o.Refused = nil, true
		if request {
			want.Status = http.StatusForbidden
		}
	}
	if o.Closed {
		want.Cluster = got.Cluster // Envoy selects that of a connection before its handshake
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
		switch {
		case request:
			want.Status = http.StatusServiceUnavailable // the server does not answer
		case c.TCP:
			want.Answered = to.Cluster != "BlackHoleCluster"
		}
	}
	want.Answered = want.Answered || want.Status != 0
	return want
}

// listener returns a listener with the routes and filters that it asks for in it.
func listener(t *testing.T, sets [ident.ResourceTypes]*xds.Set, name string) *listenerv3.Listener {
	t.Helper()
	l := new(listenerv3.Listener)
	if err := proto.Unmarshal(sets[ident.LDS].Find(name).Value(), l); err != nil {
		t.Fatal(err)
	}
	slots := filters(t, sets[ident.ECDS])
	eachManager(t, l, func(m *hcmv3.HttpConnectionManager) {
		if name := m.GetRds().GetRouteConfigName(); name != "" {
			routes := &routev3.RouteConfiguration{Name: name}
			if r := sets[ident.RDS].Find(name); r != nil {
				if err := proto.Unmarshal(r.Value(), routes); err != nil {
					t.Fatal(err)
				}
			}
			routes.ValidateClusters = wrapperspb.Bool(false) // the default for routes by RDS
			m.RouteSpecifier = &hcmv3.HttpConnectionManager_RouteConfig{RouteConfig: routes}
		}
		m.LocalReplyConfig = &hcmv3.LocalReplyConfig{BodyFormat: &corev3.SubstitutionFormatString{
			Format: &corev3.SubstitutionFormatString_TextFormatSource{TextFormatSource: text(bodyFormat)},
		}}
		envoytest.InlineFilters(m, slots)
	})
	return l
}

// eachManager lets change change each HTTP connection manager of a listener.
func eachManager(t *testing.T, l *listenerv3.Listener, change func(*hcmv3.HttpConnectionManager)) {
	t.Helper()
	for _, chain := range append(l.GetFilterChains(), l.GetDefaultFilterChain()) {
		for _, f := range chain.GetFilters() {
			m := new(hcmv3.HttpConnectionManager)
			if !f.GetTypedConfig().MessageIs(m) {
				continue
			}
			if err := f.GetTypedConfig().UnmarshalTo(m); err != nil {
				t.Fatal(err)
			}
			change(m)
			f.ConfigType = &listenerv3.Filter_TypedConfig{TypedConfig: packed(t, m)}
		}
	}
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

// calls returns the calls of a story, except those of gRPC clients.
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
		if section.Name != "calls" && section.Name != "why-not" {
			continue
		}
		for line := range strings.Lines(text) {
			words := strings.Fields(strings.TrimPrefix(line, ">"))
			if !strings.HasPrefix(line, ">") || strings.HasPrefix(words[0], "grpc") {
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
