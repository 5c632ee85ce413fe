package route

import (
	"net/netip"
	"slices"
	"strings"

	"meshlog.dev/services/mesh/hostname"
	"meshlog.dev/services/mesh/index"
)

// Address returns the virtual IP of a service: the first of its addresses that
// is one IP; empty: none.
func Address(s *index.Service) string {
	for _, a := range s.Addresses {
		if ip := single(a); ip != "" {
			return ip
		}
	}
	return ""
}

// single returns the IP of an address or CIDR, or "" if it is many.
func single(address string) string {
	if ip, err := netip.ParseAddr(address); err == nil {
		if ip.IsUnspecified() {
			return ""
		}
		return address
	}
	if p, err := netip.ParsePrefix(address); err == nil && p.IsSingleIP() {
		return p.Addr().String()
	}
	return ""
}

// appendDomains appends the domains of a service (VS-7), its host first: short
// names, the bare one only in its own namespace, aliases, addresses. Hosts and
// aliases also end in a dot. They have no ports: RouteConfigurations ignore
// them.
func appendDomains(all []string, s *index.Service, suffix string, own bool) []string {
	start := len(all)
	all = appendAbsolute(appendNames(all, s.Hostname, suffix, own), s.Hostname)
	for _, alias := range s.Aliases {
		all = appendAbsolute(appendNames(all, alias, suffix, own), alias)
	}
	if s.Headless { // callers name its endpoints (SVC-3)
		for _, d := range slices.Clone(all[start:]) {
			all = append(all, "*."+d)
		}
	}
	for _, a := range s.Addresses {
		if ip := single(a); ip != "" {
			all = append(all, written(ip))
		}
	}
	return all
}

// absolute returns a host with a dot at its end: the form that callers use to
// keep their resolver from trying search domains. Envoy compares texts, so a
// request for it would go to another virtual host. An IP and "*" have none ("").
func absolute(host string) string {
	if host == "*" || strings.HasSuffix(host, ".") {
		return ""
	}
	if _, err := netip.ParseAddr(host); err == nil {
		return ""
	}
	return host + "."
}

func appendAbsolute(all []string, host string) []string {
	if d := absolute(host); d != "" {
		return append(all, d)
	}
	return all
}

// written returns a host as requests have it: IPv6 addresses are in brackets.
func written(host string) string {
	if strings.Contains(host, ":") {
		return "[" + host + "]"
	}
	return host
}

// qualified returns name.namespace of a host with that suffix.
func qualified(host, suffix string) (name string, ok bool) {
	name, ok = strings.CutSuffix(host, suffix)
	return name, ok && strings.Count(name, ".") == 1 && !isWildcard(name)
}

// appendNames appends a host and its short forms. For name.ns.svc.suffix these
// are name.ns, name.ns.svc and, in its own namespace, name.
func appendNames(all []string, host, suffix string, own bool) []string {
	all = append(all, host)
	short, ok := qualified(host, suffix)
	if !ok {
		return all
	}
	all = append(all, short, host[:len(short)+len(".svc")])
	if own {
		name, _, _ := strings.Cut(short, ".")
		all = append(all, name)
	}
	return all
}

// ShortNames returns the short names of a Kubernetes service's host that mean it
// in all namespaces: name.namespace and name.namespace.svc.
func ShortNames(r *index.Reader, host string) []string {
	return appendNames(nil, host, hostname.Suffix(r.DomainSuffix()), false)[1:]
}

func isWildcard(host string) bool { return strings.HasPrefix(host, "*") }

// claims maps each domain of a RouteConfiguration to the virtual host that has it:
// no two may have the same domain, in upper or lower case (I33).
type claims struct {
	hosts   []*candidate
	cluster string // of the callers
	holder  map[string]claim
}

// claim is the holder of a domain.
type claim struct {
	host int32 // -1: none of hosts
	form form
}

// form is how a domain names a virtual host; of two hosts the one with the
// greater form has the domain.
type form uint8

const (
	otherForm    form = iota // a short name, an alias, an address
	absoluteForm             // the host with a dot at its end
	itself
)

// add claims a domain for a host, or leaves it to the holder: the greater form
// wins, then the senior service.
func (c *claims) add(i int32, domain string, f form) {
	domain = strings.ToLower(domain)
	held, ok := c.holder[domain]
	switch {
	case !ok:
		c.holder[domain] = claim{i, f}
	case held.host == i: // two of its names have one short form
	case held.form == itself || held.form > f || held.form == f && !c.hosts[i].senior(c.hosts[held.host], c.cluster):
		c.hosts[i].lost = append(c.hosts[i].lost, domain)
	default:
		c.hosts[held.host].lost = append(c.hosts[held.host].lost, domain)
		c.holder[domain] = claim{i, f}
	}
}
