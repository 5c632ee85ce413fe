package trial_test

import (
	"crypto/sha256"
	"fmt"
	"strings"
	"testing"

	clusterv3 "github.com/envoyproxy/go-control-plane/envoy/config/cluster/v3"
	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	listenerv3 "github.com/envoyproxy/go-control-plane/envoy/config/listener/v3"
	routev3 "github.com/envoyproxy/go-control-plane/envoy/config/route/v3"
	tlsv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/transport_sockets/tls/v3"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/types/known/wrapperspb"

	"meshlog.dev/proto/ident"
	"meshlog.dev/services/mesh/fold"
	"meshlog.dev/services/mesh/index"
	"meshlog.dev/services/mesh/kind"
	"meshlog.dev/services/mesh/proxy"
	"meshlog.dev/services/mesh/trial"
	"meshlog.dev/services/mesh/world"
	"meshlog.dev/services/mesh/xds"
	"meshlog.dev/services/mesh/xds/piece"
	"meshlog.dev/services/suite/envoytest"
)

// A real Envoy takes what is generated from every number and duration of the
// base, at and beyond the limits of its type and of Envoy's API, that the judge
// takes: Envoy has no limit that validation does not know.
func TestEnvoyTakesWhatTheJudgeTakes(t *testing.T) {
	b := newBase(t, "base.yaml")
	pc := index.NewPushContext(b.world)
	catalog := xds.NewCatalog(pc)
	for _, node := range []*proxy.Proxy{
		{Type: proxy.Sidecar, Namespace: "default", Labels: map[string]string{"app": "a"}},
		{Type: proxy.Router, Namespace: "default", Labels: map[string]string{"app": "edge"}},
	} {
		for _, ty := range []ident.ResourceType{ident.CDS, ident.LDS, ident.RDS} {
			catalog.Set(index.Classify(pc, node), ty)
		}
	}
	judge := fold.KindJudge{Trial: trial.Problems}
	made := &collected{seen: map[[32]byte]bool{}}
	var last []ident.Key // the key of the object that differs from the base
	for _, name := range []string{"VirtualService", "DestinationRule", "ServiceEntry", "MeshConfig", "Gateway"} {
		kd, _ := kind.ByName(name)
		for o := range b.world.Objects(name) {
			if strings.HasPrefix(o.Key.Name, "fixed-") {
				continue
			}
			mutants(o.Message, 0, withoutEffect(name), isNumber, func(_ string, m proto.Message) {
				payload, err := kd.Encode(m)
				if err != nil {
					return
				}
				decoded, _, ok := judge.Judge(o.Key, ident.Value{Type: kd.TypeURL, Bytes: payload})
				if !ok {
					return
				}
				w, changed, err := b.world.Apply(world.Change{Rows: []world.RowChange{{Row: o.Key.Row(), Key: o.Key, Object: &world.Object{Key: o.Key, Message: decoded}}}})
				if err != nil {
					t.Fatal(err)
				}
				made.left = 6
				next, inputs := pc.Next(w, append(last, changed...))
				pc, last = next, changed
				for _, c := range catalog.Update(pc, inputs) {
					for _, name := range c.Names {
						made.add(t, c.Type, c.Set.Find(name))
					}
				}
			})
		}
	}
	t.Logf("%d clusters, %d listeners, %d RouteConfigurations", len(made.Clusters), len(made.Listeners), len(made.Routes))
	if len(made.Clusters) < 100 || len(made.Listeners) < 5 || len(made.Routes) < 100 {
		t.Error("these are too few to prove anything")
	}
	envoytest.Validate(t, made.Config)
}

func isNumber(fd protoreflect.FieldDescriptor) bool {
	switch fd.Kind() {
	case protoreflect.StringKind, protoreflect.BytesKind, protoreflect.BoolKind, protoreflect.EnumKind:
		return false
	}
	return fd.Message() == nil || fd.Message().FullName() == "google.protobuf.Duration"
}

// collected are distinct pieces of resources, under names of their own.
type collected struct {
	envoytest.Config
	seen map[[32]byte]bool
	left int // how many more one mutant adds: a setting of the mesh changes everything alike
}

func (c *collected) add(t *testing.T, ty ident.ResourceType, r *xds.Resource) {
	if r == nil {
		return
	}
	if ty == ident.LDS {
		m := new(listenerv3.Listener)
		if c.read(t, r.Value(), m) && len(m.GetFilterChains()) > 0 {
			m.Name, m.Address = fmt.Sprint("listener ", len(c.Listeners)), envoytest.Loopback(uint32(2000+len(c.Listeners))) // no two may have one address
			c.Listeners = append(c.Listeners, m)
		}
		return
	}
	for p := range r.Pieces.All() {
		switch m := new(routev3.RouteConfiguration); {
		case ty == ident.CDS:
			cl := new(clusterv3.Cluster)
			if err := proto.Unmarshal(p.Value, cl); err != nil {
				t.Fatal(err)
			}
			cl.Name, cl.Metadata = "", nil
			if cl.TransportSocket != nil { // this machine has no certificates
				cl.TransportSocket = &corev3.TransportSocket{
					Name:       "envoy.transport_sockets.tls",
					ConfigType: &corev3.TransportSocket_TypedConfig{TypedConfig: piece.Any(&tlsv3.UpstreamTlsContext{CommonTlsContext: &tlsv3.CommonTlsContext{}})},
				}
			}
			if cl.LoadAssignment != nil {
				cl.LoadAssignment.ClusterName = "trial"
			}
			value, err := proto.MarshalOptions{Deterministic: true}.Marshal(cl)
			if err != nil {
				t.Fatal(err)
			}
			if c.read(t, value, cl) {
				cl.Name = fmt.Sprint("cluster ", len(c.Clusters))
				c.Clusters = append(c.Clusters, cl)
			}
		case c.read(t, p.Value, m) && len(m.GetVirtualHosts()) > 0:
			m.Name = fmt.Sprint("routes ", len(c.Routes))
			m.ValidateClusters, m.MaxDirectResponseBodySizeBytes = wrapperspb.Bool(false), wrapperspb.UInt32(1<<20) // as the head of each does (VS-10)
			c.Routes = append(c.Routes, m)
		}
	}
}

// read reads bytes into m and reports whether they are new.
func (c *collected) read(t *testing.T, value []byte, m proto.Message) bool {
	sum := sha256.Sum256(value)
	if c.left == 0 || c.seen[sum] {
		return false
	}
	c.seen[sum] = true
	c.left--
	if err := proto.Unmarshal(value, m); err != nil {
		t.Fatal(err)
	}
	return true
}
