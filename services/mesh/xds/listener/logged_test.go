package listener_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	bootstrapv3 "github.com/envoyproxy/go-control-plane/envoy/config/bootstrap/v3"
	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	listenerv3 "github.com/envoyproxy/go-control-plane/envoy/config/listener/v3"
	hcmv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/network/http_connection_manager/v3"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/structpb"

	"meshlog.dev/deploy/testkit/program"
	"meshlog.dev/services/mesh/index"
	"meshlog.dev/services/mesh/kind/validate"
	"meshlog.dev/services/mesh/meshtest"
	"meshlog.dev/services/mesh/proxy"
	"meshlog.dev/services/mesh/xds/listener"
	"meshlog.dev/services/mesh/xds/piece"
	"meshlog.dev/services/suite/envoytest"
)

const loggedMesh = `
apiVersion: networking.istio.io/v1
kind: ServiceEntry
metadata: {name: web, namespace: shop}
spec:
  hosts: [web.example]
  resolution: STATIC
  ports: [{number: 8000, name: http, protocol: HTTP}, {number: 5432, name: tcp, protocol: TCP}]
  endpoints: [{address: 10.1.0.7, labels: {app: web}}]
---
apiVersion: mesh.istio.io/v1alpha1
kind: MeshConfig
metadata: {name: default}
spec:
  extensionProviders:
  - name: file
    envoyFileAccessLog:
      path: LOG
      logFormat: FORMAT
---
apiVersion: telemetry.istio.io/v1
kind: Telemetry
metadata: {name: web, namespace: shop}
spec:
  selector: {matchLabels: {app: web}}
  accessLogging: [{providers: [{name: file}], match: {mode: SERVER}}]
`

// inbound returns the listeners for the workload of a sidecar without redirection, each whole
// and on a unix socket of dir that has its port as its name.
func inbound(t *testing.T, dir, objects string) map[string]*listenerv3.Listener {
	t.Helper()
	pc := meshtest.PushContext(t, meshtest.YAML(t, objects)...)
	metadata := &structpb.Struct{Fields: map[string]*structpb.Value{
		"INTERCEPTION_MODE": structpb.NewStringValue("NONE"), "INSTANCE_IPS": structpb.NewStringValue("10.1.0.7"),
	}}
	class := index.Classify(pc, &proxy.Proxy{
		ID: "sidecar~10.1.0.7~web.shop~shop.svc.cluster.local", Type: proxy.Sidecar, Namespace: "shop", Cluster: "web.shop",
		Labels: map[string]string{"app": "web"}, Metadata: metadata,
	}).LDS
	all := map[string]*listenerv3.Listener{}
	for _, part := range listener.Listeners(pc.Read(), class) {
		pieces, _ := part.Make(pc.Read())
		for _, p := range pieces {
			if !strings.HasPrefix(p.Name, "inbound_") {
				continue
			}
			_, port, _ := strings.Cut(strings.TrimPrefix(p.Name, "inbound_"), "_")
			if all[port] == nil {
				all[port] = &listenerv3.Listener{}
			}
			proto.Merge(all[port], p.Message)
		}
	}
	for port, l := range all {
		if err := l.ValidateAll(); err != nil {
			t.Fatal(err)
		}
		withoutSlots(t, l)
		l.Address = &corev3.Address{Address: &corev3.Address_Pipe{Pipe: &corev3.Pipe{Path: filepath.Join(dir, port)}}}
	}
	return all
}

// withoutSlots removes the filters that an Envoy would ask for by ECDS.
func withoutSlots(t *testing.T, l *listenerv3.Listener) {
	t.Helper()
	for _, chain := range l.GetFilterChains() {
		for _, f := range chain.GetFilters() {
			m := new(hcmv3.HttpConnectionManager)
			if !f.GetTypedConfig().MessageIs(m) {
				continue
			}
			if err := f.GetTypedConfig().UnmarshalTo(m); err != nil {
				t.Fatal(err)
			}
			m.HttpFilters = slices.DeleteFunc(m.GetHttpFilters(), func(f *hcmv3.HttpFilter) bool { return f.GetConfigDiscovery() != nil })
			f.ConfigType = &listenerv3.Filter_TypedConfig{TypedConfig: piece.Any(m)}
		}
	}
}

// managerOf returns the first connection manager of a listener.
func managerOf(t *testing.T, l *listenerv3.Listener) *hcmv3.HttpConnectionManager {
	t.Helper()
	m := new(hcmv3.HttpConnectionManager)
	for _, chain := range l.GetFilterChains() {
		for _, f := range chain.GetFilters() {
			if f.GetTypedConfig().MessageIs(m) {
				if err := f.GetTypedConfig().UnmarshalTo(m); err != nil {
					t.Fatal(err)
				}
				return m
			}
		}
	}
	t.Fatal("no connection manager")
	return nil
}

// connect sends bytes to a unix socket and waits until the server closes the connection.
func connect(t *testing.T, socket string) {
	t.Helper()
	conn, err := net.Dial("unix", socket)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	if _, err := conn.Write([]byte("hello")); err != nil {
		t.Fatal(err)
	}
	if _, err := io.Copy(io.Discard, conn); err != nil && !errors.Is(err, syscall.ECONNRESET) {
		t.Fatal(err)
	}
}

// TL-5: a real Envoy writes a line about a request, and one about a connection, with the
// fields that the provider names.
func TestEnvoyWritesAccessLog(t *testing.T) {
	dir := t.TempDir()
	log := filepath.Join(dir, "log")
	const format = `{labels: {code: "%RESPONSE_CODE%", path: "%REQ(:PATH)%", by: {host: "%REQ(:AUTHORITY)%"}, chain: "%FILTER_CHAIN_NAME%", fixed: 7}}`
	all := inbound(t, dir, strings.NewReplacer("LOG", log, "FORMAT", format).Replace(loggedMesh))
	if len(all) != 2 {
		t.Fatalf("%d listeners, want 2", len(all))
	}
	config := envoytest.Write(t, dir, &bootstrapv3.Bootstrap{
		Node:            &corev3.Node{Id: "web", Cluster: "web"},
		StaticResources: &bootstrapv3.Bootstrap_StaticResources{Listeners: []*listenerv3.Listener{all["8000"], all["5432"]}},
	})
	envoy, err := program.Start("envoy", dir, []string{
		envoytest.Envoy(t), "-c", config, "--disable-hot-restart", "--concurrency", "1", "-l", "warning", "--file-flush-interval-msec", "20",
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(envoy.Kill)
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	client := &http.Client{Transport: &http.Transport{DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
		return new(net.Dialer).DialContext(ctx, "unix", filepath.Join(dir, "8000"))
	}}}
	if err := envoy.UntilAlive(ctx, "a response", func(ctx context.Context) error {
		request, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://web.example/cart", nil)
		if err != nil {
			return err
		}
		response, err := client.Do(request)
		if err != nil {
			return err
		}
		return response.Body.Close()
	}); err != nil {
		t.Fatalf("%v\n%s", err, envoy.Tail(40))
	}
	connect(t, filepath.Join(dir, "5432"))
	var lines [][]byte
	if err := envoy.UntilAlive(ctx, "two lines", func(context.Context) error {
		b, err := os.ReadFile(log)
		if lines = bytes.Split(bytes.TrimSpace(b), []byte("\n")); err == nil && len(lines) < 2 {
			err = errors.New("fewer lines: " + string(b))
		}
		return err
	}); err != nil {
		t.Fatalf("%v\n%s", err, envoy.Tail(40))
	}
	type entry struct {
		Code  int               `json:"code"`
		Path  string            `json:"path"`
		By    map[string]string `json:"by"`
		Chain string            `json:"chain"`
		Fixed int               `json:"fixed"`
	}
	var request, connection entry
	for i, e := range []*entry{&request, &connection} {
		if err := json.Unmarshal(lines[i], e); err != nil {
			t.Fatalf("%s: %v", lines[i], err)
		}
	}
	// The cluster does not exist here, so Envoy answers itself. The connection has a chain, so its
	// filter has logged it, and not the listener.
	if request.Code != http.StatusServiceUnavailable || request.Path != "/cart" || request.By["host"] != "web.example" || request.Fixed != 7 {
		t.Errorf("the request is logged as %s", lines[0])
	}
	if connection.Code != 0 || connection.Chain != "inbound_10.1.0.7_5432" {
		t.Errorf("the connection is logged as %s", lines[1])
	}
}

// TL-5: Envoy takes each operator that the validation of formats lets pass.
func TestEnvoyTakesLogOperators(t *testing.T) {
	dir := t.TempDir()
	format := `{text: "` + strings.Join(validate.LogOperators(), " ") + ` %START_TIME(%s)% %REQ(X-A?:PATH):10%"}`
	all := inbound(t, dir, strings.NewReplacer("LOG", "/dev/null", "FORMAT", format).Replace(loggedMesh))
	envoytest.Validate(t, envoytest.Config{Listeners: []*listenerv3.Listener{all["8000"], all["5432"]}})
}

// MC-12, LSN-17: a listener logs the connections that no chain takes, unless the MeshConfig says
// that it must not.
func TestListenerLog(t *testing.T) {
	objects := strings.NewReplacer("LOG", "/dev/null", "FORMAT", "{}").Replace(loggedMesh)
	for port, l := range inbound(t, t.TempDir(), objects) {
		if flags := l.GetAccessLog()[0].GetFilter().GetResponseFlagFilter().GetFlags(); len(l.GetAccessLog()) != 1 || !slices.Equal(flags, []string{"NR"}) {
			t.Errorf("the listener of port %s logs %v", port, l.GetAccessLog())
		}
	}
	silent := strings.Replace(objects, "\nspec:\n  extensionProviders:", "\nspec:\n  disableEnvoyListenerLog: true\n  extensionProviders:", 1)
	for port, l := range inbound(t, t.TempDir(), silent) {
		if len(l.GetAccessLog()) > 0 {
			t.Errorf("the listener of port %s logs %v", port, l.GetAccessLog())
		}
	}
}
