package fleet

import (
	"slices"

	"meshlog.dev/deploy/e2e/rig"
)

// Type is one of the five types of xDS that all sidecars ask for, in the order in which a proxy asks
// for them.
type Type int

// The types.
const (
	CDS Type = iota
	EDS
	LDS
	ECDS
	RDS
	types = iota // number of types
)

// Types returns all types, in the order in which a proxy asks for them.
func Types() []Type { return []Type{CDS, EDS, LDS, ECDS, RDS} }

// String returns the short name of the type.
func (t Type) String() string { return [...]string{"CDS", "EDS", "LDS", "ECDS", "RDS"}[t] }

var urls = []string{rig.Cluster, rig.ClusterLoadAssignment, rig.Listener, rig.Filter, rig.RouteConfiguration}

// URL returns the name of the type on the wire.
func (t Type) URL() string { return urls[t] }

// typeOf returns -1 if a proxy does not ask for the type.
func typeOf(url string) Type { return Type(slices.Index(urls, url)) }
