package index_test

import (
	"slices"
	"testing"

	networking "istio.io/api/networking/v1alpha3"

	registryv1 "meshlog.dev/proto/meshlog/registry/v1"
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
