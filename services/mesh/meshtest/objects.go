package meshtest

import (
	"fmt"
	"strconv"
	"strings"
	"testing"

	"google.golang.org/protobuf/proto"

	"meshlog.dev/proto/ident"
	registryv1 "meshlog.dev/proto/meshlog/registry/v1"
	"meshlog.dev/services/mesh/document"
	"meshlog.dev/services/mesh/manifest"
)

// Object puts an object of any kind.
func Object(kind, namespace, name string, m proto.Message) Change {
	return Change{key: ident.Key{Source: "file", Instance: "default", Kind: kind, Namespace: namespace, Name: name}, message: m}
}

// Service puts a Kubernetes Service with the virtual IP 10.0.0.1. A port is "80" or
// "80 http".
func Service(namespace, name string, ports ...string) Change {
	m := &registryv1.Service{Addresses: []string{"10.0.0.1"}}
	for _, p := range ports {
		number, portName := port(p)
		m.Ports = append(m.Ports, &registryv1.ServicePort{Number: number, Name: portName})
	}
	return Object("Service", namespace, name, m)
}

// Slice puts an EndpointSlice that has the name of its service, one port, written as
// for Service, and an endpoint for each IP.
func Slice(namespace, service, portText string, ips ...string) Change {
	number, portName := port(portText)
	m := &registryv1.Endpoints{Service: service, Ports: []*registryv1.EndpointPort{{Name: portName, Number: number}}}
	for _, ip := range ips {
		m.Endpoints = append(m.Endpoints, &registryv1.Endpoint{Addresses: []string{ip}})
	}
	return Object("EndpointSlice", namespace, service, m)
}

func port(text string) (uint32, string) {
	number, name, _ := strings.Cut(text, " ")
	n, err := strconv.ParseUint(number, 10, 32)
	if err != nil {
		panic(fmt.Errorf("port %q: %w", text, err))
	}
	return uint32(n), name
}

// YAML puts the objects of a file.
func YAML(t testing.TB, file string) []Change {
	t.Helper()
	var all []Change
	docs := manifest.Parse([]byte(file))
	for i := range docs {
		d := &docs[i]
		o, err := document.Read(d)
		if err != nil {
			t.Fatal(err)
		}
		change := Object(o.Kind.Name, o.Namespace, o.Name, o.Message)
		change.created = d.Metadata.Created
		all = append(all, change)
	}
	return all
}
