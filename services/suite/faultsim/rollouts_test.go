package faultsim

import (
	"slices"
	"testing"

	"google.golang.org/protobuf/types/known/durationpb"

	"meshlog.dev/events"
	"meshlog.dev/proto/ident"
	configv1 "meshlog.dev/proto/meshlog/config/v1"
	reportv1 "meshlog.dev/proto/meshlog/report/v1"
	"meshlog.dev/services/frontend/replica"
	"meshlog.dev/services/mesh/world"
	"meshlog.dev/store"
)

// rolloutSteps are the steps of schedules with rollouts: the proxies of the simulation,
// which have no namespace, are the last that a change reaches.
func rolloutSteps() *configv1.Rollout {
	first := &configv1.RolloutStep{Percent: 30, Hold: durationpb.New(2 * tick)}
	return &configv1.Rollout{Steps: []*configv1.RolloutStep{first, {Percent: 60, Hold: durationpb.New(3 * tick)}}}
}

// reached is what a frontend reports about the running rollout: the proxies of the
// simulation are all reached, or none is.
func (p *proxies) reached(st *replica.State) *reportv1.Reached {
	for _, o := range st.World.Views() {
		if o.Rollout == nil {
			continue
		}
		r := &reportv1.Reached{Rollout: o.ID, Step: uint32(o.Rollout.Step)}
		if p.client.Class().Pin(ident.RDS) == "" {
			r.Streams = uint32(len(p.names))
			r.Applied = []*reportv1.Applied{{Version: store.VersionProto(st.Version()), Streams: r.Streams}}
		}
		return r
	}
	return nil
}

// views are what proxies are served: first those that the running rollout has reached, then
// the others.
func (v *version) views() (reached, others map[ident.Key]value) {
	served := func(behind bool) map[ident.Key]value {
		all := map[ident.Key]value{}
		for k, x := range v.src {
			all[k] = x
		}
		words := map[ident.Key][]*world.Overlay{}
		for i := range v.overlays {
			if o := &v.overlays[i]; o.Kind != ident.Pin && o.Kind != ident.Quarantine && (behind || !o.ForSome()) {
				for _, x := range o.Values {
					words[x.Key] = append(words[x.Key], o)
				}
			}
		}
		for k, by := range words {
			first := slices.MinFunc(by, world.CompareOverlays)
			i := slices.IndexFunc(first.Values, func(x ident.OverlayValue) bool { return x.Key == k })
			if all[k] = valueOfOverlay(first.Values[i]); all[k] == 0 {
				delete(all, k)
			}
		}
		return all
	}
	return served(false), served(true)
}

// checkRollouts checks SIM-11: proxies that a rollout has not reached get no change of
// configuration; what they get is what they had, or what those had that it has reached, once
// it has ended. What a version gives first, the running rollout has, and it has begun.
func (s *sim) checkRollouts(v *version) {
	before := s.byName[v.prev]
	if !s.has("rollout") || before == nil || s.rewinds > 0 {
		return
	}
	wasReached, was := before.views()
	_, others := v.views()
	keys := map[ident.Key]bool{}
	for _, of := range []map[ident.Key]value{wasReached, was, others} {
		for k := range of {
			keys[k] = k.Kind == config
		}
	}
	for _, k := range sortedKeys(keys) {
		if !keys[k] || v.rolled[k] != "" {
			continue
		}
		if before.rolled[k] != "" && others[k] == s.behind(v, k) {
			continue // as before the rollback
		}
		if x := others[k]; x != was[k] && (x != wasReached[k] || !s.ended(before, v, k)) {
			fail("SIM-11", "%s: proxies that no rollout has reached get %d in %s; they had %d, and those reached had %d", short(k), x, v.v, was[k], wasReached[k])
		}
	}
}

// ended reports whether the rollout that ran with k has ended.
func (s *sim) ended(before, v *version, k ident.Key) bool {
	for _, o := range before.overlays {
		if o.ForSome() && o.Kind == ident.Rollout && slices.ContainsFunc(o.Values, func(x ident.OverlayValue) bool { return x.Key == k }) {
			return !slices.ContainsFunc(v.overlays, func(x world.Overlay) bool { return x.ID == o.ID && x.ForSome() })
		}
	}
	return false
}

// behind returns the value of k that the running rollout or a stopped one has; -1: none.
func (s *sim) behind(v *version, k ident.Key) value {
	for _, o := range v.overlays {
		for _, x := range o.Values {
			if o.Kind == ident.Rollout && x.Key == k && (o.ForSome() || o.Rollout.State == ident.RolloutStopped) {
				return valueOfOverlay(x)
			}
		}
	}
	return -1
}

// steer lets the operator promote or abort the running rollout.
func (o *operatorProc) steer(head *version) bool {
	for _, r := range head.overlays {
		if r.Kind != ident.Rollout || !r.ForSome() {
			continue
		}
		staging := *r.Rollout
		staging.Since, staging.Ordered = noTime, true
		if staging.State = ident.RolloutStopped; o.s.rnd.IntN(2) == 0 {
			staging.State, staging.Step = ident.RolloutRunning, staging.Step+1
			staging.Reached.Percent = 60
		}
		o.append(&events.Overlay{ID: r.ID, Kind: ident.Rollout, Rollout: &staging})
		return true
	}
	return false
}

// TestRollouts runs schedules in which changes reach the proxies by steps.
func TestRollouts(t *testing.T) {
	if *faults != "" {
		return // TestSim runs the faults that the flag names
	}
	simulate(t, *seeds/3, func(uint64) string { return "rollout" })
}
