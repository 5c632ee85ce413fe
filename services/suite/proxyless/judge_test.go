package proxyless_test

import (
	"path/filepath"
	"slices"
	"strings"
	"testing"

	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"golang.org/x/tools/txtar"
	"google.golang.org/grpc"
	_ "google.golang.org/grpc/balancer/rls" // without it, clients reject all configurations of RLS
	"google.golang.org/protobuf/types/known/anypb"
	"sigs.k8s.io/yaml"

	"meshlog.dev/proto/ident"
	configv1 "meshlog.dev/proto/meshlog/config/v1"
	"meshlog.dev/services/mesh/kind"
	"meshlog.dev/services/mesh/problem"
)

// A real gRPC client rejects the raw resources for gRPC clients in which there is an
// error, and takes all others, a warning or none: the documents of mesh/kind (PRO-6).
func TestClientAgrees(t *testing.T) {
	archives, err := filepath.Glob("../../mesh/kind/testdata/grpc-*.txtar")
	if err != nil || len(archives) != 4 {
		t.Fatalf("archives %v, %v; want one of each type", archives, err)
	}
	for _, path := range archives {
		a, err := txtar.ParseFile(path)
		if err != nil {
			t.Fatal(err)
		}
		for _, f := range a.Files {
			if name, isDocument := strings.CutSuffix(f.Name, ".yaml"); isDocument {
				t.Run(filepath.Base(path)+"/"+name, func(t *testing.T) { agrees(t, rawResource(t, f.Data)) })
			}
		}
	}
}

func agrees(t *testing.T, r *configv1.Resource) {
	k, _ := kind.ByName("Resource")
	problems := k.Validate("", r)
	refused := slices.ContainsFunc(problems, func(p problem.Diagnostic) bool { return p.Severity == problem.Error })
	j := &judge{subject: r.GetResource(), verdict: make(chan string, 1)}
	for _, text := range chain {
		j.others = append(j.others, rawResource(t, []byte(text)).GetResource())
	}
	address := serve(t, func(s *grpc.Server) { discoveryv3.RegisterAggregatedDiscoveryServiceServer(s, j) })
	dial(t, address, "target").Connect()
	select {
	case reason := <-j.verdict:
		if (reason != "") != refused {
			t.Errorf("meshlog says %v, the client %q", problems, reason)
		}
	case <-t.Context().Done():
		t.Error("the client did not ask for it")
	}
}

// chain leads a client that calls "target" to each type; all have names of their own
// by which the documents take their places.
var chain = []string{
	`resource:
  "@type": type.googleapis.com/envoy.config.listener.v3.Listener
  name: target
  api_listener:
    api_listener:
      "@type": type.googleapis.com/envoy.extensions.filters.network.http_connection_manager.v3.HttpConnectionManager
      rds: {route_config_name: routes, config_source: {ads: {}}}
      http_filters: [{name: router, typed_config: {"@type": type.googleapis.com/envoy.extensions.filters.http.router.v3.Router}}]`,
	`resource:
  "@type": type.googleapis.com/envoy.config.route.v3.RouteConfiguration
  name: routes
  virtual_hosts: [{name: a, domains: ["*"], routes: [{match: {prefix: ""}, route: {cluster: cluster}}]}]`,
	`resource:
  "@type": type.googleapis.com/envoy.config.cluster.v3.Cluster
  name: cluster
  type: EDS
  eds_cluster_config: {eds_config: {ads: {}}}`,
}

func rawResource(t *testing.T, text []byte) *configv1.Resource {
	t.Helper()
	spec, err := yaml.YAMLToJSON(text)
	if err != nil {
		t.Fatal(err)
	}
	k, _ := kind.ByName("Resource")
	m, err := k.DecodeJSON(spec)
	if err != nil {
		t.Fatal(err)
	}
	return m.(*configv1.Resource)
}

// judge serves a resource, and what leads to it, and learns if the client takes it.
type judge struct {
	discoveryv3.UnimplementedAggregatedDiscoveryServiceServer
	subject *anypb.Any
	others  []*anypb.Any
	verdict chan string // the client's reason to reject the subject; empty: it takes it
}

// StreamAggregatedResources answers each type once, with the only resource of it.
func (j *judge) StreamAggregatedResources(s discoveryv3.AggregatedDiscoveryService_StreamAggregatedResourcesServer) error {
	answered := map[string]bool{}
	for {
		req, err := s.Recv()
		if err != nil {
			return nil //nolint:nilerr // the client has gone
		}
		t := req.GetTypeUrl()
		if req.GetResponseNonce() != "" && t == j.subject.GetTypeUrl() {
			select {
			case j.verdict <- req.GetErrorDetail().GetMessage():
			default: // it has said so before
			}
		}
		if _, known := ident.ResourceTypeOf(t); !known || answered[t] {
			continue
		}
		answered[t] = true
		one := j.subject
		if i := slices.IndexFunc(j.others, func(a *anypb.Any) bool { return a.GetTypeUrl() == t }); t != one.GetTypeUrl() && i >= 0 {
			one = j.others[i]
		}
		if err := s.Send(&discoveryv3.DiscoveryResponse{TypeUrl: t, VersionInfo: "1", Nonce: "1", Resources: []*anypb.Any{one}}); err != nil {
			return err
		}
	}
}
