package simulate

import (
	accesslogv3 "github.com/envoyproxy/go-control-plane/envoy/config/accesslog/v3"
	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	filev3 "github.com/envoyproxy/go-control-plane/envoy/extensions/access_loggers/file/v3"
	celv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/access_loggers/filters/cel/v3"
	grpcv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/access_loggers/grpc/v3"
	otelv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/access_loggers/open_telemetry/v3"
)

// logged notes the access logs that get an entry about the call.
func (o *Outcome) logged(logs []*accesslogv3.AccessLog) {
	for _, l := range logs {
		to := loggedTo(l)
		if expr := expressionOf(l.GetFilter()); expr != "" {
			to += " if " + expr
		}
		o.note("logged to %s", to)
	}
}

// loggedTo returns the file of an access log, or the cluster that gets it.
func loggedTo(l *accesslogv3.AccessLog) string {
	m, err := l.GetTypedConfig().UnmarshalNew()
	if err != nil {
		return l.GetName()
	}
	var common *grpcv3.CommonGrpcAccessLogConfig
	var service *corev3.GrpcService
	switch m := m.(type) {
	case *filev3.FileAccessLog:
		return m.GetPath()
	case *grpcv3.HttpGrpcAccessLogConfig:
		common = m.GetCommonConfig()
	case *grpcv3.TcpGrpcAccessLogConfig:
		common = m.GetCommonConfig()
	case *otelv3.OpenTelemetryAccessLogConfig:
		common, service = m.GetCommonConfig(), m.GetGrpcService() //nolint:staticcheck // older Envoys know nothing else
	}
	if service == nil {
		service = common.GetGrpcService()
	}
	if cluster := service.GetEnvoyGrpc().GetClusterName(); cluster != "" {
		return cluster
	}
	return l.GetName()
}

// expressionOf returns the condition of a filter in words of CEL; empty: it has none.
func expressionOf(f *accesslogv3.AccessLogFilter) string {
	for _, part := range f.GetAndFilter().GetFilters() {
		if expr := expressionOf(part); expr != "" {
			return expr
		}
	}
	m := new(celv3.ExpressionFilter)
	if config := f.GetExtensionFilter().GetTypedConfig(); config.MessageIs(m) && config.UnmarshalTo(m) == nil {
		return m.GetExpression()
	}
	return ""
}
