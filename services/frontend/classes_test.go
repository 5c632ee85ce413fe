package frontend_test

import (
	"fmt"
	"net"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"meshlog.dev/proto/ident"
	"meshlog.dev/services/frontend"
	. "meshlog.dev/services/mesh/meshtest"
	"meshlog.dev/services/mesh/proxy"
)

// A frontend keeps resources for a limited number of classes. Those without clients
// make room, and are dropped after a time (XDS-3).
func TestClassLimit(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		mesh := newMesh(t)
		changes := []Change{Put("all", Cluster("all", 1))}
		for i := range 20 {
			changes = append(changes, PutFor(fmt.Sprint("one", i), Group(fmt.Sprint("group", i)), Cluster(fmt.Sprint("one", i), 1)))
		}
		mesh.Publish(changes...)
		f := start(t, "f1", mesh, withLimits(func(l *frontend.Limits) { l.Classes = 9 }))
		join := func(i int) (*envoy, error) {
			e := f.connect(node(fmt.Sprint("web-", i), fmt.Sprint("group", i)))
			e.ask(ident.CDS)
			_, err := e.stream.Recv()
			return e, err
		}
		var open []*envoy
		for i := range 20 {
			e, err := join(i)
			if err == nil {
				open = append(open, e)
			} else if status.Code(err) != codes.Unavailable || !strings.Contains(err.Error(), "the 9 of --classes") {
				t.Errorf("got %v", err)
			}
		}
		if got := f.counted("meshlog_frontend_resident_classes"); len(open) != 3 || got > 16 {
			// Six classes are of all, and each proxy has one of its own. Those that
			// were made ahead are there, too.
			t.Errorf("%d proxies are served, %v classes kept, the limit is 9", len(open), got)
		}
		if got := f.server.PushStatus(0); got.MaxClasses != 9 || got.Classes < 9 {
			t.Errorf("push_status has %d of %d classes", got.Classes, got.MaxClasses)
		}
		if _, err := join(0); err != nil { // of a class that is kept
			t.Error(err)
		}
		for _, e := range open {
			e.cancel()
		}
		synctest.Wait()
		if _, err := join(19); err != nil {
			t.Errorf("after the other proxies have left: %v", err)
		}
	})
}

// A client that lists its extensions, and not the matcher of verified certificates, gets
// rules without it; one that lists it, or lists none, gets them with it (POL-4).
func TestExtensionsOfClients(t *testing.T) {
	mesh := newMesh(t)
	mesh.Publish(YAML(t, `
apiVersion: networking.istio.io/v1
kind: Gateway
metadata: {name: gw, namespace: istio-system}
spec: {servers: [{port: {number: 8080, name: http, protocol: HTTP}, hosts: ["*"]}]}
---
apiVersion: security.istio.io/v1
kind: AuthorizationPolicy
metadata: {name: clients, namespace: istio-system}
spec: {rules: [{from: [{source: {principals: [cluster.local/ns/shop/sa/client]}}]}]}
`)...)
	f := start(t, "f1", mesh)
	const slot = "meshlog.authz.allow"
	for i, c := range []struct {
		extensions []string
		with       bool
	}{
		{nil, true},
		{[]string{"envoy.filters.http.lua", "envoy.filters.http.rbac"}, false},
		{[]string{"envoy.filters.http.lua", proxy.MTLSAuthenticated, "envoy.filters.http.rbac"}, true},
	} {
		n := node(fmt.Sprint("edge-", i), "edge")
		for _, name := range c.extensions {
			n.Extensions = append(n.Extensions, &corev3.Extension{Name: name, Category: "x"})
		}
		e := f.connect(n)
		e.ask(ident.ECDS, slot)
		if text := e.receive().String(); strings.Contains(text, proxy.MTLSAuthenticated) != c.with || !strings.Contains(text, "spiffe://cluster.local/ns/shop/sa/client") {
			t.Errorf("a client with the extensions %q gets %s", c.extensions, text)
		}
	}
}

// The clients behind one address have a tenth of the classes at most, so that new
// classes of others are served. Classes that are kept are served to all (XDS-3).
func TestClassesOfOneAddress(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		mesh := newMesh(t)
		changes := []Change{Put("all", Cluster("all", 1))}
		for i := range 100 {
			changes = append(changes, PutFor(fmt.Sprint("one", i), Group(fmt.Sprint("group", i)), Cluster(fmt.Sprint("one", i), 1)))
		}
		mesh.Publish(changes...)
		f := start(t, "f1", mesh, withLimits(func(l *frontend.Limits) { l.Classes = 100 }))
		join := func(host byte, group int) (*envoy, error) {
			from := &net.TCPAddr{IP: net.IPv4(192, 0, 2, host), Port: 40000}
			e := connect(t, f.dialFrom(from, nil), node(fmt.Sprint("web-", group), fmt.Sprint("group", group)))
			e.ask(ident.CDS)
			_, err := e.stream.Recv()
			return e, err
		}
		var open []*envoy
		for i := range 90 {
			e, err := join(1, i)
			if err == nil {
				open = append(open, e)
			} else if status.Code(err) != codes.Unavailable || !strings.Contains(err.Error(), "address 192.0.2.1 have 10 already") {
				t.Errorf("got %v", err)
			}
		}
		if len(open) != 4 { // six classes are of all, and each proxy has one of its own
			t.Errorf("one address has %d proxies with classes of their own, want 4", len(open))
		}
		if got := f.counted("meshlog_frontend_streams_refused_total"); got != 86 {
			t.Errorf("%v refusals are counted, want 86", got)
		}
		if _, err := join(2, 99); err != nil {
			t.Errorf("a new class of another address: %v", err)
		}
		if _, err := join(1, 99); err != nil {
			t.Errorf("a class of another address: %v", err)
		}
		open[3].cancel()
		synctest.Wait()
		if _, err := join(1, 50); err != nil {
			t.Errorf("after a proxy of the address has left: %v", err)
		}
	})
}

// Classes without clients are dropped, though no version comes (XDS-3).
func TestIdleClasses(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		mesh := newMesh(t)
		mesh.Publish(Put("all", Cluster("all", 1)), PutFor("one", Group("group"), Cluster("one", 1)))
		f := start(t, "f1", mesh)
		before := f.counted("meshlog_frontend_resident_classes")
		e := f.connect(node("web-1", "group"))
		e.ask(ident.CDS)
		e.expect(ident.CDS, "all", "one")
		with := f.counted("meshlog_frontend_resident_classes")
		e.cancel()
		<-time.After(30 * time.Second)
		if got := f.counted("meshlog_frontend_resident_classes"); got != with {
			t.Errorf("%v classes are kept soon after the proxy has left, %v while it was there", got, with)
		}
		<-time.After(2 * time.Minute)
		if got := f.counted("meshlog_frontend_resident_classes"); got > before || with <= before {
			t.Errorf("%v classes are kept long after the proxy has left, %v with it, %v before", got, with, before)
		}
	})
}

// Proxies that wait in line together cannot make more classes than the limit, although
// there was room for each when it came (XDS-3).
func TestClassLimitOfLine(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		mesh := newMesh(t)
		changes := []Change{Put("all", Cluster("all", 1))}
		for i := range 20 {
			changes = append(changes, PutFor(fmt.Sprint("one", i), Group(fmt.Sprint("group", i)), Cluster(fmt.Sprint("one", i), 1)))
		}
		mesh.Publish(changes...)
		f := start(t, "f1", mesh, withLimits(func(l *frontend.Limits) { l.Classes, l.FirstAnswers = 9, 1 }))
		var all []*envoy
		for i := range 20 {
			e := f.connect(node(fmt.Sprint("web-", i), fmt.Sprint("group", i)))
			e.ask(ident.CDS)
			all = append(all, e)
		}
		served := 0
		for _, e := range all {
			_, err := e.stream.Recv()
			if err == nil {
				served++
			} else if status.Code(err) != codes.Unavailable || !strings.Contains(err.Error(), "the 9 of --classes") {
				t.Errorf("got %v", err)
			}
		}
		if served != 3 { // six classes are of all, and each proxy has one of its own
			t.Errorf("%d proxies are served, want 3", served)
		}
		if got := f.server.PushStatus(0); got.Waiting != 0 || got.FirstAnswers > 1 {
			t.Errorf("%d streams wait, %d are in their first answers", got.Waiting, got.FirstAnswers)
		}
	})
}
