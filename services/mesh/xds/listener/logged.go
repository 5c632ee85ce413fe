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
	"meshlog.dev/services/mesh/xds/piece"
)

// logged is a part whose listeners have access logs (TL-5).
type logged struct {
	part     piece.Part
	selected index.SelectorSet // LDSClass.Telemetry
	server   bool              // the listeners are for calls to the workload
}

// withLogs returns the parts with access logs, if the proxies of the class have some: a mesh
// without them gets the parts as they are.
func withLogs(r *index.Reader, class index.LDSClass, server bool, parts []piece.Part) []piece.Part {
	if len(accesslog.Of(r, class.Telemetry, server)) == 0 {
		return parts
	}
	for i, p := range parts {
		if _, makesNothing := p.(piece.Problem); !makesNothing {
			parts[i] = logged{p, class.Telemetry, server}
		}
	}
	return parts
}

// observe adds the part that reports what Telemetries of the class name in vain.
func observe(r *index.Reader, class index.LDSClass, parts []piece.Part) []piece.Part {
	if len(r.Telemetry(class.Telemetry)) == 0 {
		return parts
	}
	return append(parts, accesslog.Problems{Selected: class.Telemetry})
}

// Make implements piece.Part.
func (l logged) Make(r *index.Reader) ([]piece.Piece, []problem.Diagnostic) {
	pieces, problems := l.part.Make(r)
	logs := accesslog.Of(r, l.selected, l.server)
	if len(logs) == 0 {
		return pieces, problems
	}
	requests := encoded(&hcmv3.HttpConnectionManager{AccessLog: logs})
	connections := encoded(&tcpv3.TcpProxy{AccessLog: logs})
	for _, p := range pieces {
		m, ok := p.Message.(*listenerv3.Listener)
		if !ok {
			continue
		}
		if m.GetName() != "" && !r.Mesh().GetDisableEnvoyListenerLog() { // the head of the listener
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
		out[i] = &accesslogv3.AccessLog{
			Name: l.GetName(), ConfigType: l.GetConfigType(),
			Filter: &accesslogv3.AccessLogFilter{FilterSpecifier: &accesslogv3.AccessLogFilter_ResponseFlagFilter{
				ResponseFlagFilter: &accesslogv3.ResponseFlagFilter{Flags: []string{"NR"}},
			}},
		}
	}
	return out
}
