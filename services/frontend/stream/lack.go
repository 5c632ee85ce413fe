package stream

import (
	"regexp"

	"meshlog.dev/proto/ident"
	"meshlog.dev/services/mesh/xds"
)

// lacking is a resource that the client rejected because it lacks a cluster, and
// what the client has of that cluster.
type lacking struct {
	w       *watch
	name    string
	cluster string
	has     *xds.Resource
}

// lacking returns what is held back until a cluster comes.
func (s *Stream) lacking() []lacking {
	var all []lacking
	for _, w := range s.watches {
		if w == nil {
			continue
		}
		for name, h := range w.heldBack {
			if h.lacks != "" {
				all = append(all, lacking{w, name, h.lacks, s.watches[ident.CDS].state(h.lacks).acked})
			}
		}
	}
	return all
}

// tryAgain sends those again whose cluster the client has applied meanwhile: once
// for each content of the cluster. Only the order was to blame for the rejection.
func (s *Stream) tryAgain(all []lacking) {
	for _, l := range all {
		has := s.watches[ident.CDS].state(l.cluster).acked
		if has == nil || has.Same(l.has) {
			continue
		}
		delete(l.w.heldBack, l.name)
		if l.w.covers(l.name) {
			l.w.except(l.name).owe()
		}
		l.w.touch()
	}
}

var unknownCluster = regexp.MustCompile(`(?i)unknown (?:weighted |shadow )?cluster '([^']+)'`)

// lackedCluster returns the cluster that an Envoy message says is unknown: of routes
// with validate_clusters, which is the default where they stand in a listener.
func lackedCluster(message string) string {
	if m := unknownCluster.FindStringSubmatch(message); m != nil {
		return m[1]
	}
	return ""
}
