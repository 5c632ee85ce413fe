package inspect

import (
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	adminv3 "github.com/envoyproxy/go-control-plane/envoy/admin/v3"
	clusterv3 "github.com/envoyproxy/go-control-plane/envoy/config/cluster/v3"
	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	endpointv3 "github.com/envoyproxy/go-control-plane/envoy/config/endpoint/v3"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoregistry"
	"google.golang.org/protobuf/types/known/anypb"

	"meshlog.dev/proto/ident"
	"meshlog.dev/services/mesh/anytype"
	"meshlog.dev/services/operate/command"
	"meshlog.dev/services/operate/past"
)

// ConfigDump is what an Envoy says that it has: the resources that came by xDS.
type ConfigDump struct {
	has   [ident.ResourceTypes]map[string]proto.Message
	known [ident.ResourceTypes]bool // it says something about the type
	// Rejected are updates that Envoy has not taken, with its reason.
	Rejected []string
}

// ErrNoEnvoy says that an answer is not of an Envoy's admin interface.
var ErrNoEnvoy = errors.New("what answers is no admin interface of an Envoy")

// ReadNode returns the node id in the answer of Envoy's /server_info. Bootstraps lack it if it is
// given on the command line.
func ReadNode(answer []byte) (string, error) {
	var info struct {
		Version string `json:"version"`
		Node    struct {
			ID string `json:"id"`
		} `json:"node"`
	}
	if err := json.Unmarshal(answer, &info); err != nil || info.Version == "" {
		return "", ErrNoEnvoy
	}
	return info.Node.ID, nil
}

// ReadConfigDump reads the answer of Envoy's /config_dump?include_eds. Its errors have nothing
// of the answer in them.
func ReadConfigDump(answer []byte) (*ConfigDump, error) {
	var sections struct {
		Configs []json.RawMessage `json:"configs"`
	}
	if err := json.Unmarshal(answer, &sections); err != nil || len(sections.Configs) == 0 {
		return nil, ErrNoEnvoy
	}
	d := &ConfigDump{}
	for _, s := range sections.Configs {
		var of struct {
			Type string `json:"@type"`
		}
		a := new(anypb.Any)
		if err := json.Unmarshal(s, &of); err != nil {
			return nil, ErrNoEnvoy
		}
		if !strings.HasPrefix(of.Type, "type.googleapis.com/envoy.admin.v3.") {
			continue
		}
		if err := (protojson.UnmarshalOptions{DiscardUnknown: true, Resolver: anytype.Types}).Unmarshal(s, a); err != nil {
			return nil, fmt.Errorf("%w that this build can read", ErrNoEnvoy)
		}
		m, err := a.UnmarshalNew()
		if err != nil {
			return nil, ErrNoEnvoy
		}
		if err := d.section(m); err != nil {
			return nil, err
		}
	}
	return d, nil
}

func (d *ConfigDump) section(m proto.Message) error {
	var err error
	add := func(t ident.ResourceType, a *anypb.Any, name func(proto.Message) string, failure *adminv3.UpdateFailureState) {
		d.known[t] = true
		if failure != nil {
			d.Rejected = append(d.Rejected, failure.GetDetails())
		}
		if a == nil || err != nil {
			return
		}
		of, e := a.UnmarshalNew()
		if e != nil {
			err = fmt.Errorf("%w that this build can read: a resource of type %s", ErrNoEnvoy, t)
			return
		}
		if d.has[t] == nil {
			d.has[t] = map[string]proto.Message{}
		}
		d.has[t][name(of)] = of
	}
	switch m := m.(type) {
	case *adminv3.ClustersConfigDump:
		d.known[ident.CDS] = true
		for _, c := range slices.Concat(m.GetDynamicActiveClusters(), m.GetDynamicWarmingClusters()) {
			add(ident.CDS, c.GetCluster(), nameOf, c.GetErrorState())
		}
	case *adminv3.ListenersConfigDump:
		d.known[ident.LDS] = true
		for _, l := range m.GetDynamicListeners() {
			s := l.GetActiveState()
			if s == nil {
				s = l.GetWarmingState()
			}
			add(ident.LDS, s.GetListener(), nameOf, l.GetErrorState())
		}
	case *adminv3.RoutesConfigDump:
		d.known[ident.RDS] = true
		for _, r := range m.GetDynamicRouteConfigs() {
			add(ident.RDS, r.GetRouteConfig(), nameOf, r.GetErrorState())
		}
	case *adminv3.EndpointsConfigDump:
		d.known[ident.EDS] = true
		for _, e := range m.GetDynamicEndpointConfigs() {
			add(ident.EDS, e.GetEndpointConfig(), nameOf, e.GetErrorState())
		}
	}
	return err
}

// nameOf returns the name of a resource.
func nameOf(m proto.Message) string {
	switch m := m.(type) {
	case *endpointv3.ClusterLoadAssignment:
		return m.GetClusterName()
	case interface{ GetName() string }:
		return m.GetName()
	}
	return ""
}

// The results of a comparison with Envoy.
const (
	DumpSame      = "same"
	DumpDiffers   = "differs"
	DumpOnlyHere  = "only here"
	DumpOnlyThere = "only in Envoy"
)

// DumpRow compares one resource.
type DumpRow struct {
	Type, Name, State string
	// Change is from what it should have to what Envoy has; nil: there is no difference.
	Change *past.ObjectChange
}

// Compare compares the resources that a proxy should have with those that its Envoy says it
// has, sorted by type and name. Of endpoints it compares address, locality, priority, weight and
// health: Envoy does not keep the rest.
func (d *ConfigDump) Compare(s command.Served) ([]DumpRow, error) {
	var rows []DumpRow
	for t := range ident.ResourceTypes {
		if !d.known[t] {
			continue
		}
		should := map[string]proto.Message{}
		for _, r := range s.Sets[t].Resources {
			m, err := decoded(t, r.Value())
			if err != nil {
				return nil, fmt.Errorf("%s %s: %w", t.Message(), r.Name, err)
			}
			should[r.Name] = m
		}
		names := slices.Sorted(maps.Keys(should))
		for _, n := range slices.Sorted(maps.Keys(d.has[t])) {
			if should[n] == nil && (t != ident.EDS || d.asks(n)) {
				names = append(names, n)
			}
		}
		slices.Sort(names)
		for _, n := range names {
			row, err := compareDumped(t, n, should[n], d.has[t][n])
			if err != nil {
				return nil, err
			}
			rows = append(rows, row)
		}
	}
	return rows, nil
}

// asks reports whether Envoy gets the endpoints of a cluster by EDS: it also lists those that
// clusters have in themselves.
func (d *ConfigDump) asks(cluster string) bool {
	c, ok := d.has[ident.CDS][cluster].(*clusterv3.Cluster)
	return !ok || c.GetType() == clusterv3.Cluster_EDS
}

func decoded(t ident.ResourceType, value []byte) (proto.Message, error) {
	of, err := protoregistry.GlobalTypes.FindMessageByURL(t.URL())
	if err != nil {
		return nil, err
	}
	m := of.New().Interface()
	return m, proto.Unmarshal(value, m)
}

func compareDumped(t ident.ResourceType, name string, here, there proto.Message) (DumpRow, error) {
	row := DumpRow{Type: t.String(), Name: name, State: DumpSame}
	switch {
	case there == nil:
		row.State = DumpOnlyHere
		return row, nil
	case here == nil:
		row.State = DumpOnlyThere
		return row, nil
	case t != ident.EDS && proto.Equal(here, there):
		return row, nil
	}
	var docs [2]json.RawMessage
	for i, m := range []proto.Message{here, there} {
		var err error
		if c, ok := m.(*endpointv3.ClusterLoadAssignment); ok {
			docs[i], err = json.Marshal(endpointsOf(c))
		} else {
			docs[i], err = protojson.MarshalOptions{UseProtoNames: true, Resolver: anytype.Types}.Marshal(m)
		}
		if err != nil {
			return row, fmt.Errorf("%s %s: %w", t.Message(), name, err)
		}
	}
	c := &past.ObjectChange{Object: t.Message() + " " + name}
	if c.Compare("", docs[0], docs[1], nil); len(c.Fields) > 0 {
		row.State, row.Change = DumpDiffers, c
	}
	return row, nil
}

// endpointsOf returns what both sides know of endpoints, by address.
func endpointsOf(c *endpointv3.ClusterLoadAssignment) map[string]string {
	all := map[string]string{}
	for _, l := range c.GetEndpoints() {
		at := l.GetLocality()
		for _, e := range l.GetLbEndpoints() {
			health := e.GetHealthStatus()
			if health == corev3.HealthStatus_UNKNOWN {
				health = corev3.HealthStatus_HEALTHY // Envoy uses it unless it finds out otherwise
			}
			all[address(e.GetEndpoint().GetAddress())] = fmt.Sprintf("locality %s/%s/%s, priority %d, weight %d, %s",
				at.GetRegion(), at.GetZone(), at.GetSubZone(), l.GetPriority(), max(1, e.GetLoadBalancingWeight().GetValue()), health)
		}
	}
	return all
}
