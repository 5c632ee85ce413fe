package validate

import (
	"slices"
	"strings"

	"google.golang.org/protobuf/proto"

	networking "istio.io/api/networking/v1alpha3"

	"meshlog.dev/services/mesh/problem"
)

// protocols are those of ports, in capitals (SVC-7).
var protocols = []string{
	"GRPC", "GRPC-WEB", "HTTP", "HTTP2", "HTTPS", "MONGO", "MYSQL", "REDIS", "TCP", "TLS", "UDP",
}

func ServiceEntry(m proto.Message) []problem.Problem {
	se := m.(*networking.ServiceEntry)
	c := checker{}
	c.entryHosts(se)
	for i, a := range se.GetAddresses() {
		at := root.field("addresses").item(i)
		c.subnet(at, a)
		if strings.Contains(a, "/") && resolvesNames(se) {
			c.at(at, "use single addresses, or resolution NONE or STATIC", "a block of addresses does not go with resolution %s", se.GetResolution())
		}
	}
	c.entryPorts(se)
	c.entryEndpoints(se)
	if s := se.GetWorkloadSelector(); s != nil {
		at := root.field("workloadSelector")
		if len(s.GetLabels()) == 0 {
			c.at(at.field("labels"), "name the labels of the workloads that are meant", "selects everything")
		}
		c.labels(at.field("labels"), s.GetLabels())
		if len(se.GetEndpoints()) > 0 {
			c.at(at, "keep either of them", "is there beside endpoints")
		}
	}
	c.exportTo(root.field("exportTo"), se.GetExportTo())
	c.noEffect("ServiceEntry", m)
	return c.result()
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
	if len(se.GetHosts()) == 0 {
		c.at(hosts, "add at least one host", "is empty")
	}
	for i, h := range se.GetHosts() {
		at := hosts.item(i)
		c.host(at, h, true)
		dns := se.GetResolution() == networking.ServiceEntry_DNS || se.GetResolution() == networking.ServiceEntry_DNS_ROUND_ROBIN
		switch {
		case h == "*":
			c.at(at, "use a suffix, like *.example.com", "stands for every host")
		case slices.Contains(se.GetHosts()[:i], h):
			c.at(at, "leave one of them", "%q is there twice", h)
		case isWildcard(h) && dns && len(se.GetEndpoints()) == 0 && se.GetWorkloadSelector() == nil:
			c.at(at, "add endpoints, or use resolution NONE", "%q is no name that can be looked up, and there are no endpoints", h)
		case se.GetResolution() == networking.ServiceEntry_DYNAMIC_DNS && !isWildcard(h):
			c.at(at, "use resolution DNS, or a host like *.example.com", "resolution DYNAMIC_DNS is for wildcard hosts")
		}
	}
}

func (c *checker) entryPorts(se *networking.ServiceEntry) {
	ports := root.field("ports")
	numbers, names := map[uint32]bool{}, map[string]bool{}
	for i, p := range se.GetPorts() {
		at := ports.item(i)
		c.port(at.field("number"), p.GetNumber())
		if numbers[p.GetNumber()] {
			c.at(at.field("number"), "give each port a number of its own", "%d is there twice", p.GetNumber())
		}
		c.portName(at.field("name"), p.GetName(), names)
		if p.GetProtocol() != "" {
			c.protocol(at.field("protocol"), p.GetProtocol(), protocols)
		}
		if p.GetTargetPort() != 0 {
			c.port(at.field("targetPort"), p.GetTargetPort())
		}
		numbers[p.GetNumber()], names[p.GetName()] = true, true
	}
}

func (c *checker) portName(at *fieldPath, name string, taken map[string]bool) {
	switch {
	case name == "":
		c.at(at, "give the port a name, like http-api", "is missing")
	case taken[name]:
		c.at(at, "give each port a name of its own", "%q is there twice", name)
	case !isHostLabel(name):
		c.at(at, "use letters, digits and -", "%q is no name of a port", name)
	}
}

func (c *checker) protocol(at *fieldPath, protocol string, known []string) {
	if !slices.Contains(known, strings.ToUpper(protocol)) {
		c.at(at, "use "+strings.Join(known, ", "), "%q is no protocol", protocol)
	}
}

func (c *checker) entryEndpoints(se *networking.ServiceEntry) {
	endpoints := root.field("endpoints")
	n := len(se.GetEndpoints())
	switch r := se.GetResolution(); {
	case n > 0 && (r == networking.ServiceEntry_NONE || r == networking.ServiceEntry_DYNAMIC_DNS):
		c.at(endpoints, "use resolution STATIC or DNS, or remove them", "with resolution %s there are no endpoints", r)
	case n > 1 && r == networking.ServiceEntry_DNS_ROUND_ROBIN:
		c.at(endpoints, "leave one, or use resolution DNS", "with resolution DNS_ROUND_ROBIN there is one endpoint, not %d", n)
	case n == 0 && r == networking.ServiceEntry_STATIC && se.GetWorkloadSelector() == nil:
		c.warn(endpoints, "add endpoints, or a workloadSelector", "is empty: who calls the host gets no answer")
	}
	names := map[string]bool{}
	for _, p := range se.GetPorts() {
		names[p.GetName()] = true
	}
	for i, e := range se.GetEndpoints() {
		at := endpoints.item(i)
		c.entryAddress(at.field("address"), e, se)
		c.workload(at, e)
		if e.GetNetwork() != "" && resolvesNames(se) {
			c.without(at.field("network"), "has no effect yet with resolution "+se.GetResolution().String()+": the endpoint is called by its name, from every network")
		}
		for name := range e.GetPorts() {
			if !names[name] {
				c.at(at.field("ports").entry(name), "use the name of one of spec.ports", "the entry has no port %q", name)
			}
		}
	}
}

// entryAddress checks the address of an endpoint by how it is resolved.
func (c *checker) entryAddress(at *fieldPath, e *networking.WorkloadEntry, se *networking.ServiceEntry) {
	a := e.GetAddress()
	static := se.GetResolution() == networking.ServiceEntry_STATIC
	switch {
	case a == "" && e.GetNetwork() != "": // reached by the gateways of the network
	case strings.HasPrefix(a, unixPrefix):
		c.unix(at, a)
		if !static {
			c.at(at, "use resolution STATIC", "a socket does not go with resolution %s", se.GetResolution())
		} else if len(se.GetPorts()) > 1 {
			c.at(at, "leave one port", "a socket serves one port, and the entry has %d", len(se.GetPorts()))
		}
	case isIP(a):
	case static:
		c.at(at, "write an IP address, or use resolution DNS", "%q is no IP address", a)
	default:
		c.host(at, a, false)
	}
}

// workload checks what endpoints and WorkloadEntries have in common.
func (c *checker) workload(at *fieldPath, e *networking.WorkloadEntry) {
	ports := at.field("ports")
	for _, name := range sortedKeys(e.GetPorts()) {
		c.port(ports.entry(name), e.GetPorts()[name])
		if strings.HasPrefix(e.GetAddress(), unixPrefix) {
			c.at(ports, "remove them", "a socket has no ports")
		}
	}
	c.labels(at.field("labels"), e.GetLabels())
	if parts := strings.Split(e.GetLocality(), "/"); e.GetLocality() != "" && (len(parts) > 3 || slices.Contains(parts, "")) {
		c.at(at.field("locality"), "write region, region/zone or region/zone/subzone", "%q is no locality", e.GetLocality())
	}
}

func WorkloadEntry(m proto.Message) []problem.Problem {
	e := m.(*networking.WorkloadEntry)
	c := checker{}
	at := root.field("address")
	switch a := e.GetAddress(); {
	case a == "":
		if e.GetNetwork() == "" {
			c.at(at, "write an address, or the network through whose gateways it is reached", "is missing")
		}
	case strings.HasPrefix(a, unixPrefix):
		c.unix(at, a)
	case !isIP(a):
		c.host(at, a, false)
	}
	c.workload(root, e)
	c.noEffect("WorkloadEntry", m)
	return c.result()
}

// serviceEntryEndpointsOnly: with names to resolve, endpoints are part of the
// cluster.
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
