// Package listener makes Listeners: for sidecars those of the services that
// they call, for routers those of their Gateways, for gRPC clients one for each
// name that they dial.
//
// A sidecar's Listener consists of a head and a piece for each filter chain, so
// a service's chain is made once for all Listeners that have it.
//
// It is pure.
package listener

import (
	"strconv"
	"strings"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	listenerv3 "github.com/envoyproxy/go-control-plane/envoy/config/listener/v3"
	httpinspectorv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/listener/http_inspector/v3"
	tlsinspectorv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/listener/tls_inspector/v3"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/wrapperspb"

	"meshlog.dev/services/mesh/index"
	"meshlog.dev/services/mesh/problem"
	"meshlog.dev/services/mesh/xds/piece"
	"meshlog.dev/services/mesh/xds/route"
)

// Listeners returns the parts of the Listeners for a class.
func Listeners(r *index.Reader, class index.LDSClass) []piece.Part {
	switch class.Client {
	case index.ClientSidecar:
		parts := withLogs(r, class, false, sidecarParts(r, class))
		return observe(r, class, append(parts, withLogs(r, class, true, inboundParts(r, class))...))
	case index.ClientRouter:
		return observe(r, class, withLogs(r, class, false, routerParts(r, class)))
	case index.ClientGRPC:
		return grpcParts(r, class)
	}
	return nil
}

// anyAddress and loopback are the addresses of listeners that are not bound to
// one virtual IP: with redirected connections and without. Without redirection
// a service on a port below 1024 needs a sidecar that may bind it; Envoy
// rejects the listeners that it cannot bind and takes the others.
const (
	anyAddress = "0.0.0.0"
	loopback   = "127.0.0.1"
)

func listenerName(address string, port uint32) string {
	if strings.HasPrefix(address, unixScheme) {
		return address
	}
	return address + "_" + strconv.FormatUint(uint64(port), 10)
}

// head is the part for a sidecar's listener without its filter chains.
type head struct {
	address string
	port    uint32
	// bind: the listener binds its port, because nothing redirects connections.
	bind bool
	// requests, serverNames: its chains are chosen by whether the connection is
	// HTTP, and by the server name that a TLS client asks for.
	requests, serverNames bool
	// others: services whose protocol is detected, or known as another one than HTTP, are
	// called here too. Their servers may speak first, so the listener must not wait for
	// ever (MTLS-9).
	others bool
}

func (h head) Make(r *index.Reader) ([]piece.Piece, []problem.Diagnostic) {
	l := &listenerv3.Listener{
		Name:                             listenerName(h.address, h.port),
		Address:                          socket(h.address, h.port),
		TrafficDirection:                 corev3.TrafficDirection_OUTBOUND,
		ContinueOnListenerFiltersTimeout: true,
		ListenerFiltersTimeout:           durationpb.New(0),
	}
	if !h.bind {
		l.BindToPort = wrapperspb.Bool(false)
	}
	if h.serverNames {
		l.ListenerFilters = append(l.ListenerFilters, inspector("envoy.filters.listener.tls_inspector", &tlsinspectorv3.TlsInspector{}))
	}
	if h.requests {
		l.ListenerFilters = append(l.ListenerFilters, inspector("envoy.filters.listener.http_inspector", &httpinspectorv3.HttpInspector{}))
		l.ListenerFiltersTimeout = r.Mesh().GetProtocolDetectionTimeout()
		if h.others {
			detect(l, r)
		}
	}
	return []piece.Piece{{Name: l.GetName(), Message: l, Partial: true}}, nil
}

func inspector(name string, config proto.Message) *listenerv3.ListenerFilter {
	return &listenerv3.ListenerFilter{Name: name, ConfigType: &listenerv3.ListenerFilter_TypedConfig{TypedConfig: piece.Any(config)}}
}

const unixScheme = "unix://"

func socket(address string, port uint32) *corev3.Address {
	if path, is := strings.CutPrefix(address, unixScheme); is {
		return &corev3.Address{Address: &corev3.Address_Pipe{Pipe: &corev3.Pipe{Path: path}}}
	}
	return &corev3.Address{Address: &corev3.Address_SocketAddress{SocketAddress: &corev3.SocketAddress{
		Address: address, PortSpecifier: &corev3.SocketAddress_PortValue{PortValue: port},
	}}}
}

// virtualOutbound is the part for the listener that takes all redirected
// connections and passes each to the listener of its destination (LSN-1).
type virtualOutbound struct{ outbound string } // as in index.LDSClass

func (v virtualOutbound) Make(r *index.Reader) ([]piece.Piece, []problem.Diagnostic) {
	const name = "virtualOutbound"
	mesh := r.Mesh()
	port := uint32(mesh.GetProxyListenPort())
	return []piece.Piece{{Name: name, Message: &listenerv3.Listener{
		Name: name, Address: socket(anyAddress, port), TrafficDirection: corev3.TrafficDirection_OUTBOUND,
		UseOriginalDst:                       wrapperspb.Bool(true),
		MaxConnectionsToAcceptPerSocketEvent: wrapperspb.UInt32(1),
		FilterChains: []*listenerv3.FilterChain{
			{ // a connection to the port itself would loop
				Name:             name + "-blackhole",
				FilterChainMatch: &listenerv3.FilterChainMatch{DestinationPort: wrapperspb.UInt32(port)},
				Filters:          []*listenerv3.Filter{forward(piece.BlackHoleCluster)},
			},
			{Name: name + "-catchall-tcp", Filters: []*listenerv3.Filter{forward(route.UnknownCluster(r.Outbound(v.outbound)))}},
		},
	}}}, nil
}
