// Package route makes RouteConfigurations: for sidecars one for each port on
// which services take requests ("80"), for routers one for each HTTP port of
// their Gateways ("http.8080"), for gRPC clients one for each port of a
// service.
//
// A RouteConfiguration consists of a head and a piece for each virtual host, so
// clients that differ in a few virtual hosts share the others. Translate turns
// a VirtualService into routes for any client.
//
// It is pure.
package route
