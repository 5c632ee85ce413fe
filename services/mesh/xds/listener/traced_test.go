package listener_test

import (
	"context"
	"net"
	"net/http"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	bootstrapv3 "github.com/envoyproxy/go-control-plane/envoy/config/bootstrap/v3"
	clusterv3 "github.com/envoyproxy/go-control-plane/envoy/config/cluster/v3"
	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	endpointv3 "github.com/envoyproxy/go-control-plane/envoy/config/endpoint/v3"
	listenerv3 "github.com/envoyproxy/go-control-plane/envoy/config/listener/v3"
	httpv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/upstreams/http/v3"
	accesslogv3 "github.com/envoyproxy/go-control-plane/envoy/service/accesslog/v3"
	collogsv1 "go.opentelemetry.io/proto/otlp/collector/logs/v1"
	coltracev1 "go.opentelemetry.io/proto/otlp/collector/trace/v1"
	commonv1 "go.opentelemetry.io/proto/otlp/common/v1"
	logsv1 "go.opentelemetry.io/proto/otlp/logs/v1"
	tracev1 "go.opentelemetry.io/proto/otlp/trace/v1"
	"google.golang.org/grpc"
	"google.golang.org/protobuf/types/known/anypb"
	"google.golang.org/protobuf/types/known/structpb"

	"meshlog.dev/deploy/testkit/program"
	"meshlog.dev/services/mesh/xds/piece"
	"meshlog.dev/services/suite/envoytest"
)

const collected = `
apiVersion: networking.istio.io/v1
kind: ServiceEntry
metadata: {name: web, namespace: shop}
spec:
  hosts: [web.example]
  resolution: STATIC
  ports: [{number: 8000, name: http, protocol: HTTP}]
  endpoints: [{address: 10.1.0.7, labels: {app: web}}]
---
apiVersion: networking.istio.io/v1
kind: ServiceEntry
metadata: {name: collector, namespace: logs}
spec:
  hosts: [collector.example]
  resolution: STATIC
  ports: [{number: 4317, name: grpc, protocol: GRPC}, {number: 9411, name: http, protocol: HTTP}]
  endpoints: [{address: 127.0.0.1}]
---
apiVersion: mesh.istio.io/v1alpha1
kind: MeshConfig
metadata: {name: default}
spec:
  extensionProviders:
  - {name: log, envoyOtelAls: {service: collector.example, port: 4317, logFormat: {text: "%REQ(:PATH)%", labels: {code: "%RESPONSE_CODE%", n: 7, in: {list: ["%PROTOCOL%"]}}}}}
  - {name: als, envoyHttpAls: {service: collector.example, port: 4317, logName: shop, additionalRequestHeadersToLog: [x-who]}}
  - {name: tcp, envoyTcpAls: {service: collector.example, port: 4317}}
  - {name: tracer, TRACER}
---
apiVersion: telemetry.istio.io/v1
kind: Telemetry
metadata: {name: web, namespace: shop}
spec:
  selector: {matchLabels: {app: web}}
  accessLogging: [{providers: [{name: log}, {name: als}], filter: {expression: "request.path.startsWith('/pay')"}}]
  tracing:
  - providers: [{name: tracer}]
    randomSamplingPercentage: SAMPLING
    customTags: {fixed: {literal: {value: a}}, who: {header: {name: x-who, defaultValue: nobody}}, home: {environment: {name: NO_SUCH_VARIABLE, defaultValue: none}}}
`

func objectsWith(tracer, sampling string) string {
	return strings.NewReplacer("TRACER", tracer, "SAMPLING", sampling).Replace(collected)
}

// collector is a server of OpenTelemetry and of Envoy's access logs, which passes on what it gets.
type collector struct {
	accesslogv3.UnimplementedAccessLogServiceServer
	spans   chan *tracev1.ResourceSpans
	records chan *logsv1.LogRecord
	entries chan *accesslogv3.StreamAccessLogsMessage
}

type traceServer struct {
	coltracev1.UnimplementedTraceServiceServer
	c *collector
}

func (s traceServer) Export(_ context.Context, r *coltracev1.ExportTraceServiceRequest) (*coltracev1.ExportTraceServiceResponse, error) {
	for _, spans := range r.GetResourceSpans() {
		s.c.spans <- spans
	}
	return &coltracev1.ExportTraceServiceResponse{}, nil
}

type logServer struct {
	collogsv1.UnimplementedLogsServiceServer
	c *collector
}

func (s logServer) Export(_ context.Context, r *collogsv1.ExportLogsServiceRequest) (*collogsv1.ExportLogsServiceResponse, error) {
	for _, resource := range r.GetResourceLogs() {
		for _, scope := range resource.GetScopeLogs() {
			for _, record := range scope.GetLogRecords() {
				s.c.records <- record
			}
		}
	}
	return &collogsv1.ExportLogsServiceResponse{}, nil
}

// StreamAccessLogs implements accesslogv3.AccessLogServiceServer.
func (c *collector) StreamAccessLogs(s accesslogv3.AccessLogService_StreamAccessLogsServer) error {
	for {
		m, err := s.Recv()
		if err != nil {
			return nil //nolint:nilerr // Envoy has closed the stream
		}
		c.entries <- m
	}
}

// serve starts the collector and returns the cluster of a name that leads to it.
func (c *collector) serve(t *testing.T, name string) *clusterv3.Cluster {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	s := grpc.NewServer()
	coltracev1.RegisterTraceServiceServer(s, traceServer{c: c})
	collogsv1.RegisterLogsServiceServer(s, logServer{c: c})
	accesslogv3.RegisterAccessLogServiceServer(s, c)
	go func() { _ = s.Serve(l) }()
	t.Cleanup(s.Stop)
	return clusterTo(name, uint32(l.Addr().(*net.TCPAddr).Port)) //nolint:gosec // ports fit
}

func clusterTo(name string, port uint32) *clusterv3.Cluster {
	h2 := piece.Any(&httpv3.HttpProtocolOptions{UpstreamProtocolOptions: &httpv3.HttpProtocolOptions_ExplicitHttpConfig_{
		ExplicitHttpConfig: &httpv3.HttpProtocolOptions_ExplicitHttpConfig{
			ProtocolConfig: &httpv3.HttpProtocolOptions_ExplicitHttpConfig_Http2ProtocolOptions{Http2ProtocolOptions: &corev3.Http2ProtocolOptions{}},
		},
	}})
	return &clusterv3.Cluster{
		Name: name, TypedExtensionProtocolOptions: map[string]*anypb.Any{"envoy.extensions.upstreams.http.v3.HttpProtocolOptions": h2},
		LoadAssignment: &endpointv3.ClusterLoadAssignment{ClusterName: name, Endpoints: []*endpointv3.LocalityLbEndpoints{{
			LbEndpoints: []*endpointv3.LbEndpoint{{HostIdentifier: &endpointv3.LbEndpoint_Endpoint{Endpoint: &endpointv3.Endpoint{
				Address: &corev3.Address{Address: &corev3.Address_SocketAddress{SocketAddress: &corev3.SocketAddress{
					Address: "127.0.0.1", PortSpecifier: &corev3.SocketAddress_PortValue{PortValue: port},
				}}},
			}}}},
		}}},
	}
}

func get(t *testing.T, envoy *program.Process, socket, path string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	client := &http.Client{Transport: &http.Transport{DisableKeepAlives: true, DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
		return new(net.Dialer).DialContext(ctx, "unix", socket)
	}}}
	if err := envoy.UntilAlive(ctx, "a response", func(ctx context.Context) error {
		request, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://web.example"+path, nil)
		if err != nil {
			return err
		}
		request.Header.Set("x-who", "me")
		response, err := client.Do(request)
		if err != nil {
			return err
		}
		return response.Body.Close()
	}); err != nil {
		t.Fatalf("%v\n%s", err, envoy.Tail(40))
	}
}

func receive[T any](t *testing.T, envoy *program.Process, from <-chan T, what string) (v T) {
	t.Helper()
	select {
	case v = <-from:
	case <-time.After(time.Minute):
		t.Fatalf("no %s\n%s", what, envoy.Tail(40))
	}
	return v
}

func attributesOf(all []*commonv1.KeyValue) map[string]string {
	texts := map[string]string{}
	for _, a := range all {
		texts[a.GetKey()] = a.GetValue().GetStringValue()
	}
	return texts
}

// TL-3, TL-5: a real Envoy reports a trace by OTLP, and sends the access logs that the expression
// chooses to services of OpenTelemetry and of Envoy's own protocol.
func TestEnvoyReportsToServices(t *testing.T) {
	dir := t.TempDir()
	c := &collector{spans: make(chan *tracev1.ResourceSpans, 10), records: make(chan *logsv1.LogRecord, 10), entries: make(chan *accesslogv3.StreamAccessLogsMessage, 10)}
	to := c.serve(t, "outbound|4317||collector.example")
	all := inbound(t, dir, objectsWith("opentelemetry: {service: collector.example, port: 4317, maxTagLength: 4}", "100"))
	runtime, err := structpb.NewStruct(map[string]any{"tracing.opentelemetry.min_flush_spans": 1})
	if err != nil {
		t.Fatal(err)
	}
	config := envoytest.Write(t, dir, &bootstrapv3.Bootstrap{
		Node: &corev3.Node{Id: "web", Cluster: "web.shop"},
		StaticResources: &bootstrapv3.Bootstrap_StaticResources{
			Clusters: []*clusterv3.Cluster{to}, Listeners: []*listenerv3.Listener{all["8000"]},
		},
		LayeredRuntime: &bootstrapv3.LayeredRuntime{Layers: []*bootstrapv3.RuntimeLayer{{
			Name: "static", LayerSpecifier: &bootstrapv3.RuntimeLayer_StaticLayer{StaticLayer: runtime},
		}}},
	})
	envoy, err := program.Start("envoy", dir, []string{envoytest.Envoy(t), "-c", config, "--disable-hot-restart", "--concurrency", "1", "-l", "warning"})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(envoy.Kill)
	get(t, envoy, filepath.Join(dir, "8000"), "/cart")
	get(t, envoy, filepath.Join(dir, "8000"), "/pay/now")

	spans := receive(t, envoy, c.spans, "span")
	if name := attributesOf(spans.GetResource().GetAttributes())["service.name"]; name != "web.shop" {
		t.Errorf("the span is of the service %q, want the node's cluster", name)
	}
	tags := attributesOf(spans.GetScopeSpans()[0].GetSpans()[0].GetAttributes())
	for tag, want := range map[string]string{"fixed": "a", "who": "me", "home": "none"} {
		if tags[tag] != want {
			t.Errorf("the tag %s is %q, want %q: %v", tag, tags[tag], want, tags)
		}
	}
	if url := tags["http.url"]; !strings.HasSuffix(url, "web.example/car") {
		t.Errorf("the span's http.url is %q, want 4 bytes of the path", url)
	}
	record := receive(t, envoy, c.records, "log record")
	if got := record.GetBody().GetStringValue(); got != "/pay/now" {
		t.Errorf("the first log record is about %q, and the expression chooses /pay/now", got)
	}
	fields := attributesOf(record.GetAttributes())
	if fields["code"] != strconv.Itoa(http.StatusServiceUnavailable) || fields["n"] != "7" {
		t.Errorf("the log record has %v", fields)
	}
	entry := receive(t, envoy, c.entries, "entry")
	logged := entry.GetHttpLogs().GetLogEntry()
	if entry.GetIdentifier().GetLogName() != "shop" || len(logged) != 1 || logged[0].GetRequest().GetPath() != "/pay/now" || logged[0].GetRequest().GetRequestHeaders()["x-who"] != "me" {
		t.Errorf("the entry is %v", entry)
	}
}

// TL-3: Envoy takes each tracer, and reports nothing if no request is chosen.
func TestEnvoyTakesTracers(t *testing.T) {
	for name, tracer := range map[string]string{
		"otlp":       "opentelemetry: {service: collector.example, port: 4317, grpc: {timeout: 1s, initialMetadata: [{name: x-a, value: b}]}, resourceDetectors: {environment: {}}}",
		"http":       "opentelemetry: {service: collector.example, port: 9411, http: {path: /v1/traces, headers: [{name: x-a, value: b}]}}",
		"zipkin":     "zipkin: {service: logs/collector.example, port: 9411, maxTagLength: 9}",
		"new zipkin": "zipkin: {service: collector.example, port: 9411, path: /spans, timeout: 1s, headers: [{name: x-a, value: b}], traceContextOption: USE_B3_WITH_W3C_PROPAGATION}",
		"datadog":    "datadog: {service: collector.example, port: 9411}",
		"skywalking": "skywalking: {service: collector.example, port: 4317, accessToken: secret}",
	} {
		t.Run(name, func(t *testing.T) {
			l := inbound(t, t.TempDir(), objectsWith(tracer, "0.5"))["8000"]
			m := managerOf(t, l)
			if sampling := m.GetTracing().GetRandomSampling().GetValue(); sampling != 0.5 || m.GetTracing().GetProvider() == nil {
				t.Errorf("the tracing is %v", m.GetTracing())
			}
			envoytest.Validate(t, envoytest.Config{
				Listeners: []*listenerv3.Listener{l},
				Clusters:  []*clusterv3.Cluster{clusterTo("outbound|4317||collector.example", 1), clusterTo("outbound|9411||collector.example", 1)},
			})
		})
	}
}
