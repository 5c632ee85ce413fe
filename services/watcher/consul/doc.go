// Package consul watches the services of one datacenter of Consul: long polls say that a
// service changed, and reads, which the leader answers with the rights that the token has
// now, say what it is.
//
// Rows CON of README.md say what it does, and why polls are not believed.
package consul

import (
	"time"

	"meshlog.dev/services/watcher/registry"
)

// Source is the source of the objects.
const Source = "consul"

// Defaults of Settings.
const (
	DefaultDatacenter = "dc1" // Consul's own
	DefaultNamespace  = "consul"
	DefaultExcludeTag = "k8s" // what consul-k8s puts on what it syncs
	DefaultWait       = 10 * time.Minute
)

// Settings of a watcher. Files are read at the begin of each run.
type Settings struct {
	// Addresses of agents, as host:port for plain HTTP or https://host:port. Each answers
	// for a part of the services; if one is away, the others do.
	Addresses  []string
	Datacenter string
	// TokenFile has the ACL token; CAFile the CAs of https addresses, without it those of
	// the system; CertFile and KeyFile the watcher's own certificate. Empty: none.
	TokenFile, CAFile, CertFile, KeyFile string

	// Namespace of the objects.
	Namespace string
	// Services are globs of the services to watch; none: all.
	Services []string
	// Tags: only services that have one of them are watched; none: all. ExcludeTags hide
	// services.
	Tags, ExcludeTags []string
	// Convert says how services become objects.
	Convert registry.Settings
	// DatacenterHosts: hosts are NAME.service.DATACENTER.consul, not NAME.service.consul.
	DatacenterHosts bool
	// TaggedAddress is wan, lan_ipv4 or lan_ipv6: instances that have it are called there.
	TaggedAddress string
	// DropWarning: instances with a check in state warning get no requests.
	DropWarning bool

	// Wait of polls, 10 minutes at most.
	Wait time.Duration
	// MaxPolls is how many services are polled at each address; 0: 150 by HTTP, 8000 by
	// HTTPS. The other services are read in turn.
	MaxPolls int
	// Stale: reads in turn may be answered by followers.
	Stale bool
}

// Identity names what the watcher reads (REG-12).
func (s *Settings) Identity() string { return "datacenter " + s.Datacenter }
