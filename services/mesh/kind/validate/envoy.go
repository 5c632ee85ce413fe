package validate

import (
	"google.golang.org/protobuf/proto"

	endpointv3 "github.com/envoyproxy/go-control-plane/envoy/config/endpoint/v3"

	"meshlog.dev/services/mesh/problem"
)

// CheckEnvoy checks a generated resource of Envoy's API, or a part of one, for
// all that Envoy would refuse and that can be known without the rest of its
// configuration. Paths of fields begin with the name of the message.
func CheckEnvoy(m proto.Message) []problem.Problem {
	c := checker{}
	at := &fieldPath{name: string(m.ProtoReflect().Descriptor().Name())}
	if l, ok := m.(*endpointv3.ClusterLoadAssignment); ok {
		c.addresses(at, l)
	}
	c.generated(at, m)
	c.message(at, m.ProtoReflect(), 1)
	return c.result()
}
