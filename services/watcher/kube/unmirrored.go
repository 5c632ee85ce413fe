package kube

import (
	"context"
	"time"

	"meshlog.dev/services/mesh/kubeconv"
	"meshlog.dev/services/mesh/problem"
	"meshlog.dev/services/watcher/kube/index"
)

// This file finds Services with unmirrored endpoints: an Endpoints object for
// which no controller creates EndpointSlices. It does not watch Endpoints, which
// are many, change often and duplicate the slices.

// maxAsked limits the Services in a search, and askTimeout its duration.
const (
	maxAsked   = 50
	askTimeout = 30 * time.Second
)

// lookUnmirrored starts a search through the Endpoints of Services without slices
// if one is due.
func (r *run) lookUnmirrored(ctx context.Context, now time.Time) {
	if !r.covered[index.ServiceKind] || !r.covered[index.SliceKind] || now.Before(r.lookAt) {
		return
	}
	services := r.index.Sliceless()
	if len(services) == 0 {
		r.unmirrored, r.lookAt = nil, now.Add(r.limits.unmirrored)
		return
	}
	r.lookAt = now.Add(time.Hour) // until the answer
	r.running.Go(func() {
		asking, cancel := context.WithTimeout(ctx, askTimeout)
		defer cancel()
		var found []problem.Diagnostic
		for _, k := range services[:min(len(services), maxAsked)] {
			e, err := r.client.Endpoints(asking, k.Namespace, k.Name)
			if err != nil {
				continue // not found or forbidden
			}
			if d := kubeconv.Unmirrored(e); d != nil {
				found = append(found, *d)
			}
		}
		r.send(ctx, func() { r.unmirrored, r.lookAt = found, time.Now().Add(r.limits.unmirrored) })
	})
}
