package fleet

import (
	"errors"
	"fmt"
	"slices"

	"google.golang.org/protobuf/encoding/protowire"
)

// Names are the names that a proxy asks for, because its clusters and listeners
// refer to them.
type Names struct {
	Endpoints []string // of EDS
	Routes    []string // of RDS
	Filters   []string // of ECDS
}

func (n Names) byType() [types][]string {
	return [types][]string{EDS: n.Endpoints, ECDS: n.Filters, RDS: n.Routes}
}

// path leads to a field of a message, through nested messages. This package reads
// protobuf messages without their Go types, so that it shares no code with
// meshlog.
type path []protowire.Number

// Where names are in the messages.
var (
	clusterName     = path{1}
	clusterType     = path{2}
	edsServiceName  = path{3, 2} // eds_cluster_config.service_name
	anyType         = path{1}    // of google.protobuf.Any
	anyValue        = path{2}
	deltaValue      = path{2, 2}     // of Resource: resource.value
	filterConfigs   = path{3, 3, 4}  // filter_chains.filters.typed_config
	defaultConfigs  = path{25, 3, 4} // the same field in default_filter_chain
	managerRoutes   = path{3, 2}     // rds.route_config_name of an HttpConnectionManager
	managerFilters  = path{5}        // http_filters
	filterName      = path{1}
	filterSource    = path{5} // config_discovery of an HttpFilter
	resourceMessage = map[Mode]path{SotW: anyValue, Delta: deltaValue}
)

const (
	typeEDS     = 3 // Cluster.DiscoveryType
	httpManager = "type.googleapis.com/envoy.extensions.filters.network.http_connection_manager.v3.HttpConnectionManager"
)

// endpointNames returns the EDS names that clusters refer to.
func endpointNames(m Mode, resources []byte) ([]string, error) {
	var names []string
	err := each(resources, func(r []byte) error {
		for _, cluster := range find(r, resourceMessage[m]) {
			if number(cluster, clusterType) != typeEDS {
				continue
			}
			found := find(cluster, edsServiceName)
			if len(found) == 0 {
				found = find(cluster, clusterName)
			}
			if len(found) == 0 {
				return errors.New("a cluster has no name")
			}
			names = append(names, string(found[0]))
		}
		return nil
	})
	slices.Sort(names)
	return slices.Compact(names), err
}

// routeNames returns the RDS names that listeners refer to.
func routeNames(m Mode, resources []byte) ([]string, error) {
	return managerNames(m, resources, func(manager []byte) [][]byte { return find(manager, managerRoutes) })
}

// filterNames returns the ECDS names that listeners refer to.
func filterNames(m Mode, resources []byte) ([]string, error) {
	return managerNames(m, resources, func(manager []byte) (names [][]byte) {
		for _, filter := range find(manager, managerFilters) {
			if len(find(filter, filterSource)) > 0 {
				names = append(names, find(filter, filterName)...)
			}
		}
		return names
	})
}

// managerNames returns the names that of finds in the managers of listeners.
func managerNames(m Mode, resources []byte, of func(manager []byte) [][]byte) ([]string, error) {
	var names []string
	err := each(resources, func(r []byte) error {
		for _, listener := range find(r, resourceMessage[m]) {
			for _, filter := range slices.Concat(find(listener, filterConfigs), find(listener, defaultConfigs)) {
				if t := find(filter, anyType); len(t) != 1 || string(t[0]) != httpManager {
					continue
				}
				for _, manager := range find(filter, anyValue) {
					for _, name := range of(manager) {
						names = append(names, string(name))
					}
				}
			}
		}
		return nil
	})
	slices.Sort(names)
	return slices.Compact(names), err
}

// each calls do with every resource of a response.
func each(resources []byte, do func([]byte) error) error {
	for len(resources) > 0 {
		_, _, n := protowire.ConsumeTag(resources)
		if n < 0 {
			return fmt.Errorf("resources: %w", protowire.ParseError(n))
		}
		r, m := protowire.ConsumeBytes(resources[n:])
		if m < 0 {
			return fmt.Errorf("resources: %w", protowire.ParseError(m))
		}
		if err := do(r); err != nil {
			return err
		}
		resources = resources[n+m:]
	}
	return nil
}

// find returns every bytes value at a path. Bytes that are not a message have
// none.
func find(b []byte, p path) [][]byte {
	var out [][]byte
	walk(b, p, func(wire protowire.Type, v []byte) {
		if wire != protowire.BytesType {
			return
		}
		if v, n := protowire.ConsumeBytes(v); n >= 0 {
			out = append(out, v)
		}
	})
	return out
}

// number returns the last number at a path, 0 if there is none.
func number(b []byte, p path) (out uint64) {
	walk(b, p, func(wire protowire.Type, v []byte) {
		if wire == protowire.VarintType {
			out, _ = protowire.ConsumeVarint(v)
		}
	})
	return out
}

// walk calls do with every encoded value at a path.
func walk(b []byte, p path, do func(wire protowire.Type, value []byte)) {
	for len(b) > 0 {
		field, wire, n := protowire.ConsumeTag(b)
		if n < 0 {
			return
		}
		m := protowire.ConsumeFieldValue(field, wire, b[n:])
		if m < 0 {
			return
		}
		value := b[n : n+m]
		b = b[n+m:]
		switch {
		case field != p[0]:
		case len(p) == 1:
			do(wire, value)
		case wire == protowire.BytesType:
			inner, _ := protowire.ConsumeBytes(value)
			walk(inner, p[1:], do)
		}
	}
}
