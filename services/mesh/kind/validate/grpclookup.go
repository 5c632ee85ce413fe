package validate

import (
	"maps"
	"net/url"
	"slices"
	"strings"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	"google.golang.org/protobuf/types/known/durationpb"

	grpclookupv1 "meshlog.dev/proto/meshlog/grpclookup/v1"
	"meshlog.dev/services/mesh/anytype"
)

const lookupType = "type.googleapis.com/grpc.lookup.v1.RouteLookupClusterSpecifier"

// lookup checks the configuration of gRPC's route lookup service. Clients know it if
// their program links the balancer: in Go, google.golang.org/grpc/balancer/rls.
func (g grpc) lookup(in *fieldPath, e *corev3.TypedExtensionConfig) {
	m, err := anytype.Unmarshal(e.GetTypedConfig())
	if err != nil {
		g.errorf(in, encodeAgain, "%v", err)
		return
	}
	l, at := m.(*grpclookupv1.RouteLookupClusterSpecifier).GetRouteLookupConfig(), in.field("route_lookup_config")
	g.target(at.field("lookup_service"), l.GetLookupService())
	for name, d := range map[string]*durationpb.Duration{
		"lookup_service_timeout": l.GetLookupServiceTimeout(), "max_age": l.GetMaxAge(), "stale_age": l.GetStaleAge(),
	} {
		g.errorIf(d != nil && d.CheckValid() != nil, at.field(name), "write it in seconds, like 1.5s", "is no valid duration")
	}
	g.errorIf(l.GetStaleAge().AsDuration() != 0 && l.GetMaxAge().AsDuration() == 0, at.field("stale_age"), "set max_age too", "is set without max_age")
	g.errorIf(l.GetCacheSizeBytes() <= 0, at.field("cache_size_bytes"), "write the size of the cache, such as 1048576", "is not above 0")
	g.errorIf(len(l.GetGrpcKeybuilders()) == 0, at.field("grpc_keybuilders"), "write one, such as {names: [{service: my.Service}]}", isEmpty)
	paths := map[string]bool{}
	for i, b := range l.GetGrpcKeybuilders() {
		at := at.field("grpc_keybuilders").item(i)
		g.errorIf(len(b.GetNames()) == 0, at.field("names"), "name a service", isEmpty)
		for j, n := range b.GetNames() {
			at := at.field("names").item(j)
			g.errorIf(n.GetService() == "", at.field("service"), "name a service", isEmpty)
			g.errorIf(strings.Contains(n.GetMethod(), "/"), at.field("method"), "write the name of the method alone", "%q has a /", n.GetMethod())
			g.errorIf(!first(paths, n.GetService()+"/"+n.GetMethod()), at, keepOne, isTwice, n.GetService()+"/"+n.GetMethod())
		}
		g.keys(at, b)
	}
}

// target checks the name of a lookup service. A host with a port and no scheme is
// read as if the host were the scheme.
func (g grpc) target(at *fieldPath, s string) {
	g.errorIf(s == "", at, "name the lookup service, as dns:///lookup.example.com:443", isMissing)
	u, err := url.Parse(s)
	if err != nil {
		_, err = url.Parse("passthrough:///" + s)
		g.errorIf(err != nil, at, "write it as dns:///lookup.example.com:443", "%q is no target of gRPC", s)
		return
	}
	schemes := []string{"", "dns", "passthrough", "unix", "unix-abstract", "xds"}
	g.errorIf(u.Opaque != "" && !slices.Contains(schemes, u.Scheme), at, "write dns:///"+s, "gRPC clients read %q as a scheme", u.Scheme)
}

func (g grpc) keys(at *fieldPath, b *grpclookupv1.GrpcKeyBuilder) {
	keys := map[string]bool{}
	key := func(at *fieldPath, key string) {
		g.errorIf(key == "", at, "give the key a name", isEmpty)
		g.errorIf(!first(keys, key), at, keepOne, "key "+isTwice, key)
	}
	for _, k := range slices.Sorted(maps.Keys(b.GetConstantKeys())) {
		key(at.field("constant_keys"), k)
	}
	for i, h := range b.GetHeaders() {
		at := at.field("headers").item(i)
		g.errorIf(h.GetRequiredMatch(), at.field("required_match"), removeIt, neverSet)
		key(at.field("key"), h.GetKey())
	}
	extra := b.GetExtraKeys()
	for _, k := range []struct{ name, key string }{{"host", extra.GetHost()}, {"service", extra.GetService()}, {"method", extra.GetMethod()}} {
		g.errorIf(k.key != "" && keys[k.key], at.field("extra_keys").field(k.name), keepOne, "key "+isTwice, k.key)
	}
}
