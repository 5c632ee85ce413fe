package kube

import (
	"context"
	"time"

	corev1 "k8s.io/api/core/v1"

	"meshlog.dev/services/internal/kubeconv"
)

// This file finds Services whose endpoints are in an Endpoints object that no
// controller makes EndpointSlices of. Endpoints are not watched for that: they
// are many, change often, and repeat what slices say.

// ownEndpoints is the body of a Service whose endpoints are somebody else's
// business than the cluster's.
type ownEndpoints struct{}

// sliceless are the Services with ownEndpoints of which there is no slice.
func (x *index) sliceless() []key {
	var found []key
	with := map[key]bool{}
	for k, e := range x.entries {
		if e.object == nil || !x.visible(k) {
			continue
		}
		switch body := e.object.body.(type) {
		case ownEndpoints:
			found = append(found, k)
		case *kubeconv.Slice:
			with[key{serviceKind, k.namespace, body.Service()}] = true
		}
	}
	var out []key
	for _, k := range found {
		if !with[k] {
			out = append(out, k)
		}
	}
	return out
}

// maxAsked bounds how many Services are asked about at a time.
const maxAsked = 50

// lookUnmirrored asks for the Endpoints of Services without slices, if that is
// due.
func (r *run) lookUnmirrored(ctx context.Context, now time.Time) {
	if r.covered == nil || !r.covered[serviceKind] || !r.covered[sliceKind] || now.Before(r.lookAt) {
		return
	}
	services := r.index.sliceless()
	if len(services) == 0 {
		r.unmirrored, r.lookAt = nil, now.Add(r.limits.unmirrored)
		return
	}
	r.lookAt = now.Add(time.Hour) // until the answer
	r.running.Go(func() {
		m := message{what: looked}
		for _, k := range services[:min(len(services), maxAsked)] {
			e, err := r.client.endpoints(ctx, k.namespace, k.name)
			if err != nil {
				continue // there are none, or they may not be read
			}
			if d := kubeconv.Unmirrored(e); d != nil {
				m.unmirrored = append(m.unmirrored, *d)
			}
		}
		m.at = time.Now()
		r.send(ctx, m)
	})
}

// endpointsTimeout is how long an Endpoints object is waited for.
const endpointsTimeout = 5 * time.Second

func (c *client) endpoints(ctx context.Context, namespace, name string) (*corev1.Endpoints, error) { //nolint:staticcheck // what is deprecated is what this looks for
	ctx, cancel := context.WithTimeout(ctx, endpointsTimeout)
	defer cancel()
	out := &corev1.Endpoints{} //nolint:staticcheck // see above
	err := c.typed[corev1.SchemeGroupVersion].Get().Namespace(namespace).Resource("endpoints").Name(name).Do(ctx).Into(out)
	return out, err
}

func (r *run) sawUnmirrored(m message) {
	r.unmirrored, r.lookAt = m.unmirrored, m.at.Add(r.limits.unmirrored)
}
