package validate

import (
	"maps"
	"math"
	"slices"

	"google.golang.org/protobuf/proto"

	registryv1 "meshlog.dev/proto/meshlog/registry/v1"
	"meshlog.dev/services/mesh/problem"
)

// A registry checks its objects itself; nothing checks them in files. Fields have
// the names that they have in Kubernetes.

// serviceExportTo is where a Service names the namespaces that see it.
var serviceExportTo = (&fieldPath{name: "metadata"}).field("annotations").entry("networking.istio.io/exportTo")

// Service checks a Service.
func Service(m proto.Message) []problem.Diagnostic {
	s := m.(*registryv1.Service)
	c := checker{kind: "Service"}
	if s.GetHostname() != "" {
		c.host(root.field("hostname"), s.GetHostname(), true)
	}
	if d := s.GetDomainSuffix(); d != "" { // it comes from the watcher's settings
		c.errorIf(!subdomain.MatchString(d), root.field("domainSuffix"), "set the watcher's domain suffix to one like cluster.local", "%q is not a DNS domain", d)
	}
	if s.GetExternalName() != "" {
		c.host(root.field("externalName"), s.GetExternalName(), false)
	}
	for i, a := range s.GetAddresses() {
		c.ip(root.field("clusterIPs").item(i), a)
	}
	type port struct {
		transport string
		number    uint32
	}
	numbers, names := map[port]bool{}, map[string]bool{}
	for i, p := range s.GetPorts() {
		at := root.field("ports").item(i)
		c.port(at.field("port"), p.GetNumber())
		if !first(numbers, port{p.GetTransport(), p.GetNumber()}) {
			c.errorf(at.field("port"), "give each port a number of its own", "%d is there twice", p.GetNumber())
		}
		if len(s.GetPorts()) > 1 {
			c.portName(at.field("name"), p.GetName(), names)
		}
		c.optionalPort(at.field("targetPort"), p.GetTargetPort())
	}
	if len(s.GetPorts()) == 0 && s.GetExternalName() == "" {
		c.warnf(root.field("ports"), "add the ports that clients call", "is empty: the service cannot be called")
	}
	c.exportTo(serviceExportTo, s.GetExportTo())
	return c.result()
}

// Endpoints checks an EndpointSlice.
func Endpoints(m proto.Message) []problem.Diagnostic {
	s := m.(*registryv1.Endpoints)
	c := checker{}
	metadata, ports, endpoints := &fieldPath{name: "metadata"}, &fieldPath{name: "ports"}, &fieldPath{name: "endpoints"}
	c.errorIf(s.GetService() == "", metadata.field("labels").entry("kubernetes.io/service-name"),
		"set the label to the name of the Service", "is missing: the endpoints belong to no Service")
	names := map[string]bool{}
	for i, p := range s.GetPorts() {
		c.port(ports.item(i).field("port"), p.GetNumber())
		c.errorIf(!first(names, p.GetName()), ports.item(i).field("name"), "give each port the name that the Service gives it", isTwice, p.GetName())
	}
	for i, e := range s.GetEndpoints() {
		at := endpoints.item(i).field("addresses")
		c.errorIf(len(e.GetAddresses()) == 0, at, "write the address", isEmpty)
		for j, a := range e.GetAddresses() {
			c.ip(at.item(j), a)
		}
		c.ownPorts(endpoints.item(i), e.GetPorts())
	}
	return c.result()
}

// ownPorts checks the ports of an endpoint (REG-2).
func (c *checker) ownPorts(at *fieldPath, ports map[string]uint32) {
	bad := false
	for _, n := range ports {
		bad = bad || n < 1 || n > math.MaxUint16
	}
	if !bad {
		return
	}
	for _, name := range slices.Sorted(maps.Keys(ports)) {
		c.port(at.field("ports").entry(name), ports[name])
	}
}

// Workload checks a Pod.
func Workload(m proto.Message) []problem.Diagnostic {
	c := checker{}
	status := &fieldPath{name: "status"}
	for i, a := range m.(*registryv1.Workload).GetAddresses() {
		c.ip(status.field("podIPs").item(i).field("ip"), a)
	}
	return c.result()
}
