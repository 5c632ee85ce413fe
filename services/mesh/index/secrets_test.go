package index_test

import (
	"fmt"
	"slices"
	"testing"

	networking "istio.io/api/networking/v1alpha3"

	registryv1 "meshlog.dev/proto/meshlog/registry/v1"
	grantpkg "meshlog.dev/services/mesh/grant"
	"meshlog.dev/services/mesh/index"
	. "meshlog.dev/services/mesh/meshtest"
	"meshlog.dev/services/mesh/proxy"
)

// A reader gets the copy of a Secret that wins, and only what read it is made again
// when it changes.
func TestSecret(t *testing.T) {
	secret := func(typ string) Change {
		return Object("Secret", "edge", "shop", &registryv1.SecretReference{Type: typ})
	}
	w := World(t, secret("file").From("file"), secret("kubernetes").From("kubernetes"),
		Object("ConfigMap", "edge", "cas", &registryv1.Object{Json: []byte("{}")}))
	pc := index.NewPushContext(w)
	r := pc.Read()
	if ref, key := r.Secret("edge", "shop"); ref.GetType() != "kubernetes" || key.Source != "kubernetes" {
		t.Errorf("got %v of %v", ref, key)
	}
	if ref, _ := r.Secret("other", "shop"); ref != nil {
		t.Errorf("got %v of another namespace", ref)
	}
	if m, key := r.ConfigMap("edge", "cas"); m == nil || key.Name != "cas" {
		t.Errorf("got %v of %v", m, key)
	}
	want := []index.Input{
		{Kind: index.InputSecret, A: "edge", B: "shop"}, {Kind: index.InputSecret, A: "other", B: "shop"}, {Kind: index.InputConfigMap, A: "edge", B: "cas"},
	}
	if got := r.Inputs(); !slices.Equal(got, want) {
		t.Errorf("inputs %v, want %v", got, want)
	}
	next, keys, err := w.Apply(Rows(secret("").From("kubernetes").Gone()))
	if err != nil {
		t.Fatal(err)
	}
	pc, changed := pc.Next(next, keys)
	if !slices.Equal(changed, want[:1]) {
		t.Errorf("changed %v, want %v", changed, want[:1])
	}
	if ref, _ := pc.Read().Secret("edge", "shop"); ref.GetType() != "file" {
		t.Errorf("got %v after the winner is gone", ref)
	}
}

// A scope finds the rules that name a credential and count for one of its services.
func TestCredentialRules(t *testing.T) {
	rule := func(name, host, credential string) Change {
		return Object("DestinationRule", "a", name, &networking.DestinationRule{Host: host, Subsets: []*networking.Subset{{
			Name: "v1", TrafficPolicy: &networking.TrafficPolicy{Tls: &networking.ClientTLSSettings{CredentialName: credential}},
		}}})
	}
	pc := PushContext(t, Service("a", "x", "80"), Service("a", "y", "80"), rule("x", "x", "c"), rule("y", "y", ""), rule("z", "z", "c"))
	scope := index.Classify(pc, &proxy.Proxy{Type: proxy.Router, Namespace: "a"}).CDS.Scope
	want := []index.RuleID{{Namespace: "a", Host: "x.a.svc.cluster.local", Name: "x"}}
	if got := pc.Read().CredentialRules(scope); !slices.Equal(got, want) {
		t.Errorf("got %v, want %v", got, want)
	}
}

// What a namespace grants is read again when its ReferenceGrants change, and no class is.
func TestGrants(t *testing.T) {
	grant := func(name, spec string) Change {
		return Object("ReferenceGrant", "other", name, &registryv1.Object{Json: []byte(`{"spec":` + spec + `}`)})
	}
	gateways := grantpkg.From{Group: "gateway.networking.k8s.io", Kind: "Gateway", Namespace: "edge"}
	const fromGateways = `{"from":[{"group":"gateway.networking.k8s.io","kind":"Gateway","namespace":"edge"}],"to":[{"group":"","kind":"Secret","name":"%s"}]}`
	w := World(t, grant("a", fmt.Sprintf(fromGateways, "one")), grant("b", fmt.Sprintf(fromGateways, "two")), grant("bad", `{"from": 7}`))
	pc := index.NewPushContext(w)
	r := pc.Read()
	for name, want := range map[string]bool{"one": true, "two": true, "three": false} {
		if got := r.Granted(gateways, "Secret", "other", name); got != want {
			t.Errorf("%s is granted: %v", name, got)
		}
	}
	if r.Granted(gateways, "ConfigMap", "other", "one") || r.Granted(gateways, "Secret", "edge", "one") {
		t.Error("what no grant says is granted")
	}
	next, keys, err := w.Apply(Rows(grant("a", "{}").Gone()))
	if err != nil {
		t.Fatal(err)
	}
	after, changed := pc.Next(next, keys)
	if want := []index.Input{{Kind: index.InputGrants, A: "other"}}; !slices.Equal(changed, want) {
		t.Errorf("changed %v, want %v", changed, want)
	}
	if r := after.Read(); r.Granted(gateways, "Secret", "other", "one") || !r.Granted(gateways, "Secret", "other", "two") {
		t.Error("a grant that is gone counts, or another one does not")
	}
	if !after.SameClasses(pc) {
		t.Error("a grant changes classes")
	}
}
