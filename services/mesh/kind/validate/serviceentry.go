package validate

import (
	"slices"
	"strings"

	"google.golang.org/protobuf/proto"

	networking "istio.io/api/networking/v1alpha3"

	"meshlog.dev/services/mesh/problem"
)

// protocols are the protocols of ports, in capitals (SVC-7).
var protocols = []string{
	"GRPC", "GRPC-WEB", "HTTP", "HTTP2", "HTTPS", "MONGO", "MYSQL", "REDIS", "TCP", "TLS", "UDP",
}

// ServiceEntry checks a ServiceEntry.
func ServiceEntry(m proto.Message) []problem.Diagnostic {
	se := m.(*networking.ServiceEntry)
	c := checker{kind: "ServiceEntry"}
	c.entryHosts(se)
	for i, a := range se.GetAddresses() {
		at := root.field("addresses").item(i)
		c.subnet(at, a)
		if strings.Contains(a, "/") && resolvesNames(se) {
			c.errorf(at, "use single addresses, or resolution NONE or STATIC", "a block of addresses does not go with resolution %s", se.GetResolution())
		}
	}
	c.entryPorts(se)
	c.entryEndpoints(se)
	if s := se.GetWorkloadSelector(); s != nil {
		at := root.field("workloadSelector")
		if len(s.GetLabels()) == 0 {
			c.warnf(at.field("labels"), "write the labels of the workloads", "is empty: all workloads of the namespace are endpoints")
		}
		c.labels(at.field("labels"), s.GetLabels())
		c.errorIf(len(se.GetEndpoints()) > 0, at, keepOne, "does not go with endpoints")
	}
	c.exportTo(root.field("exportTo"), se.GetExportTo())
	if se.GetResolution() == networking.ServiceEntry_DYNAMIC_DNS {
		c.dynamicEntry(se)
	}
	return c.result()
}

// dynamicEntry checks what does not go with hosts that calls name (SE-8).
func (c *checker) dynamicEntry(se *networking.ServiceEntry) {
	c.errorIf(se.GetWorkloadSelector() != nil, root.field("workloadSelector"), "remove it, or use resolution STATIC", "with resolution DYNAMIC_DNS calls name the endpoints")
	for i, p := range se.GetPorts() {
		at := root.field("ports").item(i)
		switch protocol := strings.ToUpper(p.GetProtocol()); protocol {
		case "HTTPS", "TLS":
			continue
		case "TCP", "MONGO", "MYSQL", "REDIS":
			c.without(at.field("protocol"), protocol+" does not go with resolution DYNAMIC_DNS: such connections name no host, and go where those to an unknown host go")
		case "HTTP", "HTTP2", "GRPC", "GRPC-WEB":
		case "":
			c.warnf(at.field("protocol"), "write HTTP or TLS", "with resolution DYNAMIC_DNS only requests are sent to the host that they name; other connections go where those to an unknown host go")
		}
		if t := p.GetTargetPort(); t != 0 && t != p.GetNumber() {
			c.without(at.field("targetPort"), "has no effect with resolution DYNAMIC_DNS: requests name the port, in their host")
		}
	}
}

func resolvesNames(se *networking.ServiceEntry) bool {
	switch se.GetResolution() {
	case networking.ServiceEntry_DNS, networking.ServiceEntry_DNS_ROUND_ROBIN, networking.ServiceEntry_DYNAMIC_DNS:
		return true
	}
	return false
}

func (c *checker) entryHosts(se *networking.ServiceEntry) {
	hosts := root.field("hosts")
	c.errorIf(len(se.GetHosts()) == 0, hosts, "add at least one host", isEmpty)
	dynamic := se.GetResolution() == networking.ServiceEntry_DYNAMIC_DNS
	for i, h := range se.GetHosts() {
		at := hosts.item(i)
		c.host(at, h, true)
		switch {
		case h == "*":
			c.errorf(at, "use a suffix, like *.example.com", "matches every host")
		case slices.Contains(se.GetHosts()[:i], h):
			c.errorf(at, leaveOne, isTwice, h)
		case isWildcard(h) && resolvesNames(se) && !dynamic && len(se.GetEndpoints()) == 0 && se.GetWorkloadSelector() == nil:
			c.errorf(at, "add endpoints, or use resolution NONE", "DNS cannot resolve %q, and there are no endpoints", h)
		case dynamic && !isWildcard(h):
			c.errorf(at, "use resolution DNS, or a host like *.example.com", "resolution DYNAMIC_DNS is for wildcard hosts")
		}
	}
}

func (c *checker) entryPorts(se *networking.ServiceEntry) {
	numbers, names := map[uint32]bool{}, map[string]bool{}
	for i, p := range se.GetPorts() {
		at := root.field("ports").item(i)
		c.port(at.field("number"), p.GetNumber())
		if !first(numbers, p.GetNumber()) {
			c.errorf(at.field("number"), "give each port a number of its own", "%d is there twice", p.GetNumber())
		}
		c.portName(at.field("name"), p.GetName(), names)
		if p.GetProtocol() != "" {
			c.protocol(at.field("protocol"), p.GetProtocol(), protocols)
		}
		c.noEffect(strings.EqualFold(p.GetProtocol(), "UDP"), at.field("protocol"), "UDP")
		c.optionalPort(at.field("targetPort"), p.GetTargetPort())
	}
}

// portName checks the name of a port, which must be none of seen, and adds it.
func (c *checker) portName(at *fieldPath, name string, seen map[string]bool) {
	c.errorIf(name == "", at, "give the port a name, like http-api", isMissing)
	c.errorIf(!first(seen, name), at, "give each port a name of its own", isTwice, name)
	c.errorIf(!isHostLabel(name), at, useName, "%q is not a port name", name)
}

func (c *checker) protocol(at *fieldPath, protocol string, known []string) {
	for _, k := range known {
		if strings.EqualFold(k, protocol) {
			return
		}
	}
	c.errorf(at, "use "+strings.Join(known, ", "), "%q is not a protocol", protocol)
}

func (c *checker) entryEndpoints(se *networking.ServiceEntry) {
	endpoints := root.field("endpoints")
	n := len(se.GetEndpoints())
	switch r := se.GetResolution(); {
	case n > 0 && (r == networking.ServiceEntry_NONE || r == networking.ServiceEntry_DYNAMIC_DNS):
		c.errorf(endpoints, "use resolution STATIC or DNS, or remove them", "with resolution %s there are no endpoints", r)
	case n > 1 && r == networking.ServiceEntry_DNS_ROUND_ROBIN:
		c.errorf(endpoints, "leave one, or use resolution DNS", "with resolution DNS_ROUND_ROBIN there is one endpoint, not %d", n)
	case n == 0 && r == networking.ServiceEntry_STATIC && se.GetWorkloadSelector() == nil:
		c.warnf(endpoints, "add endpoints, or a workloadSelector", "is empty: calls of the host get no answer")
	}
	for i, e := range se.GetEndpoints() {
		at := endpoints.item(i)
		c.entryAddress(at.field("address"), e, se)
		c.workload(at, e)
		if e.GetNetwork() != "" && resolvesNames(se) {
			c.without(at.field("network"), "has no effect yet with resolution "+se.GetResolution().String()+": proxies of every network resolve the endpoint's name themselves")
		}
		for name := range e.GetPorts() {
			c.errorIf(!slices.ContainsFunc(se.GetPorts(), func(p *networking.ServicePort) bool { return p.GetName() == name }),
				at.field("ports").entry(name), "use the name of one of spec.ports", "the entry has no port %q", name)
		}
	}
}

// entryAddress checks the address of an endpoint, for the entry's resolution.
func (c *checker) entryAddress(at *fieldPath, e *networking.WorkloadEntry, se *networking.ServiceEntry) {
	a := e.GetAddress()
	static := se.GetResolution() == networking.ServiceEntry_STATIC
	switch {
	case a == "" && e.GetNetwork() != "": // proxies go through the network's gateways
	case strings.HasPrefix(a, unixPrefix):
		c.unix(at, a)
		if !static {
			c.errorf(at, "use resolution STATIC", "a socket does not go with resolution %s", se.GetResolution())
		} else if len(se.GetPorts()) > 1 {
			c.errorf(at, "leave one port", "a socket serves one port, and the entry has %d", len(se.GetPorts()))
		}
	case static:
		c.errorIf(!isIP(a), at, "write an IP address, or use resolution DNS", "%q is not an IP address", a)
	default:
		c.hostOrIP(at, a, false)
	}
}

// workload checks what endpoints and WorkloadEntries have in common.
func (c *checker) workload(at *fieldPath, e *networking.WorkloadEntry) {
	ports := at.field("ports")
	for name, n := range e.GetPorts() {
		c.port(ports.entry(name), n)
	}
	c.errorIf(len(e.GetPorts()) > 0 && strings.HasPrefix(e.GetAddress(), unixPrefix), ports, "remove them", "a socket has no ports")
	c.labels(at.field("labels"), e.GetLabels())
	l := e.GetLocality()
	c.errorIf(strings.Count(l, "/") > 2 || strings.HasPrefix(l, "/") || strings.HasSuffix(l, "/") || strings.Contains(l, "//"),
		at.field("locality"), "write region, region/zone or region/zone/subzone", "%q is not a locality", l)
}

// WorkloadEntry checks a WorkloadEntry.
func WorkloadEntry(m proto.Message) []problem.Diagnostic {
	e := m.(*networking.WorkloadEntry)
	c := checker{}
	at := root.field("address")
	switch a := e.GetAddress(); {
	case a == "":
		c.errorIf(e.GetNetwork() == "", at, "write an address, or the network through whose gateways it is reached", isMissing)
	case strings.HasPrefix(a, unixPrefix):
		c.unix(at, a)
	default:
		c.hostOrIP(at, a, false)
	}
	c.workload(root, e)
	return c.result()
}

// ServiceEntryEndpointsOnly reports whether a change from old to new changes
// nothing but endpoints. With names to resolve, endpoints are part of the cluster.
func ServiceEntryEndpointsOnly(old, new proto.Message) bool {
	a, isA := old.(*networking.ServiceEntry)
	b, isB := new.(*networking.ServiceEntry)
	if !isA || !isB || resolvesNames(a) || resolvesNames(b) {
		return false
	}
	return proto.Equal(withoutEndpoints(a), withoutEndpoints(b))
}

func withoutEndpoints(se *networking.ServiceEntry) *networking.ServiceEntry {
	return &networking.ServiceEntry{
		Hosts: se.GetHosts(), Addresses: se.GetAddresses(), Ports: se.GetPorts(), Location: se.GetLocation(), Resolution: se.GetResolution(),
		WorkloadSelector: se.GetWorkloadSelector(), ExportTo: se.GetExportTo(), SubjectAltNames: se.GetSubjectAltNames(),
	}
}
