package fold_test

import (
	"slices"
	"strings"
	"testing"
	"time"

	"meshlog.dev/events"
	"meshlog.dev/proto/ident"
	registryv1 "meshlog.dev/proto/meshlog/registry/v1"
	"meshlog.dev/services/mesh/fold"
	"meshlog.dev/services/mesh/kind"
	"meshlog.dev/services/mesh/problem"
	"meshlog.dev/services/mesh/world"
)

// TestNotYet checks that a diagnostic tells users if a kind has no effect yet. Those
// about policies that are not enforced come from mesh/index.
func TestNotYet(t *testing.T) {
	for _, k := range kind.All() {
		_, problems, _ := fold.KindJudge{}.Judge(ident.Key{Kind: k.Name, Name: "x"}, ident.Value{Type: k.TypeURL})
		var said []string
		for _, p := range problems {
			if p.Code == "not-yet" {
				said = append(said, p.Reason)
			}
		}
		switch {
		case k.Meaning != kind.NotYet && len(said) > 0:
			t.Errorf("%s has an effect, but a diagnostic says %q", k.Name, said)
		case k.Security && len(said) > 0:
			t.Errorf("%s is a policy, but a diagnostic says %q", k.Name, said)
		case k.Meaning == kind.NotYet && len(said) != 1:
			t.Errorf("%s has no effect: got diagnostics %q, want one", k.Name, said)
		}
	}
}

// KEY-6: no operator's overlay changes what keys and identities come from: a rollback of a
// Gateway keeps today's certificate.
func TestKeysAreNoConfiguration(t *testing.T) {
	for name, want := range map[string]bool{"Secret": false, "TrustBundle": false, "Jwks": false, "EndpointSlice": false, "Gateway": true} {
		if got := (fold.KindJudge{}).Configures(name); got != want {
			t.Errorf("a rollback may change a %s: %t, want %t", name, got, want)
		}
	}
	k, _ := kind.ByName("Secret")
	f := fold.New("build", fold.KindJudge{})
	key := ident.Key{Source: "file", Instance: "default", Kind: k.Name, Namespace: "edge", Name: "shop"}
	body := &events.Overlay{ID: "rollback-1", Kind: ident.Rollback, Reason: "back", Values: []ident.OverlayValue{{Key: key, Value: &ident.Value{Type: k.TypeURL}}}}
	c, problems, err := f.Apply(events.Record{Seq: 1, Time: time.Unix(1, 0), Event: events.Event{Body: body}}, nil)
	if err != nil {
		t.Fatal(err)
	}
	if !slices.ContainsFunc(problems, func(d problem.Diagnostic) bool { return d.Code == "overlay-state" && d.Key == key }) {
		t.Errorf("the rollback of a Secret is not reported: %v", problems)
	}
	for _, r := range c.Rows {
		if strings.Contains(string(r.Value), "edge") {
			t.Errorf("the overlay has a value of the Secret: %s", r.Row)
		}
	}
}

// SDS-7: a pair that does not fit and an empty CA bundle leave the last good credential in
// service, with a Diagnostic.
func TestBrokenPair(t *testing.T) {
	k, _ := kind.ByName("Secret")
	shard := ident.Shard{Source: "kubernetes", Instance: "a"}
	f := fold.New("build", fold.KindJudge{})
	var seq, pseq uint64
	apply := func(body events.Body) world.Change {
		t.Helper()
		seq++
		c, _, err := f.Apply(events.Record{Seq: seq, Time: time.Unix(int64(seq), 0), Event: events.Event{Body: body}}, nil)
		if err != nil {
			t.Fatal(err)
		}
		return c
	}
	put := func(ref *registryv1.SecretReference) world.Change {
		t.Helper()
		b, err := k.Encode(ref)
		if err != nil {
			t.Fatal(err)
		}
		pseq++
		return apply(&events.Object{
			Key: ident.Key{Source: shard.Source, Instance: shard.Instance, Kind: k.Name, Namespace: "shop", Name: "web"}, Op: events.Put,
			Value: ident.Value{Type: k.TypeURL, Bytes: b}, Session: "s", Pseq: pseq, Low: pseq,
		})
	}
	var none events.ShardDigests
	apply(&events.Segment{Epoch: 1, Build: "build"})
	apply(&events.Begin{Shard: shard, Session: "s", Holder: "h"})
	apply(&events.Alive{Shard: shard, Session: "s", Low: 1, Digest: none.Sum(), Listed: events.AllBuckets()})
	fields := map[string][]byte{"tls.crt": nil, "tls.key": nil}
	if c := put(&registryv1.SecretReference{Fields: fields, Pair: registryv1.Pair_PAIR_OK}); len(c.Rows) != 1 {
		t.Fatalf("a good pair changes %d rows", len(c.Rows))
	}
	for want, ref := range map[string]*registryv1.SecretReference{
		"is not the key of the certificate in tls.crt": {Fields: fields, Pair: registryv1.Pair_PAIR_MISMATCH},
		"holds no block CERTIFICATE of PEM":            {Fields: map[string][]byte{"ca.crt": nil}, CaBundle: "\n"},
	} {
		if c := put(ref); len(c.Rows) != 0 {
			t.Errorf("%s: the served value changes", want)
		}
		if ds := f.Diagnostics(); len(ds) == 0 || ds[0].Reason != want || ds[0].Effect != "the last good value, of record 4, is served" {
			t.Errorf("diagnostics: %+v, want %q first", ds, want)
		}
	}
}

// AGG-1: a Service of a registry without a host would have that of a Service of
// Kubernetes.
func TestAGG1HostOfARegistry(t *testing.T) {
	k, _ := kind.ByName("Service")
	for _, c := range []struct {
		source, host string
		good         bool
	}{
		{"kubernetes", "", true}, {"file", "", true}, {"api", "", true},
		{"consul", "", false}, {"nacos", "", false}, {"mcpxds", "", false}, {"consul", "reviews.service.consul", true},
	} {
		b, err := k.Encode(&registryv1.Service{Hostname: c.host})
		if err != nil {
			t.Fatal(err)
		}
		_, problems, good := fold.KindJudge{}.Judge(
			ident.Key{Source: c.source, Instance: "a", Kind: k.Name, Namespace: "prod", Name: "reviews"}, ident.Value{Type: k.TypeURL, Bytes: b})
		if good != c.good {
			t.Errorf("of %s with host %q: good is %t, with %v", c.source, c.host, good, problems)
		}
	}
}
