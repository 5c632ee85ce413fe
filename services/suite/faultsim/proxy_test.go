package faultsim

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"time"

	routev3 "github.com/envoyproxy/go-control-plane/envoy/config/route/v3"
	"google.golang.org/protobuf/proto"

	"meshlog.dev/proto/ident"
	reportv1 "meshlog.dev/proto/meshlog/report/v1"
	"meshlog.dev/services/frontend/content"
	"meshlog.dev/services/frontend/replica"
	"meshlog.dev/services/mesh/index"
	"meshlog.dev/services/mesh/proxy"
	"meshlog.dev/services/mesh/xds"
	"meshlog.dev/services/mesh/xds/row"
	"meshlog.dev/store"
)

// release is the Envoy version of all proxies.
const release = "envoy 1"

// client is how a quarantine names them.
const client = release + " (state of the world)"

// proxies holds what a frontend knows about its proxies: the resources that they
// applied and rejected. It stands for the handling of rejections in
// frontend.Server and stream.Stream, and uses the real content.Cache.
type proxies struct {
	names    []string
	cache    *content.Cache
	client   *content.Client
	version  ident.Position // the served version
	served   map[string]*xds.Resource
	streams  map[string]map[string]*opinion // by proxy, and resource
	suspects []*reportv1.Suspect
	told     time.Time
	open     []question // sent resources without an answer
	news     bool       // a report is due
}

// question is a resource that the frontend sent to a proxy.
type question struct {
	proxy    string
	resource *xds.Resource
}

// opinion is a proxy's verdict about a resource.
type opinion struct {
	has     xds.Sum // the applied bytes; zero if none
	since   ident.Position
	rejects xds.Sum // the rejected bytes; zero if none
	reason  string
}

// begin starts the frontend: its proxies connect again.
func (p *proxies) begin() {
	*p = proxies{names: p.names, cache: content.New(0), streams: map[string]map[string]*opinion{}}
	p.client = p.cache.Join(&proxy.Proxy{UserAgent: release}, func() {})
	for _, name := range p.names {
		p.streams[name] = map[string]*opinion{}
	}
}

// serve receives each version that the frontend begins to serve. SIM-7: all
// frontends serve a version alike.
func (p *proxies) serve(s *sim, st *replica.State, changed []index.Input) {
	p.cache.Update(st.Version(), noTime, st.PushContext, changed)
	view := p.client.View()
	p.version, p.served, p.open, p.news = st.Version(), map[string]*xds.Resource{}, nil, true
	for _, r := range view.Sets[ident.RDS].Resources {
		p.served[r.Name] = r
		checkSteady(st, r)
		for _, proxy := range p.names {
			p.open = append(p.open, question{proxy, r})
		}
	}
	at := served{st.Version(), st.Root()}
	if sum, known := s.served[at]; known && sum != view.Sets[ident.RDS].Sum {
		fail("SIM-7", "version %s was served with other resources before", st.Version())
	}
	s.served[at] = view.Sets[ident.RDS].Sum
	for _, stream := range p.streams {
		for name, o := range stream {
			switch r := p.served[name]; {
			case r == nil:
				delete(stream, name)
			default:
				if r.Sum != o.rejects {
					o.rejects = xds.Sum{}
				}
				if r.Sum == o.has {
					o.since = st.Version()
				}
			}
		}
	}
}

// served is a version with its content.
type served struct {
	version ident.Position
	root    ident.Hash
}

// think lets proxies answer the resources that they were sent.
func (p *proxies) think(s *sim) {
	p.open = slices.DeleteFunc(p.open, func(q question) bool {
		r, o := q.resource, p.streams[q.proxy][q.resource.Name]
		if o == nil {
			o = &opinion{}
			p.streams[q.proxy][r.Name] = o
		}
		if o.has == r.Sum || o.rejects == r.Sum {
			return true
		}
		if s.faults && s.has("nack") && s.rnd.IntN(4) > 0 {
			return false
		}
		p.news = true
		if v := valueOf(r); v.rejectedBy(q.proxy) {
			s.note("%s rejects %s=%d", q.proxy, r.Name, v)
			o.rejects, o.reason = r.Sum, fmt.Sprintf("route %s-%d cannot be used", mainHost, v)
			s.rejects(q.proxy, r, v)
		} else {
			o.has, o.since, o.rejects = r.Sum, p.version, xds.Sum{}
		}
		return true
	})
}

// suspect receives the leader's list of suspects.
func (p *proxies) suspect(list []*reportv1.Suspect) {
	p.news = p.news || fmt.Sprint(list) != fmt.Sprint(p.suspects)
	p.suspects = list
}

// subject is a resource that a proxy may reject.
type subject struct {
	name string
	sum  xds.Sum
}

func compareSubjects(a, b subject) int {
	return cmp.Or(cmp.Compare(a.name, b.name), slices.Compare(a.sum[:], b.sum[:]))
}

// verdicts returns the verdicts to report.
func (p *proxies) verdicts(pc *index.PushContext) []*reportv1.Verdict {
	asked := map[subject]bool{}
	for _, x := range p.suspects {
		asked[subject{x.GetName(), xds.Sum(x.GetSum())}] = true
	}
	for _, stream := range p.streams {
		for name, o := range stream {
			if o.rejects != (xds.Sum{}) {
				asked[subject{name, o.rejects}] = true
			}
		}
	}
	var all []*reportv1.Verdict
	for _, x := range slices.SortedFunc(maps.Keys(asked), compareSubjects) {
		v := &reportv1.Verdict{TypeUrl: ident.RDS.URL(), Name: x.name, Sum: x.sum[:], Client: client}
		for _, name := range p.names {
			o := p.streams[name][x.name]
			r := p.served[x.name]
			switch {
			case o != nil && o.rejects == x.sum:
				v.Message = o.reason
				v.Rejected, v.Rejectors = v.Rejected+1, append(v.Rejectors, &reportv1.Rejector{Proxy: name, Address: name})
				class := index.Classify(pc, &proxy.Proxy{}).Only(ident.RDS)
				if v.Class = class.Encode(); o.has != (xds.Sum{}) {
					v.GoodSum, v.Good = o.has[:], store.VersionProto(o.since)
				}
			case o != nil && o.has == x.sum:
				v.Applied++
			case r != nil && r.Sum == x.sum:
				v.Undecided++
			}
		}
		all = append(all, v)
	}
	return all
}

// report sends the verdicts when they change, and every 10 s.
func (f *frontendProc) report() {
	p := &f.proxies
	if f.replica.State() == nil || !p.news && f.s.time().Sub(p.told) < reportEvery {
		return
	}
	p.news, p.told = false, f.s.time()
	r := &reportv1.FrontendReport{Frontend: f.name, Verdicts: p.verdicts(f.replica.State().PushContext), Serving: store.VersionProto(p.version), Reached: p.reached(f.replica.State())}
	for _, b := range f.s.builders {
		if !f.s.has("nack") || f.s.heard() {
			b.reports = append(b.reports, r)
		}
	}
}

// routesOf decodes a RouteConfiguration.
func routesOf(r *xds.Resource) *routev3.RouteConfiguration {
	c := new(routev3.RouteConfiguration)
	if err := proto.Unmarshal(r.Value(), c); err != nil {
		panic(err)
	}
	return c
}

// valueOf returns the value that proxies judge a RouteConfiguration by.
func valueOf(r *xds.Resource) value { return hostValue(routesOf(r), mainHost) }

// rejects records that a proxy rejected a resource because of its last piece.
func (s *sim) rejects(proxy string, r *xds.Resource, v value) {
	pieces := row.Pieces(ident.RDS, r.Value())
	x := subject{r.Name, xds.Sum(pieces[len(pieces)-1])}
	if s.rejected[x] == nil {
		s.rejected[x] = map[string]bool{}
	}
	s.rejected[x][proxy], s.bad[x] = true, v
}

// checkSteady checks SIM-10: a virtual host that no proxy rejects is served as the
// world has it, whatever is in quarantine beside it.
func checkSteady(st *replica.State, served *xds.Resource) {
	made := xds.NewCatalog(st.PushContext).Set(index.Classify(st.PushContext, &proxy.Proxy{}), ident.RDS).Find(served.Name)
	if is, want := hostValue(routesOf(served), "steady"), valueOf(made); is != want {
		fail("SIM-10", "version %s serves the value %d of a virtual host of %s that no proxy rejects, want %d", st.Version(), is, served.Name, want)
	}
}
