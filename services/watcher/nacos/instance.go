package nacos

import (
	"encoding/json"
	"fmt"
	"math"
	"net"
	"net/url"
	"slices"
	"strings"

	registryv1 "meshlog.dev/proto/meshlog/registry/v1"
	"meshlog.dev/services/mesh/problem"
	"meshlog.dev/services/watcher/registry"
)

// instances returns the instances of an answer, sorted by identity, and why others are
// left out.
func instances(hosts json.RawMessage) (all []registry.Instance, leftOut []string, err error) {
	if len(hosts) == 0 {
		return nil, nil, nil
	}
	var list []host
	if err := json.Unmarshal(hosts, &list); err != nil {
		return nil, nil, fmt.Errorf("its instances cannot be read: %w", err)
	}
	all = make([]registry.Instance, 0, len(list))
	for i := range list {
		h := &list[i]
		switch {
		case h.Enabled != nil && !*h.Enabled:
		case h.IP == "" || h.Port < 1 || h.Port > math.MaxUint16:
			leftOut = append(leftOut, fmt.Sprintf("%s:%d", h.IP, h.Port))
		default:
			all = append(all, h.instance())
		}
	}
	// The identity is ip#port (measured). Of two in different clusters a healthy one counts,
	// then the first cluster.
	slices.SortStableFunc(all, func(a, b registry.Instance) int {
		if c := strings.Compare(a.ID, b.ID); c != 0 {
			return c
		}
		if c := int(a.Health) - int(b.Health); c != 0 {
			return c // HEALTHY is the least
		}
		return strings.Compare(a.Metadata[clusterLabel], b.Metadata[clusterLabel])
	})
	return slices.CompactFunc(all, sameID), leftOut, nil
}

func sameID(a, b registry.Instance) bool { return a.ID == b.ID }

// clusterLabel has the name of an instance's Nacos cluster.
const clusterLabel = "cluster"

// grpcPort in the metadata is a second port of the instance.
const grpcPort = "gRPC_port"

// instance converts an instance (NAC-13).
func (h *host) instance() registry.Instance {
	in := registry.Instance{
		ID: fmt.Sprintf("%s#%d", h.IP, h.Port), Address: h.IP, Port: uint32(h.Port),
		Health: registryv1.Health_HEALTH_HEALTHY, Metadata: h.Metadata,
	}
	for k := range in.Metadata {
		if strings.HasPrefix(k, "preserved.") {
			delete(in.Metadata, k)
		}
	}
	if text, ok := in.Metadata[grpcPort]; ok {
		if n, err := net.LookupPort("tcp", text); err == nil && n > 0 && int64(n) != h.Port {
			in.Named = []registry.NamedPort{{Name: "grpc", Number: uint32(n), Protocol: "grpc"}}
		}
	}
	if region, zone, sub := in.Metadata["region"], in.Metadata["zone"], in.Metadata["subzone"]; region != "" {
		in.Locality = &registryv1.Locality{Region: region, Zone: zone, SubZone: sub}
	}
	if h.Cluster != "" {
		if in.Metadata == nil {
			in.Metadata = map[string]string{}
		}
		in.Metadata[clusterLabel] = h.Cluster
	}
	weight := 1.0
	if h.Weight != nil {
		weight = *h.Weight
	}
	in.Weight = uint32(max(1, math.Round(min(weight, maxWeight)*100)))
	switch {
	case h.Healthy != nil && !*h.Healthy:
		in.Health = registryv1.Health_HEALTH_UNHEALTHY
	case weight <= 0:
		in.Health = registryv1.Health_HEALTH_DRAINING
	}
	return in
}

// maxWeight is the greatest weight that Nacos allows.
const maxWeight = 10000

// serviceID names a service.
type serviceID struct{ group, name string }

// object returns the name of the service's objects. No two services have one: Nacos
// refuses names with "@@".
func (id serviceID) object() string {
	if id.group == DefaultGroup {
		return id.name
	}
	return id.group + "@@" + id.name
}

// convert returns a service for registry.Settings.Convert.
func (c *resolved) convert(id serviceID, all []registry.Instance) *registry.Service {
	q := url.Values{"name": {id.name}, "groupName": {id.group}, "namespaceId": {c.Namespace}}
	return &registry.Service{
		Namespace: c.ObjectNamespace, Name: id.object(), Host: id.name + "." + id.group + "." + c.Namespace + "." + c.Suffix,
		Instances: all, Origin: c.servers[0].base + "/nacos/#/serviceDetail?" + q.Encode(),
	}
}

func warning(v *registry.Service, field, reason, advice string) problem.Diagnostic {
	return problem.Diagnostic{Severity: problem.Warning, Code: "registry", Origin: v.Origin, Field: field, Reason: reason, Advice: advice}
}

// warnings returns the problems of a service that its conversion does not have.
func warnings(v *registry.Service, protected bool, leftOut []string, held int) []problem.Diagnostic {
	var ds []problem.Diagnostic
	if protected {
		ds = append(ds, warning(v, "protectThreshold", "health unknown: too few instances are healthy, so Nacos sends all of them as healthy", "find out why the instances fail, or lower the service's protect threshold"))
	}
	if len(leftOut) > 0 {
		ds = append(ds, warning(v, "hosts", fmt.Sprintf("%d instances without an address or a valid port are left out: %s", len(leftOut), strings.Join(leftOut[:min(len(leftOut), 3)], ", ")), "register them with an address and a port"))
	}
	if held > 0 {
		ds = append(ds, warning(v, "hosts", fmt.Sprintf("%d instances are missing in Nacos, and stay in service until the loss is certain", held), "nothing is to be done if it takes no longer than 2 minutes"))
	}
	return ds
}
