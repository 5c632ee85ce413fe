package samebytes

import (
	"os"
	"testing"
	"time"

	"meshlog.dev/events"
	"meshlog.dev/proto/ident"
)

// The files of the world that the overlays cover.
const (
	overlaidServices = `
apiVersion: networking.istio.io/v1
kind: ServiceEntry
metadata: {name: web, namespace: shop}
spec:
  hosts: [web.example.com]
  addresses: [240.0.0.1]
  location: MESH_INTERNAL
  resolution: STATIC
  ports: [{number: 80, name: http, protocol: HTTP}, {number: 3306, name: tcp, protocol: TCP}]
  endpoints: [{address: 10.0.0.1, labels: {version: v1}}, {address: 10.0.0.2, labels: {version: v2}}]
`
	overlaidRoutes = `
apiVersion: networking.istio.io/v1
kind: VirtualService
metadata: {name: web, namespace: shop}
spec: {hosts: [web.example.com], http: [{timeout: 3s, route: [{destination: {host: web.example.com}}]}]}
`
	overlaidRoutesLater = `
apiVersion: networking.istio.io/v1
kind: VirtualService
metadata: {name: web, namespace: shop}
spec: {hosts: [web.example.com], http: [{timeout: 9s, route: [{destination: {host: web.example.com}}]}]}
`
)

// TestRecordOverlays writes an archive with an overlay of each kind, if there is
// none: a rollback, a held loss, and quarantines of a resource of each type, with
// and without a good resource to serve instead.
func TestRecordOverlays(t *testing.T) {
	w := sample{name: "overlays"}
	if _, err := os.Stat(w.file(".archive")); !*record || err == nil {
		return
	}
	r := newRecorder(t)
	r.save("000/file/default/services.yaml", overlaidServices)
	r.save("001/file/default/routes.yaml", overlaidRoutes)
	route := ident.Key{Source: "file", Instance: "default", Kind: "VirtualService", Namespace: "shop", Name: "web"}
	before := r.objects[route]
	r.save("002/file/default/routes.yaml", overlaidRoutesLater)
	r.overlay("rollback", ident.Rollback, ident.OverlayValue{Key: route, Base: hashOf(r.objects[route]), Value: &before.Value})
	r.save("003/file/default/routes.yaml", "")
	r.overlay("hold", ident.Hold, ident.OverlayValue{Key: route, Value: &before.Value})
	// If two quarantines name the same content, the one with the greater ID counts.
	for _, name := range []string{"1-none-", "2-good-"} {
		for _, typ := range []ident.ResourceType{ident.CDS, ident.EDS, ident.LDS, ident.RDS} {
			v := r.quarantine(typ)
			if name == "1-none-" {
				v.Value = nil
			}
			r.overlay(name+typ.String(), ident.Quarantine, v)
		}
	}
	for _, id := range []string{"2-good-CDS", "1-none-LDS"} {
		r.now = r.now.Add(time.Second)
		r.append(&events.Overlay{ID: id, Kind: ident.Quarantine, Remove: true})
	}
	r.save("004/file/default/routes.yaml", overlaidRoutes)
	r.write(w.file(".archive"))
}

func hashOf(o events.Object) ident.Hash { return events.ContentHash(o.Key, o.Value) }

func (r *recorder) overlay(id string, kind ident.OverlayKind, v ident.OverlayValue) {
	r.t.Helper()
	r.now = r.now.Add(time.Second)
	r.append(&events.Overlay{ID: id, Kind: kind, Reason: "recorded", Values: []ident.OverlayValue{v}})
}

// rejecting is the client for which resources are in quarantine.
const rejecting = "envoy 1.39.0"

// quarantine returns a quarantine of the last resource of a type that a sidecar is
// served. The first resource of the type is served instead.
func (r *recorder) quarantine(t ident.ResourceType) ident.OverlayValue {
	r.t.Helper()
	m := newMesh()
	if err := m.run(r.t.Context(), r.past(), func() error { return nil }); err != nil {
		r.t.Fatal(err)
	}
	n, err := parseNode(sidecarNode("sidecar", "10.99.0.1", "shop"))
	if err != nil {
		r.t.Fatal(err)
	}
	c, err := m.join(n)
	if err != nil {
		r.t.Fatal(err)
	}
	all := m.served(c)[t].resources
	if len(all) == 0 {
		r.t.Fatalf("the sidecar is served no %s", t)
	}
	last := all[len(all)-1]
	class := c.client.Class().Only(t)
	return ident.OverlayValue{
		Resource: &ident.Resource{Rejected: ident.Rejected{Type: t.URL(), Name: last.Name, Sum: last.Sum, Client: rejecting}, Class: class.Encode()},
		Value:    &ident.Value{Type: t.URL(), Bytes: all[0].Value()},
	}
}
