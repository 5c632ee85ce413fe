package frontend_test

import (
	"fmt"
	"net/http"
	"net/netip"
	"strconv"
	"strings"
	"testing"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	"google.golang.org/protobuf/encoding/protojson"
	"sigs.k8s.io/yaml"

	"meshlog.dev/proto/ident"
	"meshlog.dev/services/mesh/index"
	"meshlog.dev/services/mesh/proxy"
	"meshlog.dev/services/mesh/simulate"
	"meshlog.dev/services/mesh/world"
	"meshlog.dev/services/mesh/xds"
)

// simulated returns the simulation of a proxy with the last version of the mesh. Its node is
// YAML.
func (m *mesh) simulated(t *testing.T, of string) *simulate.Proxy {
	t.Helper()
	var rows []world.RowChange
	for r := range m.Last().Snapshot.Rows() {
		rows = append(rows, world.RowChange{Row: r.Key, Value: r.Value})
	}
	w, _, err := world.NewWorld().Apply(world.Change{Rows: rows})
	if err != nil {
		t.Fatal(err)
	}
	node := new(corev3.Node)
	text, err := yaml.YAMLToJSON([]byte(of))
	if err == nil {
		err = protojson.Unmarshal(text, node)
	}
	if err != nil {
		t.Fatal(err)
	}
	p, err := proxy.New(node)
	if err != nil {
		t.Fatal(err)
	}
	pc := index.NewPushContext(w)
	class, catalog := index.Classify(pc, p), xds.NewCatalog(pc)
	var sets [ident.ResourceTypes]*xds.Set
	for typ := range ident.ResourceTypes {
		sets[typ] = catalog.Set(class, typ)
	}
	simulated, err := simulate.NewProxy(sets)
	if err != nil {
		t.Fatal(err)
	}
	return simulated
}

// follows reports whether, by simulation, a call of the client's sidecar arrives at web's
// application, and describes its way.
func (p *peers) follows(port string) (arrives bool, way string) {
	p.Helper()
	return p.followsTo(port, webIdentity)
}

// followsTo is follows with the identity of web.
func (p *peers) followsTo(port, server string) (arrives bool, way string) {
	p.Helper()
	client, web := p.mesh.simulated(p.T, p.nodes["client"]), p.mesh.simulated(p.T, p.nodes["web"])
	c := simulate.Call{Address: netip.MustParseAddr("127.0.0.1"), From: netip.MustParseAddr("127.0.0.3"), Port: uint32(p.listens[port])}
	if c.TCP = peerPorts[port].speaks != "http"; !c.TCP {
		c.Method, c.Host, c.Path, c.Headers = http.MethodGet, fmt.Sprintf("%s:%d", p.host, c.Port), "/", map[string][]string{}
	}
	o := client.Call(c)
	way = strings.Join(o.Lines(), "\n")
	if verdictOf(o) != "200" || len(o.To) != 1 || len(o.To[0].Endpoints) != 1 {
		return false, way
	}
	at, err := client.Onward(o, o.To[0].Cluster, o.To[0].Endpoints[0], simulate.Peers{Client: clientIdentity, Server: server})
	if err != nil {
		return false, way + "\n" + err.Error()
	}
	o = web.Call(at)
	way += fmt.Sprintf("\nat %s:%d, certificate %v:\n%s", at.Address, at.Port, at.Certificate, strings.Join(o.Lines(), "\n"))
	return verdictOf(o) == "200", way
}

// callOf returns the call of a request as attackers write it, or false if it is no request
// of HTTP: Envoy's codec answers such a text with 400, before any rule.
func callOf(request string) (simulate.Call, bool) {
	c := simulate.Call{Host: "shop.example", Headers: map[string][]string{}}
	first, rest, _ := strings.Cut(request, "|")
	target := ""
	c.Method, target, _ = strings.Cut(first, " ")
	var hosts []string
	for line := range strings.SplitSeq(rest, "|") {
		if line == "" {
			continue
		}
		name, value, _ := strings.Cut(line, ":")
		name, value = strings.ToLower(name), strings.TrimSpace(value)
		switch name {
		case "host":
			hosts = append(hosts, value)
			c.Host = strings.Join(hosts, ",") // as Envoy does
		case "", "transfer-encoding", "content-length":
			return c, false // a pseudo header, or a second length
		default:
			c.Headers[name] = append(c.Headers[name], value)
		}
	}
	if absolute, ok := strings.CutPrefix(target, "http://"); ok { // its host is the request's
		i := strings.IndexByte(absolute, '/')
		c.Host, target = absolute[:i], absolute[i:]
	}
	c.Path = target
	return c, true
}

// verdictOf returns the status with which a call ends: 200 where a server answers it.
func verdictOf(o simulate.Outcome) string {
	switch {
	case o.Unknown != "":
		return "unknown: " + o.Unknown
	case o.Status != 0:
		return strconv.Itoa(int(o.Status))
	case o.Closed || len(o.To) == 0:
		return closed
	}
	return "200"
}
