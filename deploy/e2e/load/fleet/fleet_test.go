package fleet_test

import (
	"context"
	"net"
	"net/http"
	"net/url"
	"strings"
	"testing"
	"time"

	"google.golang.org/protobuf/encoding/protowire"

	"meshlog.dev/deploy/e2e/floor"
	"meshlog.dev/deploy/e2e/load/fleet"
	"meshlog.dev/deploy/e2e/rig"
)

// field encodes a bytes field.
func field(n protowire.Number, parts ...string) []byte {
	return protowire.AppendString(protowire.AppendTag(nil, n, protowire.BytesType), strings.Join(parts, ""))
}

// text returns an encoded field as a part of another field.
func text(n protowire.Number, parts ...string) string { return string(field(n, parts...)) }

const (
	manager   = "type.googleapis.com/envoy.extensions.filters.network.http_connection_manager.v3.HttpConnectionManager"
	isEDS     = "\x10\x03" // type: EDS
	oldRoutes = "weights 90 and 10"
	newRoutes = "weights 80 and 20"
)

// script returns responses with one cluster "a" of EDS, and one listener with the
// routes "80" and the filter "slot" of ECDS beside one of its own.
func script() floor.Script {
	requests := text(3, text(2, "80")) + text(5, text(1, "slot"), text(5)) + text(5, text(1, "own"))
	return floor.Script{
		First: map[string][]byte{
			rig.Cluster:               field(2, text(2, text(1, "a"), isEDS)),
			rig.ClusterLoadAssignment: field(2, "endpoints"),
			rig.Listener:              field(2, text(2, text(3, text(3, text(4, text(1, manager), text(2, requests)))))),
			rig.Filter:                field(2, "filter"),
			rig.RouteConfiguration:    field(2, oldRoutes),
		},
		Change: map[string][]byte{rig.RouteConfiguration: field(2, newRoutes)},
	}
}

// serve runs a floor until the test ends.
func serve(t *testing.T) (target string, change func(typeURL string)) {
	t.Helper()
	var listeners [2]net.Listener
	for i := range listeners {
		var err error
		if listeners[i], err = net.Listen("tcp", "127.0.0.1:0"); err != nil {
			t.Fatal(err)
		}
	}
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- floor.Serve(ctx, listeners[0], listeners[1], script()) }()
	t.Cleanup(func() {
		cancel()
		if err := <-ended; err != nil {
			t.Errorf("the floor ended: %v", err)
		}
	})
	return listeners[0].Addr().String(), func(typeURL string) {
		t.Helper()
		at := "http://" + listeners[1].Addr().String() + "/change?type=" + url.QueryEscape(typeURL)
		req, err := http.NewRequestWithContext(t.Context(), http.MethodPut, at, nil)
		if err != nil {
			t.Fatal(err)
		}
		res, err := http.DefaultClient.Do(req)
		if err != nil {
			t.Fatal(err)
		}
		defer res.Body.Close()
		if res.StatusCode != http.StatusOK {
			t.Fatalf("change: %s", res.Status)
		}
	}
}

func nodes(t *testing.T, n int) [][]byte {
	t.Helper()
	var out [][]byte
	for i := range n {
		node, err := fleet.Sidecar(i, "ns-0")
		if err != nil {
			t.Fatal(err)
		}
		out = append(out, node)
	}
	return out
}

func TestFleet(t *testing.T) {
	target, change := serve(t)
	const proxies = 7
	all := nodes(t, proxies)
	lesson, err := fleet.Learn(t.Context(), target, fleet.SotW, all[0])
	if err != nil {
		t.Fatal(err)
	}
	if n := lesson.Names; len(n.Endpoints) != 1 || n.Endpoints[0] != "a" || len(n.Routes) != 1 || n.Routes[0] != "80" || len(n.Filters) != 1 || n.Filters[0] != "slot" {
		t.Errorf("names %q", n)
	}

	start := time.Now()
	f, wave := fleet.Connect(t.Context(), fleet.Config{Target: target, Nodes: all, Names: lesson.Names})
	t.Cleanup(f.Close)
	if err := wave.Wait(t.Context()); err != nil {
		t.Fatal(err)
	}
	if got, least := f.Bytes(), int64(proxies*lesson.Size()); got < least {
		t.Errorf("sent %d bytes, want %d or more", got, least)
	}
	for i, took := range wave.Took(start) {
		if took <= 0 {
			t.Errorf("proxy %d took %s", i, took)
		}
	}
	for range 3 {
		wave = f.Expect(fleet.RDS)
		change(rig.RouteConfiguration)
		if err := wave.Wait(t.Context()); err != nil {
			t.Fatal(err)
		}
		if got, err := wave.Resources([]byte(newRoutes)); err != nil || string(got) != string(field(2, newRoutes)) {
			t.Errorf("sent %q, %v", got, err)
		}
	}
	if _, err := wave.Resources([]byte(oldRoutes)); err == nil {
		t.Error("a token that was not sent is found")
	}
	if n := f.Unexpected(); n != 0 {
		t.Errorf("%d responses are unexpected", n)
	}
}

// A proxy that cannot connect ends the wait, and the error names it.
func TestFleetRefused(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	target := l.Addr().String()
	l.Close() // no server listens
	f, wave := fleet.Connect(t.Context(), fleet.Config{Target: target, Nodes: nodes(t, 2)})
	t.Cleanup(f.Close)
	if err := wave.Wait(t.Context()); err == nil || !strings.Contains(err.Error(), " of 2: ") {
		t.Errorf("the wait ended with %v", err)
	}
}
