package listener_test

import (
	"flag"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	listenerv3 "github.com/envoyproxy/go-control-plane/envoy/config/listener/v3"
	hcmv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/network/http_connection_manager/v3"
	networkv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/network/rbac/v3"
	tcpv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/network/tcp_proxy/v3"
	tlsv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/transport_sockets/tls/v3"
	"github.com/google/go-cmp/cmp"
	"golang.org/x/tools/txtar"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/structpb"
	"sigs.k8s.io/yaml"

	"meshlog.dev/services/mesh/index"
	"meshlog.dev/services/mesh/meshtest"
	"meshlog.dev/services/mesh/proxy"
	"meshlog.dev/services/mesh/xds/listener"
	"meshlog.dev/services/mesh/xds/piece"
	"meshlog.dev/services/suite/envoytest"
)

var update = flag.Bool("update", false, "rewrite the output in testdata")

// Each archive in testdata shows a row of ROWS.md: objects, and the Listeners and
// problems of a router of namespace edge that has an agent. A real Envoy takes these
// Listeners.
func TestRows(t *testing.T) {
	paths, err := filepath.Glob("testdata/*.txtar")
	if err != nil || len(paths) == 0 {
		t.Fatalf("no testdata (%v)", err)
	}
	for _, path := range paths {
		t.Run(strings.TrimSuffix(filepath.Base(path), ".txtar"), func(t *testing.T) {
			a, err := txtar.ParseFile(path)
			if err != nil {
				t.Fatal(err)
			}
			listeners, problems := made(t, a.Files[0].Data)
			got := &txtar.Archive{Comment: a.Comment, Files: []txtar.File{
				a.Files[0], {Name: "listeners", Data: show(t, listeners)}, {Name: "problems", Data: []byte(problems)},
			}}
			if *update {
				if err := os.WriteFile(path, txtar.Format(got), 0o600); err != nil {
					t.Fatal(err)
				}
			} else if diff := cmp.Diff(string(txtar.Format(a)), string(txtar.Format(got))); diff != "" {
				t.Errorf("(-want +got; -update writes it):\n%s", diff)
			}
			for _, l := range listeners {
				if err := l.ValidateAll(); err != nil {
					t.Error(err)
				}
			}
			envoytest.Validate(t, envoytest.Config{Listeners: listeners})
		})
	}
}

// made returns what a router of namespace edge that has an agent gets.
func made(t *testing.T, objects []byte) (listeners []*listenerv3.Listener, problems string) {
	t.Helper()
	agent := &structpb.Struct{Fields: map[string]*structpb.Value{"SDS_CLUSTER": structpb.NewStringValue(proxy.SDSCluster)}}
	return madeBy(t, objects, &proxy.Proxy{Type: proxy.Router, Namespace: "edge", Metadata: agent})
}

func madeBy(t *testing.T, objects []byte, by *proxy.Proxy) (listeners []*listenerv3.Listener, problems string) {
	t.Helper()
	pc := meshtest.PushContext(t, meshtest.YAML(t, string(objects))...)
	class := index.Classify(pc, by).LDS
	for _, part := range listener.Listeners(pc.Read(), class) {
		pieces, ds := part.Make(pc.Read())
		for _, p := range pieces {
			listeners = append(listeners, p.Message.(*listenerv3.Listener))
		}
		for _, d := range ds {
			problems += fmt.Sprintf("%s %s %s: %s; %s; %s\n", d.Severity, d.Key.Name, d.Field, d.Reason, d.Advice, d.Effect)
		}
	}
	if problems == "" {
		problems = "none\n"
	}
	return listeners, problems
}

// show returns the chains of listeners as YAML: of a filter only where it leads, and of
// the reference to a secret only its name, because all are alike.
func show(t *testing.T, all []*listenerv3.Listener) []byte {
	t.Helper()
	var out []byte
	for _, l := range all {
		for _, c := range l.GetFilterChains() {
			c = proto.Clone(c).(*listenerv3.FilterChain)
			out = fmt.Appendf(out, "--- # %s: %s\n", l.GetName(), leads(t, c.GetFilters()))
			c.Filters = nil
			if s := c.GetTransportSocket(); s != nil {
				m := new(tlsv3.DownstreamTlsContext)
				if err := s.GetTypedConfig().UnmarshalTo(m); err != nil {
					t.Fatal(err)
				}
				common := m.GetCommonTlsContext()
				for _, ref := range append(common.GetTlsCertificateSdsSecretConfigs(), common.GetCombinedValidationContext().GetValidationContextSdsSecretConfig()) {
					if ref != nil {
						ref.SdsConfig = nil
					}
				}
				c.TransportSocket.ConfigType = &corev3.TransportSocket_TypedConfig{TypedConfig: piece.Any(m)}
			}
			b, err := protojson.Marshal(c)
			if err != nil {
				t.Fatal(err)
			}
			if b, err = yaml.JSONToYAML(b); err != nil {
				t.Fatal(err)
			}
			out = append(out, b...)
		}
	}
	if len(out) == 0 {
		return []byte("none\n")
	}
	return out
}

// leads says what a chain does with connections, after the filters of policies.
func leads(t *testing.T, filters []*listenerv3.Filter) string {
	t.Helper()
	said := ""
	for _, f := range filters {
		m, err := f.GetTypedConfig().UnmarshalNew()
		if err != nil {
			t.Fatal(err)
		}
		switch m := m.(type) {
		case *hcmv3.HttpConnectionManager:
			said += "requests by " + m.GetRds().GetRouteConfigName()
		case *tcpv3.TcpProxy:
			said += "connections to " + m.GetCluster()
		case *networkv3.RBAC:
			said += f.GetName() + "["
			for _, name := range slices.Sorted(maps.Keys(m.GetRules().GetPolicies())) {
				said += name
			}
			said += "], "
		default:
			said += f.GetName() + ", "
		}
	}
	return said
}

// MTLS-16: a router without a certificate of the mesh opens no server of mode ISTIO_MUTUAL,
// and says so.
func TestRouterWithoutCertificate(t *testing.T) {
	a, err := txtar.ParseFile("testdata/GW-12-istio-mutual.txtar")
	if err != nil {
		t.Fatal(err)
	}
	listeners, problems := madeBy(t, a.Files[0].Data, &proxy.Proxy{Type: proxy.Router, Namespace: "edge"})
	if len(listeners) > 0 || !strings.Contains(problems, "spec.servers[0].tls.mode") {
		t.Errorf("%d listeners; problems: %s", len(listeners), problems)
	}
}
