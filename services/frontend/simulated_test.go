package frontend_test

import (
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
