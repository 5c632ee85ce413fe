package route

import (
	"net/netip"
	"slices"
	"strings"

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
// names, the bare one only in its own namespace, aliases, addresses. They have
// no ports: RouteConfigurations ignore them.
func appendDomains(all []string, s *index.Service, suffix string, own bool) []string {
	start := len(all)
	all = appendNames(all, s.Hostname, suffix, own)
	for _, alias := range s.Aliases {
		all = appendNames(all, alias, suffix, own)
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

// written returns a host as requests have it: IPv6 addresses are in brackets.
func written(host string) string {
	if strings.Contains(host, ":") {
		return "[" + host + "]"
	}
	return host
}

// appendNames appends a host and its short forms. For name.ns.svc.suffix these
// are name.ns, name.ns.svc and, in its own namespace, name.
func appendNames(all []string, host, suffix string, own bool) []string {
	all = append(all, host)
	svc, ok := strings.CutSuffix(host, suffix)
	if !ok {
		return all
	}
	svc = strings.TrimSuffix(svc, ".")
	qualified, ok := strings.CutSuffix(svc, ".svc")
	if !ok || len(svc) == len(host) || strings.Count(qualified, ".") != 1 || strings.HasPrefix(host, "*") {
		return all
	}
	all = append(all, qualified, svc)
	if own {
		name, _, _ := strings.Cut(qualified, ".")
		all = append(all, name)
	}
	return all
}

// namespaceOf returns the namespace in which a host has a bare name.
func namespaceOf(host, suffix string) string {
	names := appendNames(make([]string, 0, 3), host, suffix, false)
	if len(names) == 1 {
		return ""
	}
	_, namespace, _ := strings.Cut(names[1], ".")
	return namespace
}

func isWildcard(host string) bool { return strings.HasPrefix(host, "*") }

// claims says which virtual host of a RouteConfiguration holds which domain: no
// two may have one domain, in upper or lower case (I33).
type claims struct {
	hosts  []*candidate
	holder map[string]claim
}

// claim is the holder of a domain. Whole: the domain is its host, not another
// form of it.
type claim struct {
	host  int
	whole bool
}

// add claims a domain for a host, or leaves it to the holder: a whole host wins
// over other forms of a name, then the senior service wins.
func (c *claims) add(i int, domain string, whole bool) {
	domain = strings.ToLower(domain)
	held, ok := c.holder[domain]
	switch {
	case !ok:
		c.holder[domain] = claim{i, whole}
	case held.host == i: // two of its names have one short form
	case held.whole || !whole && c.hosts[held.host].senior(c.hosts[i]):
		c.hosts[i].lost = append(c.hosts[i].lost, domain)
	default:
		c.hosts[held.host].lost = append(c.hosts[held.host].lost, domain)
		c.holder[domain] = claim{i, whole}
	}
}
