package listener

import (
	"slices"

	accesslogv3 "github.com/envoyproxy/go-control-plane/envoy/config/accesslog/v3"
	listenerv3 "github.com/envoyproxy/go-control-plane/envoy/config/listener/v3"
	hcmv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/network/http_connection_manager/v3"
	tcpv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/network/tcp_proxy/v3"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/anypb"

	"meshlog.dev/services/mesh/index"
	"meshlog.dev/services/mesh/problem"
	"meshlog.dev/services/mesh/xds/accesslog"
	"meshlog.dev/services/mesh/xds/callee"
	"meshlog.dev/services/mesh/xds/piece"
	"meshlog.dev/services/mesh/xds/tracing"
)

// observed says whose calls Telemetries are about.
type observed struct {
	selected index.SelectorSet // LDSClass.Telemetry
	server   bool              // calls to the workload
	from     callee.Caller
	service  string // LDSClass.ServiceName
}

func observedOf(class index.LDSClass, server bool) observed {
	from := callee.From(class.Scope.Services, class.Scope.Imports, class.Client == index.ClientRouter)
	return observed{class.Telemetry, server, from, class.ServiceName}
}

func (o observed) logs(r *index.Reader) []*accesslogv3.AccessLog {
	return accesslog.Of(r, o.selected, o.server, o.from)
}

// traces returns the fields of connection managers that trace requests; nil: none.
func (o observed) traces(r *index.Reader) *hcmv3.HttpConnectionManager {
	return tracing.Of(r, tracing.Proxies{Selected: o.selected, Server: o.server, From: o.from, Name: o.service})
}

// logged is a part whose listeners have access logs (TL-5), or trace requests (TL-3).
type logged struct {
	part piece.Part
	observed
}

// withLogs returns the parts with access logs and traces, if the proxies of the class have
// some: a mesh without them gets the parts as they are.
func withLogs(r *index.Reader, class index.LDSClass, server bool, parts []piece.Part) []piece.Part {
	o := observedOf(class, server)
	if len(o.logs(r)) == 0 && o.traces(r) == nil {
		return parts
	}
	for i, p := range parts {
		if _, makesNothing := p.(piece.Problem); !makesNothing {
			parts[i] = logged{p, o}
		}
	}
	return parts
}

// observe adds the part that reports what Telemetries of the class, and the MeshConfig, name in
// vain.
func observe(r *index.Reader, class index.LDSClass, parts []piece.Part) []piece.Part {
	if accesslog.Named(r, class.Telemetry) {
		parts = append(parts, accesslog.Problems{Selected: class.Telemetry, From: observedOf(class, false).from})
	}
	if tracing.Named(r, class.Telemetry) {
		parts = append(parts, tracing.Problems{Selected: class.Telemetry, From: observedOf(class, false).from})
	}
	return parts
}

// Make implements piece.Part.
func (l logged) Make(r *index.Reader) ([]piece.Piece, []problem.Diagnostic) {
	pieces, problems := l.part.Make(r)
	logs, traces := l.logs(r), l.traces(r)
	if len(logs) == 0 && traces == nil {
		return pieces, problems
	}
	requests := encoded(&hcmv3.HttpConnectionManager{AccessLog: logs, Tracing: traces.GetTracing(), RequestIdExtension: traces.GetRequestIdExtension()})
	connections := encoded(&tcpv3.TcpProxy{AccessLog: logs})
	for _, p := range pieces {
		m, ok := p.Message.(*listenerv3.Listener)
		if !ok {
			continue
		}
		if m.GetName() != "" && len(logs) > 0 && !r.Mesh().GetDisableEnvoyListenerLog() { // the head of the listener
			m.AccessLog = refused(logs)
		}
		for _, chain := range append(slices.Clone(m.GetFilterChains()), m.GetDefaultFilterChain()) {
			if chain != nil {
				chain.Filters = logging(chain.GetFilters(), requests, connections)
			}
		}
	}
	return pieces, problems
}

// logging returns filters that log: chains share filters, so these stay as they are. The
// bytes of protobuf messages can be concatenated, so no filter is decoded.
func logging(filters []*listenerv3.Filter, requests, connections []byte) []*listenerv3.Filter {
	out := slices.Clone(filters)
	for i, f := range out {
		var logs []byte
		switch f.GetName() {
		case requestsManager:
			logs = requests
		case tcpProxy:
			logs = connections
		default:
			continue
		}
		config := f.GetTypedConfig()
		out[i] = &listenerv3.Filter{Name: f.GetName(), ConfigType: &listenerv3.Filter_TypedConfig{
			TypedConfig: &anypb.Any{TypeUrl: config.GetTypeUrl(), Value: slices.Concat(config.GetValue(), logs)},
		}}
	}
	return out
}

func encoded(m proto.Message) []byte { return piece.Any(m).GetValue() }

// refused returns the logs of a listener itself, for connections that no filter chain takes.
// Filters log all others.
func refused(logs []*accesslogv3.AccessLog) []*accesslogv3.AccessLog {
	out := make([]*accesslogv3.AccessLog, len(logs))
	for i, l := range logs {
		filter := &accesslogv3.AccessLogFilter{FilterSpecifier: &accesslogv3.AccessLogFilter_ResponseFlagFilter{
			ResponseFlagFilter: &accesslogv3.ResponseFlagFilter{Flags: []string{"NR"}},
		}}
		if l.GetFilter() != nil {
			filter = &accesslogv3.AccessLogFilter{FilterSpecifier: &accesslogv3.AccessLogFilter_AndFilter{
				AndFilter: &accesslogv3.AndFilter{Filters: []*accesslogv3.AccessLogFilter{filter, l.GetFilter()}},
			}}
		}
		out[i] = &accesslogv3.AccessLog{Name: l.GetName(), ConfigType: l.GetConfigType(), Filter: filter}
	}
	return out
}
