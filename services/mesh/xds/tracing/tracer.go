package tracing

import (
	"cmp"
	"strings"
	"time"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	tracev3 "github.com/envoyproxy/go-control-plane/envoy/config/trace/v3"
	hcmv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/network/http_connection_manager/v3"
	detectorsv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/tracers/opentelemetry/resource_detectors/v3"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/wrapperspb"
	meshconfig "istio.io/api/mesh/v1alpha1"

	"meshlog.dev/services/mesh/index"
	"meshlog.dev/services/mesh/xds/callee"
	"meshlog.dev/services/mesh/xds/piece"
)

// The times after which a report ends if the provider does not say, as in Istio.
const (
	otlpTimeout   = 3 * time.Second
	zipkinTimeout = 5 * time.Second
)

// defaultService is the name of the service of a proxy that has none, as Envoy has it.
const defaultService = "envoy"

type (
	provider   = meshconfig.MeshConfig_ExtensionProvider
	zipkin     = meshconfig.MeshConfig_ExtensionProvider_ZipkinTracingProvider
	datadog    = meshconfig.MeshConfig_ExtensionProvider_DatadogTracingProvider
	httpHeader = meshconfig.MeshConfig_ExtensionProvider_HttpHeader
)

// legacy returns the tracer of defaultConfig.tracing as a provider without a port, whose
// service is an address; nil: it has none that proxies know.
func legacy(mesh *meshconfig.MeshConfig) *provider {
	config := mesh.GetDefaultConfig().GetTracing()
	switch {
	case config.GetZipkin() != nil:
		return &provider{Provider: &meshconfig.MeshConfig_ExtensionProvider_Zipkin{Zipkin: &zipkin{Service: config.GetZipkin().GetAddress()}}}
	case config.GetDatadog() != nil:
		return &provider{Provider: &meshconfig.MeshConfig_ExtensionProvider_Datadog{Datadog: &datadog{Service: config.GetDatadog().GetAddress()}}}
	}
	return nil
}

// collector has the fields that all providers of traces have.
type collector interface {
	GetService() string
	GetPort() uint32
}

// collectorOf returns to what a provider reports, and whether by gRPC; nil: it reports no
// traces.
func collectorOf(p *provider) (to collector, http2 bool) {
	switch {
	case p.GetZipkin() != nil:
		return p.GetZipkin(), false
	case p.GetDatadog() != nil:
		return p.GetDatadog(), false
	case p.GetSkywalking() != nil:
		return p.GetSkywalking(), true
	case p.GetOpentelemetry() != nil:
		return p.GetOpentelemetry(), p.GetOpentelemetry().GetHttp() == nil
	}
	return nil, false
}

// find returns the service to which proxies report, or says why they cannot.
func find(r *index.Reader, p *provider, from callee.Caller) (to callee.Callee, reason, advice string) {
	c, http2 := collectorOf(p)
	switch {
	case c == nil:
		return callee.Callee{}, "the provider " + p.GetName() + " of extensionProviders reports no traces", "name one with opentelemetry, zipkin, datadog or skywalking"
	case c.GetPort() == 0:
		return callee.At(r, c.GetService(), http2, from)
	}
	return callee.Find(r, c.GetService(), c.GetPort(), http2, from)
}

// tracerOf returns the tracing with the tracer of a provider, or says why proxies have none.
func tracerOf(r *index.Reader, p *provider, of Proxies) (m *hcmv3.HttpConnectionManager_Tracing, reason, advice string) {
	to, reason, advice := find(r, p, of.From)
	if reason != "" {
		return nil, reason, advice
	}
	m = &hcmv3.HttpConnectionManager_Tracing{}
	longest := uint32(0)
	switch {
	case p.GetZipkin() != nil:
		m.Provider, longest = tracer("envoy.tracers.zipkin", zipkinOf(to, p.GetZipkin())), p.GetZipkin().GetMaxTagLength()
	case p.GetDatadog() != nil:
		longest = p.GetDatadog().GetMaxTagLength()
		m.Provider = tracer("envoy.tracers.datadog", &tracev3.DatadogConfig{
			CollectorCluster: to.Cluster, CollectorHostname: to.Host, ServiceName: cmp.Or(of.Name, defaultService),
		})
	case p.GetSkywalking() != nil:
		config := &tracev3.SkyWalkingConfig{GrpcService: to.GRPC()}
		if token := p.GetSkywalking().GetAccessToken(); token != "" {
			config.ClientConfig = &tracev3.ClientConfig{BackendTokenSpecifier: &tracev3.ClientConfig_BackendToken{BackendToken: token}}
		}
		m.Provider = tracer("envoy.tracers.skywalking", config)
		m.SpawnUpstreamSpan = wrapperspb.Bool(true) // SkyWalking wants a span for each hop
	default:
		longest = p.GetOpentelemetry().GetMaxTagLength()
		m.Provider = tracer("envoy.tracers.opentelemetry", otlp(to, p.GetOpentelemetry(), of.Name))
	}
	if longest > 0 {
		m.MaxPathTagLength = wrapperspb.UInt32(longest)
	}
	return m, "", ""
}

func tracer(name string, config proto.Message) *tracev3.Tracing_Http {
	return &tracev3.Tracing_Http{Name: name, ConfigType: &tracev3.Tracing_Http_TypedConfig{TypedConfig: piece.Any(config)}}
}

// zipkinOf returns how spans are reported to Zipkin. Only with a timeout or headers it has
// fields that Envoys before 1.37 refuse.
func zipkinOf(to callee.Callee, p *zipkin) *tracev3.ZipkinConfig {
	path := cmp.Or(p.GetPath(), "/api/v2/spans")
	config := &tracev3.ZipkinConfig{
		CollectorEndpointVersion: tracev3.ZipkinConfig_HTTP_JSON,
		TraceId_128Bit:           !p.GetEnable_64BitTraceId(),
		SharedSpanContext:        wrapperspb.Bool(false),
	}
	if p.GetTraceContextOption() == meshconfig.MeshConfig_ExtensionProvider_ZipkinTracingProvider_USE_B3_WITH_W3C_PROPAGATION {
		config.TraceContextOption = tracev3.ZipkinConfig_USE_B3_WITH_W3C_PROPAGATION
	}
	if p.GetTimeout() == nil && len(p.GetHeaders()) == 0 {
		config.CollectorCluster, config.CollectorEndpoint, config.CollectorHostname = to.Cluster, path, to.Host
		return config
	}
	config.CollectorService = overHTTP(to, path, cmp.Or(p.GetTimeout(), durationpb.New(zipkinTimeout)), p.GetHeaders())
	return config
}

// otlp returns how spans are reported by OTLP, over gRPC or HTTP.
func otlp(to callee.Callee, p *meshconfig.MeshConfig_ExtensionProvider_OpenTelemetryTracingProvider, name string) *tracev3.OpenTelemetryConfig {
	config := &tracev3.OpenTelemetryConfig{ServiceName: name}
	if h := p.GetHttp(); h != nil {
		config.HttpService = overHTTP(to, h.GetPath(), cmp.Or(h.GetTimeout(), durationpb.New(otlpTimeout)), h.GetHeaders())
	} else {
		config.GrpcService = to.GRPC()
		config.GrpcService.Timeout = p.GetGrpc().GetTimeout()
		for _, h := range p.GetGrpc().GetInitialMetadata() {
			if h.GetValue() != "" {
				config.GrpcService.InitialMetadata = append(config.GrpcService.InitialMetadata, &corev3.HeaderValue{Key: h.GetName(), Value: h.GetValue()})
			}
		}
	}
	if p.GetResourceDetectors().GetEnvironment() != nil {
		config.ResourceDetectors = append(config.ResourceDetectors, detector("environment", &detectorsv3.EnvironmentResourceDetectorConfig{}))
	}
	if p.GetResourceDetectors().GetDynatrace() != nil {
		config.ResourceDetectors = append(config.ResourceDetectors, detector("dynatrace", &detectorsv3.DynatraceResourceDetectorConfig{}))
	}
	return config
}

func detector(name string, config proto.Message) *corev3.TypedExtensionConfig {
	return &corev3.TypedExtensionConfig{Name: "envoy.tracers.opentelemetry.resource_detectors." + name, TypedConfig: piece.Any(config)}
}

// overHTTP returns a service that is called by HTTP.
func overHTTP(to callee.Callee, path string, timeout *durationpb.Duration, headers []*httpHeader) *corev3.HttpService {
	s := &corev3.HttpService{HttpUri: &corev3.HttpUri{
		Uri: "http://" + to.Host + "/" + strings.TrimPrefix(path, "/"), HttpUpstreamType: &corev3.HttpUri_Cluster{Cluster: to.Cluster}, Timeout: timeout,
	}}
	for _, h := range headers {
		if h.GetValue() != "" {
			s.RequestHeadersToAdd = append(s.RequestHeadersToAdd, &corev3.HeaderValueOption{
				AppendAction: corev3.HeaderValueOption_OVERWRITE_IF_EXISTS_OR_ADD, Header: &corev3.HeaderValue{Key: h.GetName(), Value: h.GetValue()},
			})
		}
	}
	return s
}
