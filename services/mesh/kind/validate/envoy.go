package validate

import (
	"fmt"
	"regexp/syntax"
	"strings"
	"unicode"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/types/known/anypb"
	"google.golang.org/protobuf/types/known/durationpb"

	clusterv3 "github.com/envoyproxy/go-control-plane/envoy/config/cluster/v3"
	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	endpointv3 "github.com/envoyproxy/go-control-plane/envoy/config/endpoint/v3"
	routev3 "github.com/envoyproxy/go-control-plane/envoy/config/route/v3"
	hcmv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/network/http_connection_manager/v3"
	maglevv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/load_balancing_policies/maglev/v3"
	ringhashv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/load_balancing_policies/ring_hash/v3"
	tlsv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/transport_sockets/tls/v3"
	matcherv3 "github.com/envoyproxy/go-control-plane/envoy/type/matcher/v3"

	"meshlog.dev/services/mesh/problem"
	"meshlog.dev/services/mesh/protosearch"
	"meshlog.dev/services/mesh/re2"
)

const maxNesting = 16 // of Any in Any; real configurations have five

// CheckEnvoy finds what Envoy would refuse in a generated resource, or in a part
// of one, as far as this depends on no other configuration. Paths of fields begin
// with the name of the message. It is safe for concurrent use.
func CheckEnvoy(m proto.Message) []problem.Diagnostic {
	c := checker{}
	at := &fieldPath{name: string(m.ProtoReflect().Descriptor().Name())}
	if l, ok := m.(*endpointv3.ClusterLoadAssignment); ok {
		c.addresses(at, l)
	}
	c.generated(at, m)
	c.message(at, m.ProtoReflect(), 1)
	return c.result()
}

// checked are the types of the messages that one checks.
var checked = typesOf(
	&anypb.Any{}, &durationpb.Duration{}, &matcherv3.RegexMatcher{}, &routev3.RouteConfiguration{}, &routev3.WeightedCluster{},
	&clusterv3.Cluster{}, &ringhashv3.RingHash{}, &clusterv3.Cluster_MaglevLbConfig{}, &maglevv3.Maglev{},
	&tlsv3.SdsSecretConfig{}, &corev3.ExtensionConfigSource{}, &hcmv3.ScopedRds{}, &routev3.Vhds{},
)

func typesOf(messages ...proto.Message) map[protoreflect.FullName]bool {
	types := make(map[protoreflect.FullName]bool, len(messages))
	for _, m := range messages {
		types[m.ProtoReflect().Descriptor().FullName()] = true
	}
	return types
}

// leading finds the fields that lead to a checked message: nine of ten fields of
// an endpoint lead to none.
var leading = protosearch.For(func(d protoreflect.MessageDescriptor) bool { return checked[d.FullName()] })

// one checks m itself, for what its generated validation does not find and Envoy
// refuses late.
func (c *checker) one(at *fieldPath, m proto.Message, nesting int) {
	switch m := m.(type) {
	case *anypb.Any:
		c.any(at, m, nesting)
	case *durationpb.Duration:
		if err := m.CheckValid(); err != nil {
			c.errorf(at, "write it in seconds, like 1.5s", "%v", err)
		} else if m.AsDuration() < 0 {
			c.errorf(at, "use 0s or more", "%s is negative", m.AsDuration())
		}
	case *matcherv3.RegexMatcher:
		if _, err := syntax.Parse(m.GetRegex(), syntax.Perl); err != nil {
			c.errorf(at.field("regex"), useRE2, "%v", err)
		} else if size, err := re2.Size(m.GetRegex()); err == nil && size > re2.Stock {
			c.largeRegex(at.field("regex"), size, "set the runtime value in the bootstraps, as deploy/envoy does",
				"Envoys without that reject the resource; its virtual host or filter chain is then put into quarantine")
		}
	case *routev3.RouteConfiguration:
		c.routes(at, m)
	case *routev3.WeightedCluster:
		c.weights(at, m)
	case *clusterv3.Cluster:
		c.cluster(at, m)
	case *ringhashv3.RingHash:
		c.ring(at, m.GetMinimumRingSize(), m.GetMaximumRingSize())
	case *clusterv3.Cluster_MaglevLbConfig:
		c.prime(at, m.GetTableSize().GetValue())
	case *maglevv3.Maglev:
		c.prime(at, m.GetTableSize().GetValue())
	default:
		c.unserved(at, m)
	}
}

// message checks m and all messages in it, those in an Any included.
func (c *checker) message(at *fieldPath, m protoreflect.Message, nesting int) {
	if checked[m.Descriptor().FullName()] {
		c.one(at, m.Interface(), nesting)
	}
	for _, fd := range leading.Fields(m.Descriptor()) {
		if !m.Has(fd) {
			continue
		}
		at, v := at.field(c.fieldName(fd)), m.Get(fd)
		switch {
		case fd.IsMap():
			entries := &fieldPath{name: at.String()} // at would escape to the heap with the function
			v.Map().Range(func(k protoreflect.MapKey, v protoreflect.Value) bool {
				c.message(entries.entry(k.String()), v.Message(), nesting)
				return true
			})
		case fd.IsList():
			for i, list := 0, v.List(); i < list.Len(); i++ {
				c.message(at.item(i), list.Get(i).Message(), nesting)
			}
		default:
			c.message(at, v.Message(), nesting)
		}
	}
}

// fieldName returns the name of a field as documents of the object write it.
func (c *checker) fieldName(fd protoreflect.FieldDescriptor) string {
	if c.kind == "MeshConfig" {
		return fd.JSONName()
	}
	return string(fd.Name())
}

// any checks the message in a. Its path stays that of a, as in JSON.
func (c *checker) any(at *fieldPath, a *anypb.Any, nesting int) {
	if nesting == maxNesting {
		c.errorf(at, "nest less deeply", "more than %d messages within each other", maxNesting)
		return
	}
	if a.GetTypeUrl() == lookupType {
		c.errorf(at, "set nodes.client to grpc", "only gRPC clients know %s", lookupType)
		return
	}
	m, err := a.UnmarshalNew()
	if err != nil {
		c.errorf(at, "use a type of Envoy's v3 API as @type; for one that meshlog does not know, wrap it in type.googleapis.com/xds.type.v3.TypedStruct",
			"type %q: %v", a.GetTypeUrl(), err)
		return
	}
	c.generated(at, m)
	c.message(at, m.ProtoReflect(), nesting+1)
}

// generated runs the validation that protoc-gen-validate generated for m's type.
// It covers all messages in m except those in an Any.
func (c *checker) generated(at *fieldPath, m proto.Message) {
	if v, ok := m.(interface{ ValidateAll() error }); ok {
		if err := v.ValidateAll(); err != nil {
			c.flatten(at.String(), err)
		}
	}
}

// flatten turns the errors of protoc-gen-validate into problems with paths.
func (c *checker) flatten(path string, err error) {
	if list, ok := err.(interface{ AllErrors() []error }); ok {
		for _, e := range list.AllErrors() {
			c.flatten(path, e)
		}
		return
	}
	e, ok := err.(interface {
		Field() string
		Reason() string
		Cause() error
	})
	if !ok {
		c.errorf(&fieldPath{name: path}, "", "%v", err)
		return
	}
	path += "." + snake(e.Field())
	if e.Cause() != nil {
		c.flatten(path, e.Cause())
		return
	}
	c.errorf(&fieldPath{name: path}, "see this field in Envoy's API reference", "%s", e.Reason())
}

// snake turns the name of a Go field, "LbEndpoints[2]", into the name of the
// protobuf field, "lb_endpoints[2]".
func snake(field string) string {
	name, index, indexed := strings.Cut(field, "[")
	var b strings.Builder
	for i, r := range name {
		if unicode.IsUpper(r) && i > 0 {
			b.WriteByte('_')
		}
		b.WriteRune(unicode.ToLower(r))
	}
	if indexed {
		fmt.Fprintf(&b, "[%s", index)
	}
	return b.String()
}
