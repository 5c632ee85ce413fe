package kind_test

import (
	"slices"
	"strings"
	"testing"

	"google.golang.org/protobuf/reflect/protoreflect"

	"meshlog.dev/services/mesh/kind/validate"
	"meshlog.dev/services/mesh/problem"
)

// TestNoEffects sets only the field of a row of the table, for each row, and checks
// that the validation warns of it.
func TestNoEffects(t *testing.T) {
	seen := map[[2]string]bool{}
	for _, row := range validate.NoEffects() {
		if seen[[2]string{row.Kind, row.Field}] || row.Instead == "" {
			t.Errorf("%s %s: the row occurs twice, or does not say what happens instead", row.Kind, row.Field)
		}
		seen[[2]string{row.Kind, row.Field}] = true
		k := mustKind(t, row.Kind)
		m, err := k.Decode(k.TypeURL, nil)
		if err != nil {
			t.Fatal(err)
		}
		path, value, _ := strings.Cut(row.Field, "=")
		set(t, m.ProtoReflect(), strings.Split(path, "."), value)
		if !slices.ContainsFunc(k.Validate("", m), func(d problem.Diagnostic) bool {
			return d.Code == "no-effect" && d.Severity == problem.Warning && strings.HasSuffix(d.Reason, "has no effect yet: "+row.Instead)
		}) {
			t.Errorf("%s with %s: no warning: %+v", row.Kind, row.Field, k.Validate("", m))
		}
	}
}

// TestNoEffectRows sets each field of these kinds alone, and an enumeration to each
// of its values. Every warning about a missing effect must have a row in the table.
func TestNoEffectRows(t *testing.T) {
	rows := map[string]bool{}
	kinds := map[string]bool{}
	for _, row := range validate.NoEffects() {
		rows["has no effect yet: "+row.Instead] = true
		kinds[row.Kind] = true
	}
	for name := range kinds {
		k := mustKind(t, name)
		empty, err := k.Decode(k.TypeURL, nil)
		if err != nil {
			t.Fatal(err)
		}
		eachField(empty.ProtoReflect().Descriptor(), nil, func(path []string, value string) {
			m := empty.ProtoReflect().New()
			set(t, m, path, value)
			for _, d := range k.Validate("", m.Interface()) {
				_, effect, _ := strings.Cut(d.Reason, "has no effect yet: ")
				if d.Code == "no-effect" && effect != "" && !rows["has no effect yet: "+effect] {
					t.Errorf("%s with %s %s: no row has %q", name, strings.Join(path, "."), value, d.Reason)
				}
			}
		})
	}
}

// eachField yields the path of each field below a message, and each value of an
// enumeration. It does not enter a message that contains itself.
func eachField(md protoreflect.MessageDescriptor, above []protoreflect.FieldDescriptor, yield func(path []string, value string)) {
	for i := range md.Fields().Len() {
		fd := md.Fields().Get(i)
		fields := append(slices.Clone(above), fd)
		var path []string
		for _, f := range fields {
			path = append(path, f.JSONName())
		}
		child := fd.Message()
		if fd.IsMap() {
			child = fd.MapValue().Message()
		}
		inside := slices.ContainsFunc(above, func(f protoreflect.FieldDescriptor) bool { return f.Message() == fd.Message() })
		switch {
		case child != nil && child.ParentFile().Package() != "google.protobuf" && !inside:
			eachField(child, fields, yield)
			yield(path, "")
		case fd.Enum() != nil && !fd.IsList():
			for j := range fd.Enum().Values().Len() {
				yield(path, string(fd.Enum().Values().Get(j).Name()))
			}
		default:
			yield(path, "")
		}
	}
}

// set sets the field at a path to a value, or to any if value is empty.
func set(t *testing.T, m protoreflect.Message, path []string, value string) {
	t.Helper()
	fd := m.Descriptor().Fields().ByJSONName(path[0])
	if fd == nil {
		t.Fatalf("%s has no field %s", m.Descriptor().FullName(), path[0])
	}
	switch rest := path[1:]; {
	case fd.IsMap():
		v := m.NewField(fd).Map().NewValue()
		if len(rest) > 0 {
			set(t, v.Message(), rest, value)
		}
		m.Mutable(fd).Map().Set(protoreflect.ValueOfString("x").MapKey(), v)
	case fd.IsList() && fd.Message() != nil:
		e := m.Mutable(fd).List().AppendMutable().Message()
		if len(rest) > 0 {
			set(t, e, rest, value)
		}
	case fd.IsList():
		m.Mutable(fd).List().Append(scalar(t, fd, value))
	case fd.Message() != nil && len(rest) > 0:
		set(t, m.Mutable(fd).Message(), rest, value)
	case fd.Message() != nil:
		m.Mutable(fd)
	default:
		m.Set(fd, scalar(t, fd, value))
	}
}

func scalar(t *testing.T, fd protoreflect.FieldDescriptor, value string) protoreflect.Value {
	t.Helper()
	switch fd.Kind() {
	case protoreflect.EnumKind:
		if value == "" {
			return protoreflect.ValueOfEnum(1)
		}
		if v := fd.Enum().Values().ByName(protoreflect.Name(value)); v != nil {
			return protoreflect.ValueOfEnum(v.Number())
		}
		t.Fatalf("%s has no value %s", fd.FullName(), value)
	case protoreflect.StringKind:
		return protoreflect.ValueOfString(value + strings.Repeat("x", 1-min(len(value), 1)))
	case protoreflect.BoolKind:
		return protoreflect.ValueOfBool(true)
	case protoreflect.Int32Kind:
		return protoreflect.ValueOfInt32(1)
	case protoreflect.Uint32Kind:
		return protoreflect.ValueOfUint32(1)
	}
	return fd.Default()
}

// TestGoodObjectsAllocateNothing checks that the validation of a good object does
// not allocate, because the fold validates every object of a mesh. Resources are
// the exception: they hold an Any that has to be decoded.
func TestGoodObjectsAllocateNothing(t *testing.T) {
	for name, spec := range map[string]string{
		"ServiceEntry": `{"hosts": ["a.example.com", "*.b.example.com"], "addresses": ["10.0.0.0/8", "fd00::1"], "resolution": "STATIC", "exportTo": [".", "prod"],
			"ports": [{"number": 80, "name": "http", "protocol": "http", "targetPort": 8080}, {"number": 443, "name": "https", "protocol": "HTTPS"}],
			"endpoints": [{"address": "10.0.0.1", "labels": {"version": "v1"}, "locality": "a/b", "ports": {"http": 8080}}, {"network": "n1"}]}`,
		"VirtualService": `{"hosts": ["reviews", "a.example.com"], "gateways": ["mesh", "prod/edge"], "http": [
			{"match": [{"uri": {"prefix": "/a"}, "headers": {"x-a": {"exact": "b"}}, "queryParams": {"q": {"exact": "1"}}, "sourceLabels": {"app": "x"}}],
				"route": [{"destination": {"host": "reviews", "subset": "v1", "port": {"number": 80}}, "weight": 90}, {"destination": {"host": "reviews"}, "weight": 10}],
				"timeout": "5s", "retries": {"attempts": 2, "perTryTimeout": "1s", "retryOn": "5xx, reset, 503"}, "rewrite": {"uri": "/"},
				"headers": {"request": {"set": {"x-b": "c", "host": "d"}, "remove": ["x-c"]}}, "fault": {"delay": {"fixedDelay": "1s", "percentage": {"value": 1}}},
				"mirrors": [{"destination": {"host": "b"}, "percentage": {"value": 5}}], "corsPolicy": {"allowOrigins": [{"exact": "x"}], "allowMethods": ["GET"], "allowHeaders": ["x-a"]}},
			{"redirect": {"uri": "/b", "redirectCode": 302}}],
			"tcp": [{"match": [{"port": 80, "destinationSubnets": ["10.0.0.0/8"]}], "route": [{"destination": {"host": "b"}}]}]}`,
		"DestinationRule": `{"host": "reviews", "subsets": [{"name": "v1", "labels": {"version": "v1"}}, {"name": "v2"}], "trafficPolicy": {
			"connectionPool": {"tcp": {"maxConnections": 10, "connectTimeout": "1s"}}, "outlierDetection": {"interval": "10s", "maxEjectionPercent": 50},
			"tls": {"mode": "SIMPLE", "sni": "a"}, "loadBalancer": {"consistentHash": {"httpHeaderName": "x-user"}}, "portLevelSettings": [{"port": {"number": 80}}]}}`,
		"Gateway":       `{"selector": {"istio": "edge"}, "servers": [{"port": {"number": 80, "name": "http", "protocol": "HTTP"}, "hosts": ["prod/*.example.com", "*", "b.example.com"]}]}`,
		"Service":       `{"hostname": "a.b.svc.cluster.local", "addresses": ["10.0.0.1"], "ports": [{"number": 80, "name": "http"}, {"number": 81, "name": "b", "targetPort": 8080}]}`,
		"EndpointSlice": `{"service": "a", "ports": [{"number": 80}], "endpoints": [{"addresses": ["10.0.0.1"]}, {"addresses": ["fd00::1"]}]}`,
		"AuthorizationPolicy": `{"selector": {"matchLabels": {"app": "a"}}, "rules": [{"from": [{"source": {"principals": ["cluster.local/ns/a/sa/b", "*"], "ipBlocks": ["10.0.0.0/8"]}}],
			"to": [{"operation": {"hosts": ["a.example.com"], "methods": ["GET"], "paths": ["/a/*", "/b/{*}"], "ports": ["80"]}}],
			"when": [{"key": "source.namespace", "values": ["a"]}]}]}`,
		"Pod":           `{"addresses": ["10.0.0.1"]}`,
		"WorkloadEntry": `{"address": "vm.example.com", "labels": {"app": "a"}, "ports": {"http": 80}}`,
		"Secret":        `{"type": "kubernetes.io/tls", "fields": {"tls.crt": ""}}`,
	} {
		t.Run(name, func(t *testing.T) {
			k := mustKind(t, name)
			m, err := k.DecodeJSON([]byte(spec))
			if err != nil {
				t.Fatal(err)
			}
			if ds := k.Validate("", m); len(ds) > 0 {
				t.Fatalf("%+v", ds)
			}
			if n := testing.AllocsPerRun(100, func() { k.Validate("", m) }); n > 0 {
				t.Errorf("%v allocations", n)
			}
		})
	}
}
