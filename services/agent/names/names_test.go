package names_test

import (
	"context"
	"fmt"
	"log/slog"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"testing"

	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"github.com/google/go-cmp/cmp"
	"google.golang.org/protobuf/types/known/anypb"

	ndsv1 "meshlog.dev/proto/istio/networking/nds/v1"
	"meshlog.dev/services/agent/dns"
	"meshlog.dev/services/agent/names"
)

// agent has the names, and the table that DNS answers from.
type agent struct {
	*names.Names
	table dns.Table
}

func start(file string) *agent {
	a := new(agent)
	a.Names = names.New(names.Config{
		Namespace: "shop", File: file, Log: slog.New(slog.DiscardHandler), Apply: func(t dns.Table) { a.table = t },
	})
	return a
}

func resource(t *testing.T, name, version string, hosts map[string]*ndsv1.NameTable_NameInfo) *discoveryv3.Resource {
	t.Helper()
	m, err := anypb.New(&ndsv1.NameTable{Table: hosts})
	if err != nil {
		t.Fatal(err)
	}
	return &discoveryv3.Resource{Name: name, Version: version, Resource: m}
}

func service(t *testing.T, namespace, name, version string, ips ...string) *discoveryv3.Resource {
	host := name + "." + namespace + ".svc.cluster.local"
	return resource(t, host, version, map[string]*ndsv1.NameTable_NameInfo{host: {Ips: ips, Registry: "Kubernetes", Namespace: namespace, Shortname: name}})
}

func (a *agent) take(t *testing.T, removed []string, resources ...*discoveryv3.Resource) {
	t.Helper()
	if err := a.Take(&discoveryv3.DeltaDiscoveryResponse{Resources: resources, RemovedResources: removed}); err != nil {
		t.Fatal(err)
	}
}

func (a *agent) is(t *testing.T, want ...string) {
	t.Helper()
	var got []string
	for _, name := range slices.Sorted(maps.Keys(a.table)) {
		got = append(got, fmt.Sprint(name, " ", a.table[name]))
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("the table (-want +got):\n%s", diff)
	}
}

// AGT-6, NDS-1: hosts of Kubernetes Services have short forms, without a namespace in that
// of the workload; a full name wins over a short one. What frontends remove is gone, and a
// response that cannot be read changes nothing.
func TestTake(t *testing.T) {
	a := start("")
	if a.table != nil {
		t.Error("there is a table before the first response")
	}
	a.take(t, nil, service(t, "shop", "cart", "1", "10.0.0.1"), service(t, "bank", "vault", "1", "10.0.0.2"),
		resource(t, "*.Example.org", "1", map[string]*ndsv1.NameTable_NameInfo{"*.Example.org": {Ips: []string{"192.0.2.1"}, Registry: "External"}}),
		resource(t, "vault.bank", "1", map[string]*ndsv1.NameTable_NameInfo{"vault.bank": {Ips: []string{"192.0.2.2"}, Registry: "External"}}))
	a.is(t,
		"*.example.org. [192.0.2.1]", "cart. [10.0.0.1]", "cart.shop. [10.0.0.1]", "cart.shop.svc. [10.0.0.1]", "cart.shop.svc.cluster.local. [10.0.0.1]",
		"vault.bank. [192.0.2.2]", "vault.bank.svc. [10.0.0.2]", "vault.bank.svc.cluster.local. [10.0.0.2]")
	a.take(t, []string{"*.Example.org", "vault.bank"}, service(t, "shop", "cart", "2", "10.0.0.9"))
	want := []string{
		"cart. [10.0.0.9]", "cart.shop. [10.0.0.9]", "cart.shop.svc. [10.0.0.9]", "cart.shop.svc.cluster.local. [10.0.0.9]",
		"vault.bank. [10.0.0.2]", "vault.bank.svc. [10.0.0.2]", "vault.bank.svc.cluster.local. [10.0.0.2]",
	}
	a.is(t, want...)
	for name, bad := range map[string]*discoveryv3.Resource{
		"no address":   service(t, "shop", "cart", "3", "cart.example"),
		"another type": {Name: "x", Resource: &anypb.Any{TypeUrl: "type.googleapis.com/envoy.config.cluster.v3.Cluster"}},
	} {
		err := a.Take(&discoveryv3.DeltaDiscoveryResponse{Resources: []*discoveryv3.Resource{service(t, "shop", "new", "1", "10.0.0.3"), bad}})
		if err == nil {
			t.Errorf("%s is taken", name)
		}
		a.is(t, want...)
	}
	if got := a.Versions(); !maps.Equal(got, map[string]string{"cart.shop.svc.cluster.local": "2", "vault.bank.svc.cluster.local": "1"}) {
		t.Errorf("the versions are %v", got)
	}
}

// AGT-6: with a file the names are there again after a restart, with their versions; a
// file that is damaged counts as none.
func TestRestart(t *testing.T) {
	file := filepath.Join(t.TempDir(), "names")
	a := start(file)
	ctx, stop := context.WithCancel(t.Context())
	ended := make(chan struct{})
	go func() { _ = a.Run(ctx); close(ended) }()
	a.take(t, nil, service(t, "shop", "cart", "1", "10.0.0.1"), service(t, "shop", "old", "1", "10.0.0.2"))
	a.take(t, []string{"old.shop.svc.cluster.local"})
	for {
		if again := start(file); len(again.Versions()) == 1 {
			again.is(t, "cart. [10.0.0.1]", "cart.shop. [10.0.0.1]", "cart.shop.svc. [10.0.0.1]", "cart.shop.svc.cluster.local. [10.0.0.1]")
			break
		}
		if err := t.Context().Err(); err != nil {
			t.Fatal(err)
		}
	}
	stop()
	<-ended
	if info, err := os.Stat(file); err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("the file is %v, %v", info, err)
	}
	if err := os.WriteFile(file, []byte("not names"), 0o600); err != nil {
		t.Fatal(err)
	}
	if again := start(file); len(again.Versions()) > 0 {
		t.Errorf("a damaged file has %v", again.Versions())
	}
}
