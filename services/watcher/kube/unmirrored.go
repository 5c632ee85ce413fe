package kube

import (
	"context"
	"time"

	"meshlog.dev/services/mesh/kubeconv"
	"meshlog.dev/services/mesh/problem"
)

// This file finds Services whose endpoints are in an Endpoints object that no
// controller makes EndpointSlices of. Endpoints are not watched for that: they
// are many, change often, and repeat what slices say.

// maxAsked bounds how many Services are asked about at a time, and askTimeout
// how long.
const (
	maxAsked   = 50
	askTimeout = 30 * time.Second
)

// looked is what was found.
type looked struct {
	unmirrored []problem.Diagnostic
	at         time.Time
}

// lookUnmirrored asks for the Endpoints of Services without slices, if that is
// due.
func (r *run) lookUnmirrored(ctx context.Context, now time.Time) {
	if !r.covered[serviceKind] || !r.covered[sliceKind] || now.Before(r.lookAt) {
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
		var found looked
		for _, k := range services[:min(len(services), maxAsked)] {
			e, err := r.client.Endpoints(asking, k.Namespace, k.Name)
			if err != nil {
				continue // there are none, or they may not be read
			}
			if d := kubeconv.Unmirrored(e); d != nil {
				found.unmirrored = append(found.unmirrored, *d)
			}
		}
		found.at = time.Now()
		r.send(ctx, found)
	})
}
