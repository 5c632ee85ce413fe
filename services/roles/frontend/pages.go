package frontend

import (
	"encoding/json"
	"fmt"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"time"

	"google.golang.org/protobuf/encoding/protojson"

	"meshlog.dev/proto/ident"
	reportv1 "meshlog.dev/proto/meshlog/report/v1"
	"meshlog.dev/services/frontend"
	"meshlog.dev/services/frontend/replica"
	"meshlog.dev/services/internal/process"
	"meshlog.dev/services/mesh/index"
	"meshlog.dev/services/mesh/kind"
	"meshlog.dev/services/mesh/proxy"
	"meshlog.dev/services/mesh/world"
)

// addPages adds the debug pages of a frontend. A page that shows what an istiod
// page shows has its name.
func addPages(admin *process.Admin, s *frontend.Server) {
	p := &debugPages{s}
	admin.Page("syncz", "what each proxy was sent and has applied, by type; ?proxyID=", p.syncz)
	admin.Page("push_status", "how far the served version has reached the proxies", p.pushStatus)
	admin.Page("config_dump", "the resources that a proxy should have; ?proxyID=, ?type=CDS", p.configDump)
	admin.Page("registryz", "services; ?host=", p.registryz)
	admin.Page("endpointz", "endpoints of services; ?host=", p.endpointz)
	admin.Page("configz", "objects in the served version; ?kind=, ?namespace=, ?name=", p.configz)
	admin.Page("snapshot", "the served version; ?prefix= lists its rows, ?key= shows one", p.snapshot)
}

type debugPages struct{ server *frontend.Server }

// serving returns the parameters of the request and the served state. If they are
// wrong or no version is served, it responds with that and returns nil.
func (p *debugPages) serving(w http.ResponseWriter, r *http.Request, known ...string) (url.Values, *replica.State) {
	params := process.Params(w, r, known...)
	if params == nil {
		return nil, nil
	}
	st := p.server.Serving()
	if st == nil {
		http.Error(w, p.server.Ready().Error(), http.StatusServiceUnavailable)
	}
	return params, st
}

func (p *debugPages) syncz(w http.ResponseWriter, r *http.Request) {
	params := process.Params(w, r, "proxyID")
	if params == nil {
		return
	}
	id := params.Get("proxyID")
	process.WriteJSONList(w, func(yield func(*reportv1.ProxyReport) bool) {
		for r := range p.server.Proxies() {
			if (id == "" || r.GetId() == id) && !yield(r) {
				return
			}
		}
	})
}

// mostUnanswered is how many responses without an answer push_status lists.
const mostUnanswered = 100

func (p *debugPages) pushStatus(w http.ResponseWriter, r *http.Request) {
	if process.Params(w, r) != nil {
		process.WriteJSON(w, p.server.PushStatus(mostUnanswered))
	}
}

func (p *debugPages) configDump(w http.ResponseWriter, r *http.Request) {
	params := process.Params(w, r, "proxyID", "type")
	if params == nil {
		return
	}
	id := params.Get("proxyID")
	var types []string
	var only *ident.ResourceType
	for t := range ident.ResourceTypes {
		if types = append(types, t.String()); t.String() == params.Get("type") {
			only = &t
		}
	}
	switch {
	case id == "":
		http.Error(w, "give ?proxyID=; /debug/syncz lists them", http.StatusBadRequest)
	case only == nil && params.Get("type") != "":
		http.Error(w, fmt.Sprintf("no type %q; there are %s", params.Get("type"), strings.Join(types, ", ")), http.StatusBadRequest)
	case len(p.server.Proxy(id)) == 0:
		http.Error(w, fmt.Sprintf("proxy %q is not connected here; /debug/syncz lists those that are", id), http.StatusNotFound)
	default:
		process.WriteJSONList(w, p.server.Dump(id, only))
	}
}

type service struct {
	Host       string   `json:"host"`
	Namespace  string   `json:"namespace"`
	Object     string   `json:"object"`
	Resolution string   `json:"resolution"`
	Headless   bool     `json:"headless,omitempty"`
	External   bool     `json:"external,omitempty"`
	AliasOf    string   `json:"aliasOf,omitempty"`
	Aliases    []string `json:"aliases,omitempty"`
	Addresses  []string `json:"addresses,omitempty"`
	ExportTo   []string `json:"exportTo"`
	Ports      []port   `json:"ports"`
}

type port struct {
	Number    uint32     `json:"number"`
	Name      string     `json:"name,omitempty"`
	Protocol  string     `json:"protocol,omitempty"`
	Endpoints int        `json:"endpoints"`
	List      []endpoint `json:"list,omitempty"`
}

type endpoint struct {
	Address  string `json:"address"`
	Port     uint32 `json:"port"`
	Health   string `json:"health"`
	Weight   uint32 `json:"weight"`
	Locality string `json:"locality,omitempty"`
	Network  string `json:"network,omitempty"`
	Cluster  string `json:"cluster,omitempty"`
	Workload string `json:"workload,omitempty"`
}

func (p *debugPages) registryz(w http.ResponseWriter, r *http.Request) { p.services(w, r, false) }
func (p *debugPages) endpointz(w http.ResponseWriter, r *http.Request) { p.services(w, r, true) }

func (p *debugPages) services(w http.ResponseWriter, r *http.Request, endpoints bool) {
	params, st := p.serving(w, r, "host")
	if st == nil {
		return
	}
	host := params.Get("host")
	process.WriteJSONList(w, func(yield func(service) bool) {
		for _, s := range st.PushContext.AllServices() {
			if (host == "" || s.Hostname == host) && !yield(serviceOf(st.PushContext, s, endpoints)) {
				return
			}
		}
	})
}

var resolutions = map[index.Resolution]string{
	index.Static: "static", index.DNS: "dns", index.DNSRoundRobin: "dns-round-robin", index.Passthrough: "passthrough", index.DynamicDNS: "dynamic-dns",
}

var protocols = map[index.Protocol]string{
	index.HTTP: "HTTP", index.HTTP2: "HTTP2", index.GRPC: "GRPC", index.GRPCWeb: "GRPC-Web", index.HTTPS: "HTTPS", index.TLS: "TLS",
	index.TCP: "TCP", index.Mongo: "Mongo", index.MySQL: "MySQL", index.Redis: "Redis",
}

var healths = map[index.Health]string{index.Healthy: "healthy", index.Unhealthy: "unhealthy", index.Draining: "draining"}

func serviceOf(pc *index.PushContext, s *index.Service, endpoints bool) service {
	view := service{
		Host: s.Hostname, Namespace: s.Namespace, Object: s.Key.String(), Resolution: resolutions[s.Resolution],
		Headless: s.Headless, External: s.External, AliasOf: s.AliasOf, Aliases: s.Aliases, Addresses: s.Addresses, ExportTo: s.ExportTo,
		Ports: []port{},
	}
	all := pc.Read().Endpoints(s.ServiceID)
	for _, p := range s.Ports {
		of := port{Number: p.Number, Name: p.Name, Protocol: protocols[p.Protocol], Endpoints: len(all[p.Number])}
		if endpoints {
			for _, e := range all[p.Number] {
				of.List = append(of.List, endpointOf(e))
			}
		}
		view.Ports = append(view.Ports, of)
	}
	return view
}

func endpointOf(e index.Endpoint) endpoint {
	view := endpoint{Address: e.Address, Port: e.Port, Health: healths[e.Health], Weight: e.Weight, Network: e.Network, Cluster: e.ClusterID}
	if l := e.Locality; l != (proxy.Locality{}) {
		view.Locality = strings.TrimRight(l.Region+"/"+l.Zone+"/"+l.SubZone, "/")
	}
	if e.Workload != "" {
		view.Workload = e.WorkloadNamespace + "/" + e.Workload
	}
	return view
}

type object struct {
	Kind       string          `json:"kind"`
	Namespace  string          `json:"namespace,omitempty"`
	Name       string          `json:"name"`
	Source     string          `json:"source"`
	Created    time.Time       `json:"created,omitzero"`
	Row        string          `json:"row"` // of /debug/snapshot?key=
	Document   json.RawMessage `json:"document,omitempty"`
	Unreadable string          `json:"unreadable,omitempty"`
}

func (p *debugPages) configz(w http.ResponseWriter, r *http.Request) {
	params, st := p.serving(w, r, "kind", "namespace", "name")
	if st == nil {
		return
	}
	is := func(param, value string) bool { return !params.Has(param) || params.Get(param) == value }
	var kinds []string
	for _, k := range kind.All() {
		kinds = append(kinds, k.Name)
	}
	if k := params.Get("kind"); k != "" && !slices.Contains(kinds, k) {
		http.Error(w, fmt.Sprintf("no kind %q; there are %s", k, strings.Join(kinds, ", ")), http.StatusBadRequest)
		return
	}
	process.WriteJSONList(w, func(yield func(object) bool) {
		for _, k := range kinds {
			if !is("kind", k) {
				continue
			}
			for o := range st.World.Objects(k) {
				if is("namespace", o.Key.Namespace) && is("name", o.Key.Name) && !yield(objectOf(o.Key, o.Value)) {
					return
				}
			}
		}
	})
}

func objectOf(k ident.Key, v ident.Value) object {
	view := object{Kind: k.Kind, Namespace: k.Namespace, Name: k.Name, Source: k.Shard().String(), Created: v.Created, Row: k.Row()}
	var err error
	if view.Document, err = kind.Document(k.Kind, v.Type, v.Bytes); err != nil {
		view.Unreadable = err.Error()
	}
	return view
}

type snapshot struct {
	Version  string          `json:"version"`
	Root     string          `json:"root"`
	Rows     int             `json:"rows"`
	Received time.Time       `json:"received,omitzero"` // from the chain; zero: from the local replica
	Manifest json.RawMessage `json:"manifest"`
}

type row struct {
	Key   string `json:"key"`
	Bytes int    `json:"bytes"`
}

func (p *debugPages) snapshot(w http.ResponseWriter, r *http.Request) {
	params, st := p.serving(w, r, "key", "prefix")
	switch {
	case st == nil:
	case params.Has("key"):
		p.row(w, st, params.Get("key"))
	case params.Has("prefix"):
		process.WriteJSONList(w, func(yield func(row) bool) {
			for r := range st.Snapshot.Rows() {
				if strings.HasPrefix(r.Key, params.Get("prefix")) && !yield(row{r.Key, len(r.Value)}) {
					return
				}
			}
		})
	default:
		manifest, err := protojson.Marshal(st.Manifest)
		if err != nil {
			manifest, _ = json.Marshal(err.Error()) // a string cannot fail
		}
		process.WriteJSON(w, snapshot{
			Version: st.Version().String(), Root: st.Root().String(), Rows: st.Snapshot.Len(),
			Received: st.Received, Manifest: manifest,
		})
	}
}

// row responds with the content of a row.
func (p *debugPages) row(w http.ResponseWriter, st *replica.State, key string) {
	b, ok := st.Snapshot.Get(key)
	if !ok {
		http.Error(w, fmt.Sprintf("no row %q; ?prefix= lists those that there are", key), http.StatusNotFound)
		return
	}
	k, overlay, err := ident.ParseRow(key)
	if err == nil && overlay != "" {
		var o world.Overlay
		if o, err = world.UnmarshalOverlay(overlay, b); err == nil {
			process.WriteJSON(w, o.Proto())
			return
		}
	}
	var v ident.Value
	if err == nil {
		v, err = world.UnmarshalValue(b)
	}
	if err != nil {
		http.Error(w, err.Error(), http.StatusInternalServerError)
		return
	}
	process.WriteJSON(w, objectOf(k, v))
}
