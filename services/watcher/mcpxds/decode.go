package mcpxds

import (
	"encoding/json"
	"fmt"
	"hash/maphash"
	"strconv"
	"strings"
	"time"

	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/types/known/anypb"
	mcp "istio.io/api/mcp/v1alpha1"
	networking "istio.io/api/networking/v1alpha3"

	"meshlog.dev/proto/ident"
	"meshlog.dev/services/mesh/anytype"
	"meshlog.dev/services/mesh/kind"
	"meshlog.dev/services/mesh/kind/validate"
	"meshlog.dev/services/mesh/problem"
	"meshlog.dev/services/watcher"
)

const (
	resourceType = typePrefix + "istio.mcp.v1alpha1.Resource"
	// revisionLabel is Istio's.
	revisionLabel = "istio.io/rev"
)

// decoder decodes what comes in a run.
type decoder struct {
	seed     maphash.Seed
	address  string
	revision string
	// incremental: an object without a body is deleted.
	incremental bool
}

// resource is one object of an answer, decoded.
type resource struct {
	name   name
	gone   bool // deleted, or of another revision
	object watcher.Object
	sum    uint64
	// endpoints of a ServiceEntry.
	endpoints int
	// bad is why the object cannot be decoded; its value is an Undecoded.
	bad *problem.Diagnostic
	// unknown is the path of a field that was left out, because this build does not know it.
	unknown string
}

// open returns the resource in a, and the name of its object. The error says why the
// object is not known.
func (d *decoder) open(c *collection, a *anypb.Any) (*mcp.Resource, name, error) {
	if c.of.kind.Name == meshConfigKind && a.GetTypeUrl() != resourceType {
		return &mcp.Resource{Body: a}, name{name: c.of.kind.Only}, nil
	}
	if a.GetTypeUrl() != resourceType {
		return nil, name{}, fmt.Errorf("an entry is a %q, not a %s", a.GetTypeUrl(), resourceType)
	}
	r := &mcp.Resource{}
	if err := (proto.UnmarshalOptions{DiscardUnknown: true}).Unmarshal(a.GetValue(), r); err != nil {
		return nil, name{}, fmt.Errorf("an entry is no Resource: %w", err)
	}
	full := r.GetMetadata().GetName()
	namespace, local, ok := strings.Cut(full, "/")
	switch {
	case !ok || local == "" || strings.Contains(local, "/"):
		return nil, name{}, fmt.Errorf("the name %q is not NAMESPACE/NAME", full)
	case (namespace != "") != c.of.kind.Namespaced:
		return nil, name{}, fmt.Errorf("the name %q: objects of this kind have a namespace: %t", full, c.of.kind.Namespaced)
	}
	return r, name{namespace, local}, nil
}

// decode decodes a resource. Its object may be Undecoded.
func (d *decoder) decode(c *collection, n name, r *mcp.Resource, observed time.Time) resource {
	k, m := c.of.kind, r.GetMetadata()
	out := resource{name: n, object: watcher.Object{
		Kind: k.Name, Namespace: n.namespace, Name: n.name, Observed: observed,
		SourceVersion: m.GetVersion(), Origin: "xds://" + d.address + " " + c.url, Trace: m.GetAnnotations()[validate.TraceAnnotation],
	}}
	if rev := m.GetLabels()[revisionLabel]; d.revision != "" && rev != "" && rev != d.revision || d.incremental && r.GetBody() == nil {
		out.gone, out.object.Delete = true, true
		return out
	}
	var v ident.Value
	decoded, bad := decodeBody(c.of, r.GetBody())
	if bad != nil {
		v = kind.Undecoded(r.GetBody().GetValue(), "application/protobuf", bad)
	} else {
		if e, ok := decoded.(*networking.ServiceEntry); ok {
			out.endpoints = len(e.GetEndpoints())
		}
		out.unknown = dropUnknown(decoded.ProtoReflect(), "")
		v, bad = payload(c.of, n, m, decoded, out.unknown)
	}
	if t := m.GetCreateTime(); t != nil && t.CheckValid() == nil {
		v.Created = t.AsTime()
	}
	out.object.Value, out.bad = v, bad
	out.sum = d.sum(v)
	return out
}

// sum returns a hash of what is content in a value.
func (d *decoder) sum(v ident.Value) uint64 {
	var h maphash.Hash
	h.SetSeed(d.seed)
	_, _ = h.WriteString(v.Type)
	_, _ = h.Write(v.Bytes)
	maphash.WriteComparable(&h, v.Created.UnixNano())
	return h.Sum64()
}

// raw returns a hash of a resource as it came.
func (d *decoder) raw(a *anypb.Any) uint64 { return maphash.Bytes(d.seed, a.GetValue()) }

// payload returns the value of a decoded object. If the object must not be taken, the
// value is an Undecoded and bad says why. unknown is a field that was left out.
func payload(s *set, n name, meta *mcp.Metadata, m proto.Message, unknown string) (v ident.Value, bad *problem.Diagnostic) {
	if bad = portZero(m); unknown != "" && s.kind.Security {
		// What is left could allow more than the whole policy.
		bad = invalid(unknown, "this build does not know the field, and a policy without it could allow more")
	}
	if bad == nil {
		annotated, err := s.kind.Annotated(m, meta.GetAnnotations())
		if err == nil {
			var b []byte
			if b, err = s.kind.Encode(annotated); err == nil {
				return ident.Value{Type: s.kind.TypeOf(annotated), Bytes: b}, nil
			}
		}
		bad = invalid("", err.Error())
	}
	return kind.Undecoded(document(s.kind, n, meta, m), "application/json", bad), bad
}

func invalid(field, reason string) *problem.Diagnostic {
	return &problem.Diagnostic{Severity: problem.Error, Code: "undecoded", Field: field, Reason: reason}
}

func decodeBody(s *set, body *anypb.Any) (proto.Message, *problem.Diagnostic) {
	message := body.GetTypeUrl()[strings.LastIndex(body.GetTypeUrl(), "/")+1:]
	switch {
	case body == nil, message == "" && len(body.GetValue()) == 0:
		return nil, invalid("", "it has no body; if the source deletes objects so, set the watcher's --mcp-incremental")
	case !s.bodies[message]:
		return nil, invalid("", fmt.Sprintf("a %s holds %s, not %q", s.kind.Name, strings.TrimPrefix(s.kind.TypeURL, typePrefix), message))
	}
	m, err := s.kind.Decode(s.kind.TypeURL, body.GetValue())
	if err != nil {
		return nil, invalid("", err.Error())
	}
	return m, nil
}

// dropUnknown removes the fields that this build does not know, and returns the path of
// one of them; empty: there is none.
func dropUnknown(m protoreflect.Message, at string) (found string) {
	if raw := m.GetUnknown(); len(raw) > 0 {
		number, _, _ := protowire.ConsumeTag(raw)
		found = join(at, strconv.Itoa(int(number)))
		m.SetUnknown(nil)
	}
	inner := func(at string, v protoreflect.Value) {
		if f := dropUnknown(v.Message(), at); found == "" {
			found = f
		}
	}
	m.Range(func(f protoreflect.FieldDescriptor, v protoreflect.Value) bool {
		at := join(at, f.JSONName())
		switch {
		case f.IsMap():
			if f.MapValue().Message() != nil {
				v.Map().Range(func(k protoreflect.MapKey, v protoreflect.Value) bool {
					inner(at, v)
					return true
				})
			}
		case f.Message() == nil:
		case f.IsList():
			for i := range v.List().Len() {
				inner(at, v.List().Get(i))
			}
		default:
			inner(at, v)
		}
		return true
	})
	return found
}

func join(path, field string) string {
	if path == "" {
		return field
	}
	return path + "." + field
}

// portZero returns a problem with a ServiceEntry that has a port 0 (NAC-2).
func portZero(m proto.Message) *problem.Diagnostic {
	entry, ok := m.(*networking.ServiceEntry)
	if !ok {
		return nil
	}
	for i, p := range entry.GetPorts() {
		if p.GetNumber() == 0 {
			return invalid(fmt.Sprintf("spec.ports[%d].number", i),
				"is 0, so nothing can call the port. The MCP-over-xDS of Nacos has this port for every service: use meshlog's native watcher for Nacos")
		}
	}
	return nil
}

// document returns a decoded object as JSON, so that the builder can read what a policy
// selects that fails closed.
func document(k *kind.Kind, n name, meta *mcp.Metadata, m proto.Message) []byte {
	spec, err := protojson.MarshalOptions{Resolver: anytype.Types}.Marshal(m)
	if err != nil {
		return nil
	}
	b, err := json.Marshal(map[string]any{
		"apiVersion": k.APIVersion(), "kind": k.DocumentKind(), "spec": json.RawMessage(spec),
		"metadata": map[string]any{"name": n.name, "namespace": n.namespace, "annotations": meta.GetAnnotations()},
	})
	if err != nil {
		return nil
	}
	return b
}
