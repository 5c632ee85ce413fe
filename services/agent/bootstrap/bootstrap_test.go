package bootstrap_test

import (
	"bytes"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"meshlog.dev/services/agent/bootstrap"
	"meshlog.dev/services/mesh/proxy"
	"meshlog.dev/services/suite/envoytest"
)

// AGT-1: the node is Istio's, variables set its metadata, and frontends read from it what
// they need.
func TestNode(t *testing.T) {
	n := bootstrap.Node{
		Type: proxy.Sidecar, Name: "cart-1", Namespace: "shop", Account: "cart", IPs: []string{"10.0.0.7", "fd00::7"}, Labels: map[string]string{"app": "cart"},
		Variables: []string{"ISTIO_META_CLUSTER_ID=c1", "ISTIO_META_INTERCEPTION_MODE=REDIRECT", `ISTIO_METAJSON_LABELS={"app":"x","tier":"web"}`, "HOME=/", "ISTIO_META_NAMESPACE=evil"},
	}
	node, err := n.Build()
	if err != nil {
		t.Fatal(err)
	}
	p, err := proxy.New(node)
	if err != nil {
		t.Fatal(err)
	}
	if p.ID != "sidecar~10.0.0.7~cart-1.shop~shop.svc.cluster.local" || p.Namespace != "shop" || p.ClusterID != "c1" || p.Cluster != "cart.shop" ||
		p.Labels["app"] != "cart" || p.Labels["tier"] != "web" || p.Text("INTERCEPTION_MODE") != "REDIRECT" || p.Text("SDS_CLUSTER") != "sds-grpc" ||
		p.Text("SERVICE_ACCOUNT") != "cart" || p.RegexLimit() != 32768 || len(p.Addresses()) != 3 {
		t.Errorf("%+v", p)
	}
	n.Variables = []string{"ISTIO_METAJSON_X={"}
	if _, err := n.Build(); err == nil || !strings.Contains(err.Error(), "ISTIO_METAJSON_X is no JSON") {
		t.Error(err)
	}
}

// A real Envoy takes the bootstraps, and equal configurations give equal bytes.
func TestBootstrap(t *testing.T) {
	node, err := bootstrap.Node{Type: proxy.Router, Name: "gw", Namespace: "shop"}.Build()
	if err != nil {
		t.Fatal(err)
	}
	for name, c := range map[string]bootstrap.Config{
		"mesh roots": {XDS: []string{"meshlog.example:15012", "other.example:15012"}, ServerName: "meshlog.example"},
		"addresses":  {XDS: []string{"127.0.0.1:15012", "[::1]:15012"}, ServerName: "127.0.0.1"},
		"plaintext":  {XDS: []string{"127.0.0.1:15010"}, Plaintext: true},
	} {
		c.Node, c.Socket, c.Admin = node, "/run/sds.sock", "127.0.0.1:15000"
		b, err := c.Build()
		if err != nil {
			t.Fatal(err)
		}
		for range 20 {
			if again, err := c.Build(); err != nil || !bytes.Equal(again, b) {
				t.Errorf("%s: other bytes, %v", name, err)
			}
		}
		path := filepath.Join(t.TempDir(), "envoy.json")
		if err := os.WriteFile(path, b, 0o600); err != nil {
			t.Fatal(err)
		}
		if out, err := exec.Command(envoytest.Envoy(t), "--mode", "validate", "-l", "warning", "-c", path).CombinedOutput(); err != nil {
			t.Errorf("%s: %v\n%s", name, err, out)
		}
	}
}

func TestReadProxyConfig(t *testing.T) {
	c, err := bootstrap.ReadProxyConfig("discoveryAddress: meshlog:15012\nterminationDrainDuration: 7s\nconcurrency: 2\nproxyMetadata: {ISTIO_META_X: why}\nholdApplicationUntilProxyStarts: true\n")
	if err != nil || c.Discovery != "meshlog:15012" || c.Termination.Seconds() != 7 || c.Concurrency != 2 || c.Metadata[0] != "ISTIO_META_X=why" || len(c.WithoutEffect) != 1 {
		t.Errorf("%+v, %v", c, err)
	}
	if _, err := bootstrap.ReadProxyConfig("discoveryAddres: x"); err == nil {
		t.Error("an unknown field is taken")
	}
}

func TestReadLabels(t *testing.T) {
	got, err := bootstrap.ReadLabels("app=\"cart\"\nnote=\"a\\\"b\"\n")
	if err != nil || got["app"] != "cart" || got["note"] != `a"b` {
		t.Errorf("%v, %v", got, err)
	}
	if _, err := bootstrap.ReadLabels("app=cart"); err == nil {
		t.Error("a value without quotes is taken")
	}
}
