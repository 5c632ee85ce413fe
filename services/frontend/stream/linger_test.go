package stream_test

import (
	"slices"
	"testing"
	"time"

	"meshlog.dev/proto/ident"
	"meshlog.dev/services/frontend/content"
	"meshlog.dev/services/frontend/stream"
	"meshlog.dev/services/mesh/xds"
)

// TestLingerPastLooksOnce checks the cost of a client with an unknown version, which
// keeps the clusters of all earlier views. The stream reads the views once to find
// the version, and once for the clusters and their endpoints.
func TestLingerPastLooksOnce(t *testing.T) {
	big, all := bigMesh()
	view := content.View{Version: ident.Position{Epoch: 1, Seq: 9}}
	for t := range ident.ResourceTypes {
		view.Sets[t] = &xds.Set{}
	}
	past := []content.View{view, view, big, big} // the newest views have none of the endpoints
	passes := 0
	c := newClientOf(stream.Config{Linger: 30 * time.Second, Past: func(yield func(content.View) bool) {
		passes++
		for _, v := range past {
			if !yield(v) {
				return
			}
		}
	}}, view, all)
	c.send(stream.Request{TypeURL: ident.CDS.URL(), Version: "00000000000000000000000000000abc"})
	passes = 0
	c.stream.HeadIs(view.Version)
	c.stream.Next(c.now)
	if got := c.stream.Status().Lingering; got != len(all) {
		t.Errorf("%d clusters linger, want %d", got, len(all))
	}
	if passes != 2 {
		t.Errorf("looked at the earlier views %d times, want 2", passes)
	}
	c.acceptAll()
	c.send(stream.Request{TypeURL: ident.EDS.URL(), Names: c.names[ident.EDS]})
	r, ok := c.stream.Next(c.now)
	if !ok || r.Type != ident.EDS || !slices.Equal(r.Resources, big.Sets[ident.EDS].Resources) {
		t.Errorf("sent %s with %d resources, want the endpoints of all lingering clusters", r.Type, len(r.Resources))
	}
}
