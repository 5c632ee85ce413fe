package frontend

import (
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	healthv1 "google.golang.org/grpc/health/grpc_health_v1"
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
//
// Every method is a stream, also those that are called with one request: of other
// methods gRPC receives the whole request before it calls anything here, up to 64 MiB
// that belong to no stream that is counted (XDS-1).
func (s *Server) services() []*grpc.ServiceDesc {
	poll := func(any, grpc.ServerStream) error {
		return status.Error(codes.Unimplemented, "polling is not served: use a stream (api_type GRPC or DELTA_GRPC in Envoy's config source)")
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
			d.Streams = append(d.Streams, grpc.StreamDesc{StreamName: "Fetch" + what, Handler: poll, ServerStreams: true, ClientStreams: true})
		}
		return s.proxiesOnly(d)
	}
	return []*grpc.ServiceDesc{
		service("envoy.service.discovery.v3.AggregatedDiscoveryService", "AggregatedResources", nil),
		service("envoy.service.cluster.v3.ClusterDiscoveryService", "Clusters", new(ident.CDS)),
		service("envoy.service.endpoint.v3.EndpointDiscoveryService", "Endpoints", new(ident.EDS)),
		service("envoy.service.listener.v3.ListenerDiscoveryService", "Listeners", new(ident.LDS)),
		service("envoy.service.route.v3.RouteDiscoveryService", "Routes", new(ident.RDS)),
		service("envoy.service.extension.v3.ExtensionConfigDiscoveryService", "ExtensionConfigs", new(ident.ECDS)),
		service("envoy.service.secret.v3.SecretDiscoveryService", "Secrets", new(ident.SDS)),
	}
}

func (s *Server) method(name string, m mode) grpc.StreamDesc {
	return grpc.StreamDesc{
		StreamName: name, ServerStreams: true, ClientStreams: true,
		Handler: func(_ any, gs grpc.ServerStream) error { return s.serve(gs, m) },
	}
}

// healthService returns gRPC's health service. Its streams count like others, and
// their requests are under way until they end.
func (s *Server) healthService() *grpc.ServiceDesc {
	counted := func(name string, handler grpc.StreamHandler) grpc.StreamDesc {
		return grpc.StreamDesc{
			StreamName: name, ServerStreams: true, ClientStreams: true,
			Handler: func(srv any, gs grpc.ServerStream) error {
				c := &conn{server: s, grpc: gs, ended: make(chan error, 1)}
				if err := s.join(c); err != nil {
					return s.refuse(c.address, err)
				}
				defer c.part()
				return handler(srv, gs)
			},
		}
	}
	of := healthv1.Health_ServiceDesc
	d := &grpc.ServiceDesc{ServiceName: of.ServiceName, HandlerType: of.HandlerType, Metadata: of.Metadata}
	for _, m := range of.Streams {
		d.Streams = append(d.Streams, counted(m.StreamName, m.Handler))
	}
	for _, m := range of.Methods {
		d.Streams = append(d.Streams, counted(m.MethodName, func(srv any, gs grpc.ServerStream) error {
			reply, err := m.Handler(srv, gs.Context(), gs.RecvMsg, nil)
			if err != nil {
				return err
			}
			return gs.SendMsg(reply)
		}))
	}
	return d
}
