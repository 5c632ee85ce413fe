package stream_test

import (
	"bytes"
	"fmt"
	"testing"
	"time"

	"meshlog.dev/proto/ident"
	"meshlog.dev/services/frontend/content"
	"meshlog.dev/services/frontend/names"
	"meshlog.dev/services/frontend/stream"
	"meshlog.dev/services/mesh/xds"
)

// TestVersionsTellOfClusters checks that a frontend which has just started learns
// from the versions that a client names whether the client had CDS: then CDS is
// sent unasked (E9, E16), else never (PRO-1).
func TestVersionsTellOfClusters(t *testing.T) {
	for _, delta := range []bool{false, true} {
		for _, clusters := range []bool{false, true} {
			t.Run(fmt.Sprintf("delta=%v/clusters=%v", delta, clusters), func(t *testing.T) {
				v := encodedView()
				c := newClientOf(stream.Config{Linger: 30 * time.Second, Delta: delta}, v, []string{"a"})
				types := []ident.ResourceType{ident.EDS, ident.LDS, ident.RDS}
				if clusters {
					types = append([]ident.ResourceType{ident.CDS}, types...)
				}
				got := map[ident.ResourceType]stream.Response{}
				for _, typ := range types {
					c.send(stream.Request{TypeURL: typ.URL(), Names: c.names[typ]})
					r, ok := c.stream.Next(c.now)
					if !ok || r.Type != typ || len(r.Resources) != 1 {
						t.Fatalf("%s: got %+v", typ, r)
					}
					got[typ] = r
					c.answer(r)
				}
				again := newClientOf(stream.Config{Linger: 30 * time.Second, Delta: delta}, v, []string{"a"})
				for _, typ := range []ident.ResourceType{ident.EDS, ident.LDS, ident.RDS} {
					r := got[typ]
					req := stream.Request{TypeURL: typ.URL(), Names: again.names[typ], Version: r.Version}
					if delta {
						req.Version = ""
						head := r.Resources[0].DeltaHead
						if r.Marked {
							head = stream.MarkedHead(r.Resources[0])
						}
						req.Initial = req.Initial.With(r.Resources[0].Name, versionIn(t, head, r.Resources[0]))
					}
					again.send(req)
				}
				if again.stream.WantsHead() {
					t.Fatal("the client's versions are unknown")
				}
				again.acceptAll()
				again.now = again.now.Add(time.Minute)
				sent := false
				for {
					r, ok := again.stream.Next(again.now)
					if !ok {
						break
					}
					sent = sent || r.Type == ident.CDS
					again.answer(r)
				}
				if sent != clusters {
					t.Errorf("CDS sent unasked: %v, want %v", sent, clusters)
				}
				if _, all := again.stream.Applied(); !all {
					t.Error("the client is behind")
				}
			})
		}
	}
}

// encodedView is a view with one resource of each type, encoded as for a client.
func encodedView() content.View {
	v := content.View{Version: ident.Position{Epoch: 1, Seq: 1}}
	for t := range ident.ResourceTypes {
		name := "a"
		if t == ident.RDS {
			name = "80"
		}
		r := xds.Empty(ident.EDS, name) // any content does
		v.Sets[t] = &xds.Set{Resources: []*xds.Resource{r}, Sum: r.Sum}
	}
	return v
}

// versionIn returns the version of a resource in its head.
func versionIn(t *testing.T, head []byte, r *xds.Resource) string {
	t.Helper()
	i := bytes.Index(bytes.ToLower(head), []byte(r.Sum.String()))
	if i < 0 {
		t.Fatalf("no version in %q", head)
	}
	return string(head[i : i+2*len(r.Sum)])
}

// TestTooManyNames checks that a stream ends when it subscribes to more names of a
// type than one may have (XDS-1), and that it says so.
func TestTooManyNames(t *testing.T) {
	v, _ := bigMesh()
	part := func(n int) names.Wire {
		var list []string
		for i := range 100_000 {
			list = append(list, fmt.Sprint("part-", n, "-", i))
		}
		return names.Of(list...)
	}
	for name, cfg := range map[string]stream.Config{
		"known": {Delta: true}, "unresolved": {Delta: true},
	} {
		t.Run(name, func(t *testing.T) {
			c := newClientOf(cfg, v, nil)
			var first names.Versions
			if name == "unresolved" {
				first = first.With("x", xds.Absent("nobody").String())
			}
			c.send(stream.Request{TypeURL: ident.EDS.URL(), Names: part(0), Initial: first})
			c.send(stream.Request{TypeURL: ident.EDS.URL(), Names: part(1)})
			c.send(stream.Request{TypeURL: ident.EDS.URL(), Names: part(0)})
			err := c.stream.Request(c.now, stream.Request{TypeURL: ident.EDS.URL(), Names: part(2)})
			want := "the stream names more than 250000 resources of EDS: let the client import less, or split its configuration over several proxies"
			if err == nil || err.Error() != want {
				t.Errorf("got %v", err)
			}
		})
	}
	c := newClientOf(stream.Config{}, v, nil)
	if err := c.stream.Request(c.now, stream.Request{TypeURL: ident.EDS.URL(), Names: part(0).Join(part(1)).Join(part(2))}); err == nil {
		t.Error("a request with 300,000 names was accepted")
	}
}
