package samebytes

import (
	"fmt"

	clusterv3 "github.com/envoyproxy/go-control-plane/envoy/config/cluster/v3"
	listenerv3 "github.com/envoyproxy/go-control-plane/envoy/config/listener/v3"
	routev3 "github.com/envoyproxy/go-control-plane/envoy/config/route/v3"
	hcmv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/network/http_connection_manager/v3"
	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"
	"sigs.k8s.io/yaml"

	"meshlog.dev/services/mesh/anytype"
)

// references returns the names of resources of type to that a gRPC client finds in
// a resource of type from.
func references(from, to string, value []byte) []string {
	decode := func(m proto.Message) {
		if err := proto.Unmarshal(value, m); err != nil {
			panic(fmt.Sprintf("a resource of %s: %v", from, err))
		}
	}
	switch from + " " + to {
	case "LDS RDS", "LDS CDS":
		l, hcm := new(listenerv3.Listener), new(hcmv3.HttpConnectionManager)
		decode(l)
		if err := l.GetApiListener().GetApiListener().UnmarshalTo(hcm); err != nil {
			return nil // not made for gRPC
		}
		if name := hcm.GetRds().GetRouteConfigName(); to == "RDS" && name != "" {
			return []string{name}
		}
		if to == "CDS" {
			return clustersOf(hcm.GetRouteConfig())
		}
	case "RDS CDS":
		rc := new(routev3.RouteConfiguration)
		decode(rc)
		return clustersOf(rc)
	case "CDS EDS":
		c := new(clusterv3.Cluster)
		decode(c)
		if c.GetType() != clusterv3.Cluster_EDS {
			return nil
		}
		if name := c.GetEdsClusterConfig().GetServiceName(); name != "" {
			return []string{name}
		}
		return []string{c.GetName()}
	}
	return nil
}

func clustersOf(rc *routev3.RouteConfiguration) (names []string) {
	for _, h := range rc.GetVirtualHosts() {
		for _, r := range h.GetRoutes() {
			if c := r.GetRoute().GetCluster(); c != "" {
				names = append(names, c)
			}
			for _, w := range r.GetRoute().GetWeightedClusters().GetClusters() {
				names = append(names, w.GetName())
			}
		}
	}
	return names
}

// yamlOf returns the resource in a DiscoveryResponse as YAML.
func yamlOf(response []byte) string {
	r := new(discoveryv3.DiscoveryResponse)
	err := proto.Unmarshal(response, r)
	if err != nil {
		return fmt.Sprintf("# %v\n%x\n", err, response)
	}
	var text []byte
	j, err := protojson.MarshalOptions{Resolver: anytype.Types}.Marshal(r.GetResources()[0])
	if err == nil {
		text, err = yaml.JSONToYAML(j)
	}
	if err != nil {
		return fmt.Sprintf("# %v\n%x\n", err, response)
	}
	return string(text)
}
