package builder

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	registryv1 "meshlog.dev/proto/meshlog/registry/v1"
	reportv1 "meshlog.dev/proto/meshlog/report/v1"
	"meshlog.dev/services/mesh/jwks"
	. "meshlog.dev/services/mesh/meshtest"
)

// POL-12: the builder offers each issuer that a policy names and whose keys the policy does
// not have itself, once, and the key sets that no policy names any more.
// POL-13: it does not offer those whose keys proxies fetch, unless another policy names them.
func TestIssuersOf(t *testing.T) {
	const policies = `apiVersion: security.istio.io/v1
kind: RequestAuthentication
metadata: {name: b, namespace: shop}
spec:
  jwtRules:
  - {issuer: https://one.example}
  - {issuer: https://two.example, jwksUri: https://two.example/keys}
  - {issuer: https://inline.example, jwks: '{"keys":[]}'}
---
apiVersion: security.istio.io/v1
kind: RequestAuthentication
metadata: {name: a, namespace: shop}
spec:
  jwtRules:
  - {issuer: https://one.example}
  - {issuer: https://two.example, jwksUri: https://two.example/others}
---
apiVersion: security.istio.io/v1
kind: RequestAuthentication
metadata: {name: proxies, namespace: shop, annotations: {meshlog.dev/jwks: envoy}}
spec:
  jwtRules:
  - {issuer: https://two.example, jwksUri: https://two.example/others}
  - {issuer: https://three.example, jwksUri: https://three.example/keys}
`
	one := jwks.Issuer{Issuer: "https://one.example"}
	set := func(name string) Change { return Object("Jwks", "", name, &registryv1.Jwks{}) }
	three := jwks.Issuer{Issuer: "https://three.example", URI: "https://three.example/keys"}
	i := issuersOf(World(t, append(YAML(t, policies), set(one.ObjectName()), set("old"), set(three.ObjectName()))...))
	var got []string
	for _, i := range i.GetIssuers() {
		if !strings.HasPrefix(i.GetNamedBy(), "shop/") {
			t.Errorf("%s is named by %q", i.GetIssuer(), i.GetNamedBy())
		}
		got = append(got, strings.TrimSpace(i.GetIssuer()+" "+i.GetJwksUri()))
	}
	want := []string{"https://one.example", "https://two.example https://two.example/keys", "https://two.example https://two.example/others"}
	if slices.Sort(got); !slices.Equal(got, want) || i.GetLeftOut() != 0 || !slices.Equal(slices.Sorted(slices.Values(i.GetUnnamed())), slices.Sorted(slices.Values([]string{"old", three.ObjectName()}))) {
		t.Errorf("issuers %q, %d left out, not named any more %q", got, i.GetLeftOut(), i.GetUnnamed())
	}
}

// POL-12: what is beyond the bounds of a message is counted, and its keys count as named.
func TestIssuersAreBounded(t *testing.T) {
	rules := &strings.Builder{}
	fmt.Fprint(rules, "apiVersion: security.istio.io/v1\nkind: RequestAuthentication\nmetadata: {name: a, namespace: shop}\nspec:\n  jwtRules:\n")
	changes := []Change{}
	for n := range maxIssuers + 3 {
		i := jwks.Issuer{Issuer: fmt.Sprintf("https://i%d.example", n)}
		fmt.Fprintf(rules, "  - {issuer: %q}\n", i.Issuer)
		changes = append(changes, Object("Jwks", "", i.ObjectName(), &registryv1.Jwks{}))
	}
	i := issuersOf(World(t, append(YAML(t, rules.String()), changes...)...))
	if len(i.GetIssuers()) != maxIssuers || i.GetLeftOut() != 3 || len(i.GetUnnamed()) != 0 {
		t.Errorf("%d issuers, %d left out, %d not named", len(i.GetIssuers()), i.GetLeftOut(), len(i.GetUnnamed()))
	}
}

// POL-12: a builder that does not lead offers nothing. One that does offers a change at
// once, and the same again every few ticks.
func TestOffer(t *testing.T) {
	var offers []*reportv1.Issuers
	b := &Builder{m: &Machine{}, o: Options{Offer: func(i *reportv1.Issuers) error { offers = append(offers, i); return nil }}}
	tick := func(what string, want int) {
		t.Helper()
		if err := b.offer(); err != nil || len(offers) != want {
			t.Errorf("%s: %d offers, want %d (%v)", what, len(offers), want, err)
		}
	}
	tick("a standby", 0)
	b.m.leader = true
	tick("before the head is known", 0)
	b.m.named.issuers = &reportv1.Issuers{Unnamed: []string{"old"}}
	tick("the first", 1)
	for range issuersEvery - 1 {
		tick("the same", 1)
	}
	tick("the same, repeated", 2)
	b.m.named.issuers = &reportv1.Issuers{}
	tick("a change", 3)
	b.m.leader = false
	for range issuersEvery {
		tick("a standby again", 3)
	}
}

// POL-12: the first version of an epoch waits for the sources that are listing, and the
// watcher of keys cannot list before it has an offer: it gets one when no other source is
// awaited.
func TestOfferBeforeTheFirstVersion(t *testing.T) {
	m := &Machine{leader: true}
	m.draft.world = World(t)
	for _, waiting := range [][]string{nil, {"file/a is listing"}, {"file/a is listing", "jwks/default is listing"}} {
		m.waiting = waiting
		if i := m.Issuers(); i != nil {
			t.Errorf("while it waits for %q, it offers %v", waiting, i)
		}
	}
	m.waiting = []string{"jwks/default is listing"}
	if m.Issuers() == nil {
		t.Error("while it waits for the keys, it offers nothing")
	}
}
