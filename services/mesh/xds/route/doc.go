// Package route makes RouteConfigurations: for sidecars one a port on which
// services have requests ("80"), for routers one a port of their Gateways
// ("http.8080").
//
// A RouteConfiguration is made of a head and a piece for each virtual host, so
// that proxies that differ in few virtual hosts share the others. Translate is
// what a VirtualService means, for whoever serves routes.
//
// It is pure.
package route
