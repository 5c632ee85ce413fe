package frontend

import (
	"context"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"meshlog.dev/proto/ident"
)

// mode is the protocol of a method's streams.
type mode struct {
	delta bool
	// only is the type of a stream for a single type; nil: ADS.
	only *ident.ResourceType
}

// services returns the discovery services: ADS, and one for each type. All use
// the same two pairs of messages, which the codec encodes.
func (s *Server) services() []*grpc.ServiceDesc {
	poll := func(any, context.Context, func(any) error, grpc.UnaryServerInterceptor) (any, error) {
		return nil, status.Error(codes.Unimplemented, "polling is not served: use a stream (api_type GRPC or DELTA_GRPC in Envoy's config source)")
	}
	service := func(name, what string, only *ident.ResourceType) *grpc.ServiceDesc {
		d := &grpc.ServiceDesc{
			ServiceName: name,
			Streams: []grpc.StreamDesc{
				s.method("Stream"+what, mode{only: only}),
				s.method("Delta"+what, mode{delta: true, only: only}),
			},
		}
		if only != nil {
			d.Methods = []grpc.MethodDesc{{MethodName: "Fetch" + what, Handler: poll}}
		}
		return d
	}
	return []*grpc.ServiceDesc{
		service("envoy.service.discovery.v3.AggregatedDiscoveryService", "AggregatedResources", nil),
		service("envoy.service.cluster.v3.ClusterDiscoveryService", "Clusters", new(ident.CDS)),
		service("envoy.service.endpoint.v3.EndpointDiscoveryService", "Endpoints", new(ident.EDS)),
		service("envoy.service.listener.v3.ListenerDiscoveryService", "Listeners", new(ident.LDS)),
		service("envoy.service.route.v3.RouteDiscoveryService", "Routes", new(ident.RDS)),
	}
}

func (s *Server) method(name string, m mode) grpc.StreamDesc {
	return grpc.StreamDesc{
		StreamName: name, ServerStreams: true, ClientStreams: true,
		Handler: func(_ any, gs grpc.ServerStream) error { return s.serve(gs, m) },
	}
}
