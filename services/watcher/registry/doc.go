// Package registry converts services and instances of a registry, such as Consul or
// Nacos, into objects of the log, and decides which listings of a registry may remove
// objects. The watchers of all registries use it.
//
// A conversion depends on its arguments only. Rows REG of README.md say what it does.
package registry

import registryv1 "meshlog.dev/proto/meshlog/registry/v1"

// Service is a service of a registry with all of its instances.
type Service struct {
	// Namespace and Name of its objects.
	Namespace, Name string
	// Host is the name that clients call, such as web.service.consul. It may have
	// characters that DNS does not allow: Convert replaces them.
	Host string
	// External: it is no part of the mesh.
	External  bool
	Instances []Instance // in any order, no identity twice
	// Origin tells people where the service is: a page of the registry.
	Origin  string
	Version string // the source's own; empty: it has none
}

// Instance is one instance of a service.
type Instance struct {
	// ID is its identity within the service: it decides in which slice it is.
	ID string
	// Address is an IP or a host name.
	Address string
	Port    uint32
	// Named are further ports, which have a Service port each.
	Named    []NamedPort
	Health   registryv1.Health
	Weight   uint32 // 0 means 1
	Metadata map[string]string
	Locality *registryv1.Locality
	Node     string
}

// NamedPort is a port of an instance that has a name of its own.
type NamedPort struct {
	Name     string
	Number   uint32
	Protocol string // empty: what its name begins with, else proxies find out
}

// Settings decide how services become objects.
type Settings struct {
	// Ports has the port that clients call, by the name of the service: the first rule
	// that matches counts. If none does, the ports of the instances are used.
	Ports []PortRule
	// Protocol of services that name none; empty: proxies find out.
	Protocol string
}

// PortRule gives services a port.
type PortRule struct {
	Services string // a glob
	Port     uint32
}
