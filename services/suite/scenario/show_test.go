package scenario

import (
	"bytes"
	"fmt"
	"maps"
	"slices"
	"strings"

	clusterv3 "github.com/envoyproxy/go-control-plane/envoy/config/cluster/v3"
	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	endpointv3 "github.com/envoyproxy/go-control-plane/envoy/config/endpoint/v3"
	listenerv3 "github.com/envoyproxy/go-control-plane/envoy/config/listener/v3"
	routev3 "github.com/envoyproxy/go-control-plane/envoy/config/route/v3"
	tlsv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/transport_sockets/tls/v3"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"
	"sigs.k8s.io/yaml"

	"meshlog.dev/proto/ident"
	ndsv1 "meshlog.dev/proto/istio/networking/nds/v1"
	"meshlog.dev/services/mesh/anytype"
	"meshlog.dev/services/mesh/index"
	"meshlog.dev/services/mesh/problem"
	"meshlog.dev/services/mesh/xds"
	"meshlog.dev/services/suite/envoytest"
)

func resourceType(name string) (ident.ResourceType, error) {
	for t := range ident.ResourceTypes {
		if t.String() == name {
			return t, nil
		}
	}
	return 0, fmt.Errorf("%q: want CDS, EDS, LDS, RDS, SDS or ECDS", name)
}

func (s *stage) set(proxy, typeName string) (ident.ResourceType, *xds.Set, error) {
	t, err := resourceType(typeName)
	if err != nil {
		return 0, nil, err
	}
	p, err := s.proxy(proxy)
	if err != nil {
		return 0, nil, err
	}
	return t, s.sets(s.pc, p)[t], nil
}

func (s *stage) names(proxy, typeName string) ([]byte, error) {
	_, set, err := s.set(proxy, typeName)
	if err != nil {
		return nil, err
	}
	var b bytes.Buffer
	for _, r := range set.Resources {
		fmt.Fprintln(&b, r.Name)
	}
	return b.Bytes(), nil
}

func (s *stage) resource(proxy, typeName, name string) ([]byte, error) {
	t, set, err := s.set(proxy, typeName)
	if err != nil {
		return nil, err
	}
	r := set.Find(name)
	if r == nil {
		return nil, nil
	}
	m, err := message(t, r)
	if err != nil {
		return nil, err
	}
	j, err := protojson.MarshalOptions{Resolver: anytype.Types}.Marshal(m)
	if err != nil {
		return nil, err
	}
	return yaml.JSONToYAML(j)
}

func message(t ident.ResourceType, r *xds.Resource) (proto.Message, error) {
	m := [ident.ResourceTypes]proto.Message{
		ident.CDS: new(clusterv3.Cluster), ident.EDS: new(endpointv3.ClusterLoadAssignment),
		ident.LDS: new(listenerv3.Listener), ident.RDS: new(routev3.RouteConfiguration),
		ident.SDS: new(tlsv3.Secret), ident.ECDS: new(corev3.TypedExtensionConfig),
		ident.NDS: new(ndsv1.NameTable),
	}[t]
	return m, proto.Unmarshal(r.Value(), m)
}

// changes returns what the last step changed for a proxy.
func (s *stage) changes(proxy string) ([]byte, error) {
	p, err := s.proxy(proxy)
	if err != nil {
		return nil, err
	}
	before, now := s.sets(s.before, p), s.sets(s.pc, p)
	var b bytes.Buffer
	for t := range ident.ResourceTypes {
		for _, r := range now[t].Resources {
			switch old := before[t].Find(r.Name); {
			case old == nil:
				fmt.Fprintf(&b, "%s + %s\n", t, r.Name)
			case !old.Same(r):
				fmt.Fprintf(&b, "%s ~ %s\n", t, r.Name)
			}
		}
		for _, r := range before[t].Resources {
			if now[t].Find(r.Name) == nil {
				fmt.Fprintf(&b, "%s - %s\n", t, r.Name)
			}
		}
	}
	return b.Bytes(), nil
}

// diagnostics returns the diagnostics that the builder publishes with the version,
// and those that the watcher reports about files.
func (s *stage) diagnostics() []byte {
	all := slices.Concat(s.fold.Diagnostics(), s.world.Diagnostics(), s.pc.Diagnostics())
	catalog := xds.NewCatalog(s.pc)
	for _, class := range s.pc.Classes() {
		for t := range ident.ResourceTypes {
			catalog.Set(class, t)
		}
	}
	all = append(append(all, catalog.Diagnostics()...), s.pc.Unapplied(catalog.Applied)...)
	for _, ds := range s.origins {
		all = append(all, ds...)
	}
	slices.SortFunc(all, problem.Diagnostic.Compare)
	var b bytes.Buffer
	for _, d := range slices.Compact(all) {
		fmt.Fprintf(&b, "%s %s: ", d.Severity, d.Code)
		if d.Key != (ident.Key{}) {
			fmt.Fprintf(&b, "%s %s: ", d.Key.Kind, strings.TrimPrefix(d.Key.Namespace+"/"+d.Key.Name, "/"))
		} else if d.Origin != "" {
			fmt.Fprintf(&b, "%s: ", d.Origin)
		}
		if d.Field != "" {
			fmt.Fprintf(&b, "%s: ", d.Field)
		}
		fmt.Fprintf(&b, "%s; %s", d.Reason, d.Advice)
		if d.Effect != "" {
			fmt.Fprintf(&b, " (%s)", d.Effect)
		}
		fmt.Fprintln(&b)
	}
	return b.Bytes()
}

// check checks what must hold after every step: incremental generation equals
// generation from nothing, and all resources are valid.
func (s *stage) check() {
	s.t.Helper()
	fresh := xds.NewCatalog(index.NewPushContext(s.world))
	for _, class := range s.pc.Classes() {
		for t := range ident.ResourceTypes {
			class := class.Only(t)
			want := fresh.Set(class, t)
			got := s.catalog.Set(class, t)
			if got.Sum != want.Sum {
				s.t.Errorf("step %d: %s of class %s: incremental generation differs from generation from nothing", s.seq, t, class)
			}
			for _, r := range want.Resources {
				m, err := message(t, r)
				if err != nil {
					s.t.Errorf("%s %s: %v", t, r.Name, err)
					continue
				}
				if v, ok := m.(interface{ ValidateAll() error }); ok {
					if err := v.ValidateAll(); err != nil {
						s.t.Errorf("%s %s: %v", t, r.Name, err)
					}
				}
			}
		}
	}
}

// askEnvoy lets a real Envoy validate what each of the story's proxies is served
// at the end.
func (s *stage) askEnvoy() {
	for _, name := range slices.Sorted(maps.Keys(s.proxies)) {
		if s.proxies[name].GRPC {
			continue
		}
		var c envoytest.Config
		for t, set := range s.sets(s.pc, s.proxies[name]) {
			for _, r := range set.Resources {
				m, err := message(ident.ResourceType(t), r)
				if err != nil {
					s.t.Fatal(err)
				}
				switch m := m.(type) {
				case *clusterv3.Cluster:
					c.Clusters = append(c.Clusters, m)
				case *endpointv3.ClusterLoadAssignment:
					c.Endpoints = append(c.Endpoints, m)
				case *listenerv3.Listener:
					c.Listeners = append(c.Listeners, m)
				case *routev3.RouteConfiguration:
					c.Routes = append(c.Routes, m)
				case *corev3.TypedExtensionConfig:
					c.Filters = append(c.Filters, m)
				}
			}
		}
		if len(c.Clusters)+len(c.Listeners)+len(c.Routes) > 0 {
			envoytest.Validate(s.t, c)
		}
	}
}
