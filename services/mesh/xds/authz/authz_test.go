package authz_test

import (
	"bytes"
	"encoding/json"
	"flag"
	"strings"
	"testing"

	listenerv3 "github.com/envoyproxy/go-control-plane/envoy/config/listener/v3"
	routev3 "github.com/envoyproxy/go-control-plane/envoy/config/route/v3"
	routerv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/http/router/v3"
	hcmv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/network/http_connection_manager/v3"
	tcpv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/network/tcp_proxy/v3"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/anypb"
	"sigs.k8s.io/yaml"

	"meshlog.dev/deploy/testkit/goldentest"
	"meshlog.dev/proto/ident"
	registryv1 "meshlog.dev/proto/meshlog/registry/v1"
	"meshlog.dev/services/mesh/kind"
	"meshlog.dev/services/mesh/problem"
	"meshlog.dev/services/mesh/re2"
	"meshlog.dev/services/mesh/world"
	"meshlog.dev/services/mesh/xds/authz"
	"meshlog.dev/services/suite/envoytest"
)

var update = flag.Bool("update", false, "rewrite the output in testdata")

// slots names the filters of the policies in the order in which they run.
var slots = []string{"custom", "audit", "deny", "allow"}

// Each archive in testdata shows a row: policies and their filters.
func TestTranslate(t *testing.T) {
	goldentest.Pairs(t, *update, "rbac", func(t *testing.T, _ string, input []byte) string {
		filters := translate(t, input)
		var out bytes.Buffer
		for i, f := range filters {
			if f == nil {
				continue
			}
			text, err := protojson.Marshal(f)
			if err != nil {
				t.Fatal(err)
			}
			readable, err := yaml.JSONToYAML(text)
			if err != nil {
				t.Fatal(err)
			}
			out.WriteString(slots[i] + ":\n  " + strings.ReplaceAll(strings.TrimSpace(string(readable)), "\n", "\n  ") + "\n")
		}
		return out.String()
	})
}

// A real Envoy accepts all filters.
func TestEnvoyTakesFilters(t *testing.T) {
	manager := &hcmv3.HttpConnectionManager{StatPrefix: "http", RouteSpecifier: &hcmv3.HttpConnectionManager_RouteConfig{RouteConfig: &routev3.RouteConfiguration{Name: "r"}}}
	tcp := &listenerv3.Listener{Name: "tcp", Address: envoytest.Loopback(0), FilterChains: []*listenerv3.FilterChain{{}}}
	for _, input := range goldentest.Inputs(t) {
		for i, f := range translate(t, input) {
			if f == nil {
				continue
			}
			if err := f.(interface{ ValidateAll() error }).ValidateAll(); err != nil {
				t.Errorf("%s: %v", input, err)
			}
			if isTCP(input) {
				tcp.FilterChains[0].Filters = append(tcp.FilterChains[0].Filters, &listenerv3.Filter{
					Name: slots[i], ConfigType: &listenerv3.Filter_TypedConfig{TypedConfig: packed(t, f)},
				})
			} else {
				manager.HttpFilters = append(manager.HttpFilters, httpFilter(t, slots[i], f))
			}
		}
	}
	manager.HttpFilters = append(manager.HttpFilters, httpFilter(t, "router", &routerv3.Router{}))
	tcp.FilterChains[0].Filters = append(tcp.FilterChains[0].Filters, &listenerv3.Filter{
		Name: "proxy", ConfigType: &listenerv3.Filter_TypedConfig{TypedConfig: packed(t, &tcpv3.TcpProxy{
			StatPrefix: "proxy", ClusterSpecifier: &tcpv3.TcpProxy_Cluster{Cluster: "nowhere"},
		})},
	})
	envoytest.Validate(t, envoytest.Config{Listeners: []*listenerv3.Listener{envoytest.Listener(t, "http", 0, manager), tcp}})
}

func httpFilter(t testing.TB, name string, m proto.Message) *hcmv3.HttpFilter {
	return &hcmv3.HttpFilter{Name: name, ConfigType: &hcmv3.HttpFilter_TypedConfig{TypedConfig: packed(t, m)}}
}

func packed(t testing.TB, m proto.Message) *anypb.Any {
	t.Helper()
	a, err := anypb.New(m)
	if err != nil {
		t.Fatal(err)
	}
	return a
}

// isTCP reports whether an input asks for the filters of connections.
func isTCP(input []byte) bool { return bytes.HasPrefix(input, []byte("# tcp\n")) }

// translate returns the filters of slots, nil for those that are absent.
func translate(t testing.TB, input []byte) []proto.Message {
	t.Helper()
	o := authz.Options{
		TrustDomains: []string{"prod.example", "old.example"}, MaxRegex: re2.Stock,
		PrincipalNames: bytes.HasPrefix(input, []byte("# principal names\n")),
	}
	policies := parse(t, input)
	if isTCP(input) {
		f := authz.ForTCP(policies, o)
		return filters(f.Custom, f.Audit, f.Deny, f.Allow)
	}
	f := authz.ForHTTP(policies, o)
	for only, want := range map[authz.Filter]authz.HTTP{
		authz.Custom: {Custom: f.Custom}, authz.Audit: {Audit: f.Audit}, authz.Deny: {Deny: f.Deny}, authz.Allow: {Allow: f.Allow},
	} {
		o.Only = only
		got, all := authz.ForHTTP(policies, o), filters(want.Custom, want.Audit, want.Deny, want.Allow)
		for i, m := range filters(got.Custom, got.Audit, got.Deny, got.Allow) {
			if !proto.Equal(m, all[i]) {
				t.Errorf("filter %d of only %d is %v, want %v", i, only, m, all[i])
			}
		}
	}
	return filters(f.Custom, f.Audit, f.Deny, f.Allow)
}

// filters returns messages with nil for those that are nil pointers.
func filters[M interface {
	comparable
	proto.Message
}](all ...M) []proto.Message {
	var none M
	var out []proto.Message
	for _, m := range all {
		if m == none {
			out = append(out, nil)
		} else {
			out = append(out, m)
		}
	}
	return out
}

// parse reads policies, which have to be valid.
func parse(t testing.TB, input []byte) []world.Object {
	t.Helper()
	k, ok := kind.ByName("AuthorizationPolicy")
	if !ok {
		t.Fatal("there is no AuthorizationPolicy")
	}
	var policies []world.Object
	for document := range strings.SplitSeq(string(input), "\n---\n") {
		var of struct {
			Metadata struct {
				Name, Namespace string
				Annotations     map[string]string
			}
			Spec   json.RawMessage
			Closed bool
		}
		if err := yaml.UnmarshalStrict([]byte(document), &of); err != nil {
			t.Fatal(err)
		}
		o := world.Object{Key: ident.Key{Source: "file", Instance: "default", Kind: k.Name, Namespace: of.Metadata.Namespace, Name: of.Metadata.Name}}
		if o.Message = (&registryv1.Closed{}); !of.Closed {
			m, err := k.DecodeJSON(of.Spec)
			if err != nil {
				t.Fatal(err)
			}
			if m, err = k.Annotated(m, of.Metadata.Annotations); err != nil {
				t.Fatal(err)
			}
			for _, d := range k.Validate(of.Metadata.Namespace, m) {
				if d.Severity == problem.Error {
					t.Errorf("%s: %+v", document, d)
				}
			}
			o.Message = m
		}
		policies = append(policies, o)
	}
	return policies
}
