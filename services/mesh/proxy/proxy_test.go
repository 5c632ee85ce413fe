package proxy_test

import (
	"strings"
	"testing"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	"github.com/google/go-cmp/cmp"
	"google.golang.org/protobuf/testing/protocmp"
	"google.golang.org/protobuf/types/known/structpb"

	"meshlog.dev/services/mesh/proxy"
)

func metadata(t *testing.T, fields map[string]any) *structpb.Struct {
	t.Helper()
	s, err := structpb.NewStruct(fields)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

func TestNew(t *testing.T) {
	for name, test := range map[string]struct {
		node *corev3.Node
		want proxy.Proxy
	}{
		"plain Envoy": {
			node: &corev3.Node{Id: "edge-1", Cluster: "edge", UserAgentName: "envoy", UserAgentVersionType: &corev3.Node_UserAgentVersion{UserAgentVersion: "1.40.0"}},
			want: proxy.Proxy{ID: "edge-1", Type: proxy.Router, Namespace: "default", Cluster: "edge", UserAgent: "envoy 1.40.0"},
		},
		"plain Envoy with metadata and locality": {
			node: &corev3.Node{
				Id: "edge-1", Cluster: "edge",
				Metadata: metadata(t, map[string]any{"NAMESPACE": "shop", "CLUSTER_ID": "c1", "LABELS": map[string]any{"app": "web", "n": 1}}),
				Locality: &corev3.Locality{Region: "r", Zone: "z", SubZone: "s"},
			},
			want: proxy.Proxy{
				ID: "edge-1", Type: proxy.Router, Namespace: "shop", Cluster: "edge", ClusterID: "c1",
				Labels: map[string]string{"app": "web"}, Locality: proxy.Locality{Region: "r", Zone: "z", SubZone: "s"},
			},
		},
		"Istio sidecar": {
			node: &corev3.Node{Id: "sidecar~10.0.0.1~web-1.shop~shop.svc.cluster.local", Cluster: "web.shop"},
			want: proxy.Proxy{
				ID: "sidecar~10.0.0.1~web-1.shop~shop.svc.cluster.local", Type: proxy.Sidecar, Namespace: "shop",
				Domain: "shop.svc.cluster.local", Cluster: "web.shop",
			},
		},
		"Istio router; its metadata win": {
			node: &corev3.Node{
				Id: "router~10.0.0.1~gw.a~a.svc.cluster.local", Metadata: metadata(t, map[string]any{"NAMESPACE": "b", "DNS_DOMAIN": "b.svc.cluster.local"}),
			},
			want: proxy.Proxy{
				ID: "router~10.0.0.1~gw.a~a.svc.cluster.local", Type: proxy.Router, Namespace: "b", Domain: "b.svc.cluster.local",
			},
		},
		"tildes alone make no Istio id": {
			node: &corev3.Node{Id: "a~b~c.d~e"},
			want: proxy.Proxy{ID: "a~b~c.d~e", Type: proxy.Router, Namespace: "default"},
		},
		"extensions with the matcher of certificates": {
			node: &corev3.Node{Id: "edge-1", Extensions: []*corev3.Extension{{Name: "envoy.filters.http.rbac"}, {Name: proxy.MTLSAuthenticated}}},
			want: proxy.Proxy{ID: "edge-1", Type: proxy.Router, Namespace: "default"},
		},
		"extensions without it": {
			node: &corev3.Node{Id: "edge-1", Extensions: []*corev3.Extension{{Name: "envoy.filters.http.lua"}}},
			want: proxy.Proxy{ID: "edge-1", Type: proxy.Router, Namespace: "default", PrincipalNames: true},
		},
		"gRPC": {
			node: &corev3.Node{Id: "job-1", UserAgentName: "gRPC Go", UserAgentVersionType: &corev3.Node_UserAgentVersion{UserAgentVersion: "1.85.0"}},
			want: proxy.Proxy{ID: "job-1", Type: proxy.Router, Namespace: "default", UserAgent: "gRPC Go 1.85.0", GRPC: true},
		},
	} {
		t.Run(name, func(t *testing.T) {
			got, err := proxy.New(test.node)
			if err != nil {
				t.Fatal(err)
			}
			test.want.Metadata = test.node.GetMetadata()
			if diff := cmp.Diff(&test.want, got, protocmp.Transform()); diff != "" {
				t.Errorf("-want +got:\n%s", diff)
			}
			again, err := proxy.New(got.Node())
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(got, again, protocmp.Transform()); diff != "" {
				t.Errorf("the proxy made from Node() differs (-want +got):\n%s", diff)
			}
		})
	}
}

func TestNewErrors(t *testing.T) {
	for want, node := range map[string]*corev3.Node{
		"node is missing":  nil,
		"node.id is empty": {Cluster: "edge"},
	} {
		_, err := proxy.New(node)
		if err == nil || !strings.Contains(err.Error(), want) || !strings.Contains(err.Error(), "bootstrap") {
			t.Errorf("got %v, want %q and advice about the bootstrap", err, want)
		}
	}
}
