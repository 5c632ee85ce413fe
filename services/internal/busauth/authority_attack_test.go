package busauth

import (
	"context"
	"errors"
	"sync"
	"testing"

	reportv1 "meshlog.dev/proto/meshlog/report/v1"
	"meshlog.dev/services/internal/bus"
)

// What operators ask the ca, and what the ca asks the leader.
const (
	authoritySubject = "meshlog.fleet.mesh.authority"
	podsSubject      = "meshlog.fleet.mesh.pods"
)

// serveRoots answers operators as the ca, and the ca as the leader.
func (b *target) serveRoots() {
	b.Helper()
	authority := bus.NewFleet(b.connect(bus.Watcher(ca), 0), "mesh", quiet)
	leader := bus.NewFleet(b.connect(bus.Builder(), 0), "mesh", quiet)
	serving, stop := context.WithCancel(b.Context())
	var all sync.WaitGroup
	serve := func(run func() error) {
		all.Go(func() {
			if err := run(); !errors.Is(err, context.Canceled) {
				b.Errorf("serve: %v", err)
			}
		})
	}
	serve(func() error {
		return authority.ServeAuthority(serving, "one", ca, func(reportv1.AuthorityAction) *reportv1.AuthorityReply { return new(reportv1.AuthorityReply) })
	})
	serve(func() error {
		return leader.ServePods(serving, func(_ ctx, namespace, _, _ string) (known, can bool) { return namespace == "shop", true })
	})
	b.Cleanup(func() {
		stop()
		all.Wait()
	})
}

// CA-5, CA-10: with the keys that bus-auth writes, an operator speaks to the ca, and the ca
// asks the leader about a pod, on every server. No other account hears either, and nothing
// is stored.
func TestAuthorityAndPods(t *testing.T) {
	for name, a := range arrangements {
		t.Run(name, func(t *testing.T) {
			b := underAttack(t, a, nil)
			b.serveRoots()
			before := b.state()
			observed := map[string]heard{}
			for account := range b.observers {
				observed[account] = b.observe(account, 0)
			}
			for node := range b.addrs {
				asks := bus.NewFleet(b.connect(bus.Watcher(ca), node), "mesh", quiet)
				for {
					known, err := asks.KnowsPod(t.Context(), &reportv1.PodRequest{Namespace: "shop"})
					if errors.Is(err, bus.ErrNoAnswer) {
						continue // the leader does not listen yet
					}
					if err != nil || !known {
						t.Fatalf("the ca asks for a pod: %v, %v", known, err)
					}
					break
				}
				operator := bus.NewFleet(b.connect(bus.Operator(), node), "mesh", quiet)
				for {
					replies, err := operator.Authority(t.Context(), reportv1.AuthorityAction_AUTHORITY_ACTION_UNSPECIFIED)
					if err == nil && len(replies) == 0 {
						continue
					}
					if err != nil || len(replies) != 1 {
						t.Fatalf("an operator asks the ca: %v, %v", replies, err)
					}
					break
				}
			}
			may := map[string][]string{"W-ca-default": {authoritySubject, podsSubject}, "BUILDER": {podsSubject}, "OPERATOR": {authoritySubject}}
			for account, h := range observed {
				must(t, h.nc.Flush())
				heard := map[string]int{}
				for len(h.all) > 0 {
					heard[(<-h.all).Subject]++
				}
				for _, subject := range may[account] {
					delete(heard, subject)
				}
				if n := heard[authoritySubject] + heard[podsSubject]; n > 0 {
					t.Errorf("%d requests reach %s", n, account)
				}
			}
			if now := b.state(); now != before {
				t.Errorf("the requests are stored:\n%swas\n%s", now, before)
			}
		})
	}
}
