package validate

import (
	"google.golang.org/protobuf/proto"

	registryv1 "meshlog.dev/proto/meshlog/registry/v1"
	"meshlog.dev/services/mesh/problem"
)

// Payloads of registries were checked where they come from; in files nobody
// checked them. Fields are named as Kubernetes names them.

func Service(m proto.Message) []problem.Problem {
	s := m.(*registryv1.Service)
	c := checker{}
	if s.GetHostname() != "" {
		c.host(root.field("hostname"), s.GetHostname(), true)
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
		number := port{p.GetTransport(), p.GetNumber()}
		if numbers[number] {
			c.at(at.field("port"), "give each port a number of its own", "%d is there twice", p.GetNumber())
		}
		if len(s.GetPorts()) > 1 {
			c.portName(at.field("name"), p.GetName(), names)
		}
		if p.GetTargetPort() != 0 {
			c.port(at.field("targetPort"), p.GetTargetPort())
		}
		numbers[number], names[p.GetName()] = true, true
	}
	if len(s.GetPorts()) == 0 && s.GetExternalName() == "" {
		c.warn(root.field("ports"), "add the ports that are called", "is empty: the service cannot be called")
	}
	c.exportTo((&fieldPath{name: "metadata"}).field("annotations").entry("networking.istio.io/exportTo"), s.GetExportTo())
	c.noEffect("Service", m)
	return c.result()
}

func Endpoints(m proto.Message) []problem.Problem {
	s := m.(*registryv1.Endpoints)
	c := checker{}
	if s.GetService() == "" {
		c.at((&fieldPath{name: "metadata"}).field("labels").entry("kubernetes.io/service-name"),
			"set the label to the name of the Service", "is missing: the endpoints are those of no Service")
	}
	ports := &fieldPath{name: "ports"}
	names := map[string]bool{}
	for i, p := range s.GetPorts() {
		at := ports.item(i)
		c.port(at.field("port"), p.GetNumber())
		if names[p.GetName()] {
			c.at(at.field("name"), "give each port the name that the Service gives it", "%q is there twice", p.GetName())
		}
		names[p.GetName()] = true
	}
	endpoints := &fieldPath{name: "endpoints"}
	for i, e := range s.GetEndpoints() {
		at := endpoints.item(i).field("addresses")
		if len(e.GetAddresses()) == 0 {
			c.at(at, "write the address", "is empty")
		}
		for j, a := range e.GetAddresses() {
			c.ip(at.item(j), a)
		}
	}
	return c.result()
}

func Workload(m proto.Message) []problem.Problem {
	w := m.(*registryv1.Workload)
	c := checker{}
	at := (&fieldPath{name: "status"}).field("podIPs")
	for i, a := range w.GetAddresses() {
		c.ip(at.item(i).field("ip"), a)
	}
	return c.result()
}
