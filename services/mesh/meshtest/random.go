package meshtest

import (
	_ "embed"
	"encoding/json"
	"math/rand/v2"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"time"

	"go.yaml.in/yaml/v3"
	"google.golang.org/protobuf/types/known/structpb"

	"meshlog.dev/proto/ident"
	registryv1 "meshlog.dev/proto/meshlog/registry/v1"
	"meshlog.dev/services/mesh/kind"
	"meshlog.dev/services/mesh/proxy"
	"meshlog.dev/services/mesh/world"
)

// The names in random worlds: few, so that objects refer to each other.
var (
	AnyNamespace = []string{"a", "b", "c", "istio-system"}
	AnyName      = []string{"x", "y", "z"}
	AnyHost      = []string{"x.a.svc.cluster.local", "y.b.svc.cluster.local", "h.com", "api.h.com", "*.h.com"}
	AnyLabels    = []map[string]string{nil, {"app": "x"}, {"app": "y"}, {"app": "x", "v": "1"}}
)

//go:embed random.txt
var randomText string

// grammar holds the alternatives of each name of random.txt.
var grammar = func() map[string][]string {
	all := map[string][]string{"namespace": AnyNamespace, "name": AnyName}
	for _, host := range AnyHost {
		all["host"] = append(all["host"], strconv.Quote(host))
	}
	for _, labels := range AnyLabels {
		b, err := json.Marshal(labels)
		if err != nil {
			panic(err)
		}
		all["labels"] = append(all["labels"], string(b))
	}
	name := ""
	for line := range strings.Lines(randomText) {
		switch text := strings.TrimSpace(line); {
		case text == "" || strings.HasPrefix(text, "#"):
		case strings.HasPrefix(line, "\t"):
			all[name] = append(all[name], text)
		default:
			name = text
		}
	}
	return all
}()

// dice makes random objects.
type dice struct {
	testing.TB
	*rand.Rand
}

func throw[T any](d dice, of []T) T { return of[d.IntN(len(of))] }

var choice = regexp.MustCompile(`<([^<>]*)>`)

// text replaces all choices in a text of random.txt, the innermost first.
func (d dice) text(s string) string {
	for choice.MatchString(s) {
		s = choice.ReplaceAllStringFunc(s, func(match string) string {
			inner := match[1 : len(match)-1]
			if lines, ok := grammar[inner]; ok {
				return throw(d, lines)
			}
			return throw(d, strings.Split(inner, "|"))
		})
	}
	return s
}

// object puts an object of random.txt.
func (d dice) object(name string) Change {
	d.Helper()
	text := d.text("<" + name + ">")
	kindName, rest, _ := strings.Cut(text, " ")
	objectName, spec, _ := strings.Cut(rest, " ")
	var fields map[string]any
	if err := yaml.Unmarshal([]byte(strings.ReplaceAll(spec, "$name", objectName)), &fields); err != nil {
		d.Fatalf("%s: %v", text, err)
	}
	b, err := json.Marshal(fields)
	if err != nil {
		d.Fatal(err)
	}
	k, _ := kind.ByName(kindName)
	namespace := ""
	if k.Namespaced {
		namespace = throw(d, AnyNamespace)
	}
	if kindName == world.NamespaceKind || kindName == world.NodeKind {
		return Object(kindName, namespace, objectName, &registryv1.Object{Json: b})
	}
	m, err := k.DecodeJSON(b)
	if err != nil {
		d.Fatalf("%s: %v", text, err)
	}
	return Object(kindName, namespace, objectName, m)
}

func (d dice) change() Change {
	c := d.object("object")
	if d.IntN(4) == 0 {
		c = c.Gone()
	} else if d.IntN(2) == 0 {
		c = c.At(time.Unix(int64(d.IntN(3)), 0).UTC())
	}
	switch d.IntN(6) {
	case 0:
		return c.From("kubernetes").In("one")
	case 1:
		return c.From("kubernetes").In("two")
	}
	return c
}

// Walk visits random worlds, each a change of the world before.
func Walk(t testing.TB, seed uint64, steps int, visit func(before, after *world.World, keys []ident.Key)) {
	d := dice{t, rand.New(rand.NewPCG(seed, 4))}
	w := world.NewWorld()
	for range steps {
		var changes []Change
		for range 1 + d.IntN(3)*d.IntN(3) {
			changes = append(changes, d.change())
		}
		if d.IntN(12) == 0 {
			changes = append(changes, d.object("settings"))
		}
		next, keys, err := w.Apply(Rows(changes...))
		if err != nil {
			t.Fatal(err)
		}
		visit(w, next, keys)
		w = next
	}
}

// AnyProxy returns proxies of all kinds that random worlds treat differently.
func AnyProxy() []*proxy.Proxy {
	var all []*proxy.Proxy
	for _, ns := range append([]string{"elsewhere"}, AnyNamespace...) {
		for _, labels := range AnyLabels {
			all = append(all,
				&proxy.Proxy{Type: proxy.Sidecar, Namespace: ns, Labels: labels},
				&proxy.Proxy{Type: proxy.Router, Namespace: ns, Labels: labels},
			)
		}
		for _, ip := range []string{"10.1.0.1", "10.2.0.1", "10.4.0.1"} {
			all = append(all, &proxy.Proxy{ID: "sidecar~" + ip + "~x.a~a.svc.cluster.local", Type: proxy.Sidecar, Namespace: ns, Labels: AnyLabels[1]})
		}
	}
	return append(append(all, networkProxies()...), placedProxies()...)
}

// placedProxies returns proxies of several localities and nodes.
func placedProxies() []*proxy.Proxy {
	var all []*proxy.Proxy
	for _, at := range []proxy.Locality{{Region: "r1", Zone: "z1"}, {Region: "r2", Zone: "z1"}, {Region: "r3"}} {
		for _, node := range []string{"", "x", "y"} {
			metadata := map[string]*structpb.Value{"NODE_NAME": structpb.NewStringValue(node)}
			all = append(all,
				&proxy.Proxy{Type: proxy.Sidecar, Namespace: "a", Labels: AnyLabels[3], Locality: at, Metadata: &structpb.Struct{Fields: metadata}},
				&proxy.Proxy{GRPC: true, Namespace: "elsewhere", Locality: at, Metadata: &structpb.Struct{Fields: metadata}},
			)
		}
	}
	return all
}

// networkProxies returns proxies of all clusters and networks.
func networkProxies() []*proxy.Proxy {
	var all []*proxy.Proxy
	for _, cluster := range []string{"one", "two", "three"} {
		for _, network := range []string{"", "n1", "n2", "n3"} {
			for _, ip := range []string{"10.9.0.1", "2001:db8::9"} {
				metadata := map[string]*structpb.Value{"NETWORK": structpb.NewStringValue(network)}
				if network == "n3" {
					metadata["REQUESTED_NETWORK_VIEW"] = structpb.NewStringValue("n1,n3")
				}
				all = append(all, &proxy.Proxy{
					ID: "sidecar~" + ip + "~x.a~a.svc.cluster.local", Type: proxy.Sidecar, Namespace: "elsewhere", ClusterID: cluster,
					Metadata: &structpb.Struct{Fields: metadata},
				})
			}
		}
	}
	return append(all, &proxy.Proxy{GRPC: true, Namespace: "elsewhere", Labels: map[string]string{"topology.istio.io/network": "n1"}})
}
