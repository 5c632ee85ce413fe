package accesslog

import (
	"cmp"
	"maps"
	"slices"
	"strconv"

	accesslogv3 "github.com/envoyproxy/go-control-plane/envoy/config/accesslog/v3"
	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	grpcv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/access_loggers/grpc/v3"
	otelv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/access_loggers/open_telemetry/v3"
	commonv1 "go.opentelemetry.io/proto/otlp/common/v1"
	"google.golang.org/protobuf/types/known/structpb"
	meshconfig "istio.io/api/mesh/v1alpha1"

	"meshlog.dev/services/mesh/index"
	"meshlog.dev/services/mesh/xds/callee"
	"meshlog.dev/services/mesh/xds/piece"
)

// The names of logs whose providers have none, as in Istio.
const (
	httpLogName = "http_envoy_accesslog"
	tcpLogName  = "tcp_envoy_accesslog"
	otelLogName = "otel_envoy_accesslog"
)

type (
	provider     = meshconfig.MeshConfig_ExtensionProvider
	httpProvider = meshconfig.MeshConfig_ExtensionProvider_EnvoyHttpGrpcV3LogProvider
)

// service is a provider that sends entries to a service by gRPC.
type service interface {
	GetService() string
	GetPort() uint32
}

// serviceOf returns the service to which a provider sends entries; nil: it sends none.
func serviceOf(p *provider) service {
	switch {
	case p.GetEnvoyHttpAls() != nil:
		return p.GetEnvoyHttpAls()
	case p.GetEnvoyTcpAls() != nil:
		return p.GetEnvoyTcpAls()
	case p.GetEnvoyOtelAls() != nil:
		return p.GetEnvoyOtelAls()
	}
	return nil
}

// serviceOfMesh returns the service of enableEnvoyAccessLogService, or says why proxies
// cannot call it.
func serviceOfMesh(r *index.Reader, from callee.Caller) (to callee.Callee, reason, advice string) {
	return callee.At(r, r.Mesh().GetDefaultConfig().GetEnvoyAccessLogService().GetAddress(), true, from)
}

// bySendingTo returns the log of a provider that sends entries to a service.
func bySendingTo(to callee.Callee, p *provider) *accesslogv3.AccessLog {
	if t := p.GetEnvoyTcpAls(); t != nil {
		return &accesslogv3.AccessLog{Name: "envoy.access_loggers.tcp_grpc", ConfigType: &accesslogv3.AccessLog_TypedConfig{
			TypedConfig: piece.Any(&grpcv3.TcpGrpcAccessLogConfig{
				CommonConfig: common(to, cmp.Or(t.GetLogName(), tcpLogName), t.GetFilterStateObjectsToLog()),
			}),
		}}
	}
	if o := p.GetEnvoyOtelAls(); o != nil {
		return byOpenTelemetry(to, o)
	}
	return byHTTP(to, p.GetEnvoyHttpAls())
}

// byHTTP returns a log that sends entries about requests; p may be nil.
func byHTTP(to callee.Callee, p *httpProvider) *accesslogv3.AccessLog {
	return &accesslogv3.AccessLog{Name: "envoy.access_loggers.http_grpc", ConfigType: &accesslogv3.AccessLog_TypedConfig{
		TypedConfig: piece.Any(&grpcv3.HttpGrpcAccessLogConfig{
			CommonConfig:                    common(to, cmp.Or(p.GetLogName(), httpLogName), p.GetFilterStateObjectsToLog()),
			AdditionalRequestHeadersToLog:   p.GetAdditionalRequestHeadersToLog(),
			AdditionalResponseHeadersToLog:  p.GetAdditionalResponseHeadersToLog(),
			AdditionalResponseTrailersToLog: p.GetAdditionalResponseTrailersToLog(),
		}),
	}}
}

func common(to callee.Callee, name string, states []string) *grpcv3.CommonGrpcAccessLogConfig {
	return &grpcv3.CommonGrpcAccessLogConfig{
		LogName: name, GrpcService: to.GRPC(), TransportApiVersion: corev3.ApiVersion_V3, FilterStateObjectsToLog: states,
	}
}

// byOpenTelemetry returns a log that sends entries by OTLP. Its common_config is deprecated
// in Envoy 1.37, and the only form that older ones read.
func byOpenTelemetry(to callee.Callee, p *meshconfig.MeshConfig_ExtensionProvider_EnvoyOpenTelemetryLogProvider) *accesslogv3.AccessLog {
	body := cmp.Or(p.GetLogFormat().GetText(), textFormat)
	config := &otelv3.OpenTelemetryAccessLogConfig{
		CommonConfig:         common(to, cmp.Or(p.GetLogName(), otelLogName), nil), //nolint:staticcheck // older Envoys know nothing else
		DisableBuiltinLabels: true,
		Body:                 textOf(body),
	}
	if fields := p.GetLogFormat().GetLabels(); len(fields.GetFields()) > 0 {
		config.Attributes = attributes(fields)
	}
	return &accesslogv3.AccessLog{
		Name: "envoy.access_loggers.open_telemetry", ConfigType: &accesslogv3.AccessLog_TypedConfig{TypedConfig: piece.Any(config)},
	}
}

// attributes returns fields as attributes of OpenTelemetry, in the order of their names.
func attributes(fields *structpb.Struct) *commonv1.KeyValueList {
	list := &commonv1.KeyValueList{}
	for _, name := range slices.Sorted(maps.Keys(fields.GetFields())) {
		list.Values = append(list.Values, &commonv1.KeyValue{Key: name, Value: attribute(fields.GetFields()[name])})
	}
	return list
}

func textOf(s string) *commonv1.AnyValue {
	return &commonv1.AnyValue{Value: &commonv1.AnyValue_StringValue{StringValue: s}}
}

// attribute returns a value of a field. Envoy takes texts, lists and fields only.
func attribute(v *structpb.Value) *commonv1.AnyValue {
	switch kind := v.GetKind().(type) {
	case *structpb.Value_StructValue:
		return &commonv1.AnyValue{Value: &commonv1.AnyValue_KvlistValue{KvlistValue: attributes(kind.StructValue)}}
	case *structpb.Value_ListValue:
		list := &commonv1.ArrayValue{}
		for _, e := range kind.ListValue.GetValues() {
			list.Values = append(list.Values, attribute(e))
		}
		return &commonv1.AnyValue{Value: &commonv1.AnyValue_ArrayValue{ArrayValue: list}}
	case *structpb.Value_NumberValue:
		return textOf(strconv.FormatFloat(kind.NumberValue, 'g', -1, 64))
	case *structpb.Value_BoolValue:
		return textOf(strconv.FormatBool(kind.BoolValue))
	}
	return textOf(v.GetStringValue())
}
