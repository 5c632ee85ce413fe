// Package consul runs the watcher of a datacenter of Consul, for watcher-consul and for
// roles/sources.
package consul

import (
	"cmp"
	"context"
	"errors"
	"slices"
	"strings"
	"time"

	"github.com/spf13/pflag"

	"meshlog.dev/proto/ident"
	"meshlog.dev/services/internal/bus"
	"meshlog.dev/services/internal/process"
	"meshlog.dev/services/roles/watcher"
	"meshlog.dev/services/watcher/consul"
	"meshlog.dev/services/watcher/registry"
)

// Settings name a datacenter and select its services. The flags' texts describe them.
type Settings struct {
	consul.Settings
	Instance string   // empty: the datacenter
	Ports    []string // GLOB=PORT, or PORT for all
}

// DefaultSettings returns the defaults.
func DefaultSettings() Settings {
	return Settings{Settings: consul.Settings{
		Datacenter: consul.DefaultDatacenter, Namespace: consul.DefaultNamespace, ExcludeTags: []string{consul.DefaultExcludeTag}, Wait: consul.DefaultWait,
	}}
}

// Flags binds the settings.
func (s *Settings) Flags(fs *pflag.FlagSet) {
	fs.StringSliceVar(&s.Addresses, "consul", s.Addresses, "`addresses` of agents of a Consul datacenter to watch, as 127.0.0.1:8500 or https://consul.example.com:8501, separated by commas; they share the work, and if one is away the others do it. Prefer https: by plain HTTP only 150 services of an address are seen to change at once")
	fs.StringVar(&s.Datacenter, "consul-datacenter", s.Datacenter, "`name` of the Consul datacenter. "+
		"Set it if it is not Consul's default")
	fs.StringVar(&s.TokenFile, "consul-token-file", s.TokenFile, "`file` with the ACL token for Consul, read again when Consul refuses it. It needs service_prefix \"\" and node_prefix \"\" with policy read. By plain HTTP it can be read on the network. "+
		"Set it if Consul has ACLs")
	fs.StringVar(&s.CAFile, "consul-ca", s.CAFile, "PEM `file` with the CAs of Consul's certificates. "+
		"Set it if this machine does not already trust them")
	fs.StringVar(&s.Instance, "instance", s.Instance, "unique `name` of the datacenter: watchers with the same name publish as one source. The default is --consul-datacenter. "+
		"Set it if two datacenters that do not know each other have one name")
	fs.StringVar(&s.CertFile, "consul-cert", s.CertFile, "PEM `file` with this process's certificate for Consul. "+
		"Set it, with --consul-key, if Consul verifies clients")
	fs.StringVar(&s.KeyFile, "consul-key", s.KeyFile, "PEM `file` with the key of --consul-cert")
	fs.StringVar(&s.Namespace, "consul-namespace", s.Namespace, "`namespace` of the mesh in which the services are")
	fs.StringSliceVar(&s.Services, "consul-services", s.Services, "`names` of the services to watch, separated by commas; * stands for any characters; the default is all. "+
		"Set it if only a part of the datacenter belongs to the mesh")
	fs.StringSliceVar(&s.Tags, "consul-tags", s.Tags, "`tags` of the services to watch, separated by commas: one is enough; the default is all services")
	fs.StringSliceVar(&s.ExcludeTags, "consul-exclude-tags", s.ExcludeTags, "`tags` of services that are not watched, separated by commas. The default is the tag of services that consul-k8s copies from Kubernetes, whose own watcher has them")
	fs.StringSliceVar(&s.Ports, "consul-ports", s.Ports, "`ports` that clients call, as NAME=PORT, separated by commas, where * in a name stands for any characters and a PORT alone is for all services; the first that matches counts. Without one, clients call the ports of the instances. "+
		"Set it if instances have ports that change")
	fs.StringVar(&s.Convert.Protocol, "consul-protocol", s.Convert.Protocol, "`protocol` of services whose metadata and service-defaults name none, such as http or grpc; without it, proxies detect it. "+
		"Set it if most services speak the same")
	fs.BoolVar(&s.DatacenterHosts, "consul-datacenter-hosts", s.DatacenterHosts, "name hosts NAME.service.DATACENTER.consul. "+
		"Set it if several datacenters have services of the same name that must stay apart")
	fs.StringVar(&s.TaggedAddress, "consul-tagged-address", s.TaggedAddress, "tagged `address` of instances that clients call where there is one: wan, lan_ipv4 or lan_ipv6. "+
		"Set it to wan if proxies are outside of the datacenter's network")
	fs.BoolVar(&s.DropWarning, "consul-drop-warning", s.DropWarning, "send no requests to instances with a check in state warning; by default they get the share of their weight for this state")
	fs.DurationVar(&s.Wait, "consul-wait", s.Wait, "`time` that a poll waits for a change, from 10s to 10m. "+
		"Lower it if a load balancer before Consul ends requests that are quiet")
	fs.IntVar(&s.MaxPolls, "consul-max-polls", s.MaxPolls, "`number` of services that are polled at each address, so that their changes are seen at once; the others are read in turn. 0 is 8000 by https and 150 by plain HTTP, where each poll takes one of the 200 connections that Consul allows an address")
	fs.BoolVar(&s.Stale, "consul-stale", s.Stale, "let followers answer reads in turn. "+
		"Set it to relieve the leader of the datacenter; such reads see changes up to 5 s late")
}

// Check returns all errors of the settings.
func (s *Settings) Check() error {
	var errs []error
	invalid := func(flag, format string, args ...any) { errs = append(errs, process.Invalid(flag, format, args...)) }
	if len(s.Addresses) == 0 {
		invalid("consul", "is missing: give the address of an agent")
	}
	for _, a := range s.Addresses {
		if _, err := consul.ParseAddress(a); err != nil {
			invalid("consul", "%w", err)
		}
	}
	if s.Datacenter == "" || strings.ContainsAny(s.Datacenter, " */>.") {
		invalid("consul-datacenter", "%q is not the name of a datacenter", s.Datacenter)
	}
	if s.Namespace == "" {
		invalid("consul-namespace", "is empty")
	}
	if (s.CertFile == "") != (s.KeyFile == "") {
		invalid("consul-cert", "and --consul-key need each other")
	}
	if a := s.TaggedAddress; a != "" && !slices.Contains([]string{"wan", "lan_ipv4", "lan_ipv6"}, a) {
		invalid("consul-tagged-address", "want wan, lan_ipv4 or lan_ipv6")
	}
	if s.Wait < 10*time.Second || s.Wait > consul.DefaultWait {
		invalid("consul-wait", "want 10s to 10m")
	}
	if s.MaxPolls < 0 {
		invalid("consul-max-polls", "is negative")
	}
	if p := s.Convert.Protocol; p != "" && !registry.IsProtocol(p) {
		invalid("consul-protocol", "meshlog knows no protocol %q", p)
	}
	_, err := watcher.PortRules("consul-ports", s.Ports)
	return errors.Join(append(errs, err)...)
}

// Verify checks the files that the settings name. It does not contact Consul.
func (s *Settings) Verify() error {
	if s.Check() != nil {
		return nil // Check has reported it
	}
	if err := s.Settings.Verify(); err != nil {
		return process.Invalid("consul", "%w", err)
	}
	return nil
}

// Shard returns the shard of the datacenter.
func (s *Settings) Shard() ident.Shard {
	return ident.Shard{Source: consul.Source, Instance: cmp.Or(s.Instance, s.Datacenter)}
}

// Role returns the user of the bus.
func (s *Settings) Role() bus.Role { return bus.Watcher(s.Shard()) }

// Run watches until ctx is done.
func (s *Settings) Run(ctx context.Context, at watcher.Place) error {
	of := s.Settings
	var err error
	if of.Convert.Ports, err = watcher.PortRules("consul-ports", s.Ports); err != nil {
		return err
	}
	status := registry.NewStatus(s.Shard())
	return at.Run(ctx, s.Shard(), of.Identity(), consul.New(of, status), status)
}
