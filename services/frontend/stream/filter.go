package stream

import (
	"slices"
	"time"

	"meshlog.dev/proto/ident"
	"meshlog.dev/services/mesh/xds"
)

// filtersWait reports whether a filter names a cluster that the client may not have
// warmed: it would reject the filter. Filters that name none never wait, so that no other
// change delays a policy (POL-1).
func (s *Stream) filtersWait(now time.Time) bool {
	clusters := s.watches[ident.CDS]
	held, warming := clusters.waitsForKeys(), now.Before(s.warmUntil)
	if clusters == nil || !held && !warming {
		return false
	}
	return slices.ContainsFunc(s.view.Sets[ident.ECDS].Resources, func(filter *xds.Resource) bool {
		return filter.RefersToAny(func(cluster string) bool {
			e := clusters.state(cluster)
			return warming && e.sent != nil && e.acked == nil || held && e.sent == nil && s.Serves(ident.CDS, cluster)
		})
	})
}
