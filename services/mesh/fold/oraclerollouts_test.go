package fold

import (
	"maps"
	"slices"

	"meshlog.dev/events"
	"meshlog.dev/proto/ident"
)

// stages reports whether proxies may have different values of a kind.
func stages(k ident.Key) bool { return k.Kind != "Endpoint" && k.Kind != "MeshPolicy" }

func same(a, b *ident.Value) bool {
	return a == nil && b == nil || a != nil && b != nil && a.Type == b.Type && string(a.Bytes) == string(b.Bytes) && a.Created.Equal(b.Created)
}

// is reports whether id is a rollout in that state.
func (o *oracle) is(id string, state ident.RolloutState) bool {
	return o.over[id] != nil && o.kinds[id] == ident.Rollout && o.staging[id].State == state
}

// thatIs returns the id of the rollout in that state; empty: there is none.
func (o *oracle) thatIs(state ident.RolloutState) string {
	for id := range o.over {
		if o.is(id, state) {
			return id
		}
	}
	return ""
}

// lifts reports whether an overlay ends for a key when its source offers another value.
func (o *oracle) lifts(id string) bool {
	return o.kinds[id] == ident.Hold || o.is(id, ident.RolloutStopped)
}

func (o *oracle) remove(id string) {
	delete(o.over, id)
	delete(o.kinds, id)
	delete(o.scopes, id)
	delete(o.staging, id)
	o.gone[id] = true
}

// rollout is what a record about a rollout does.
func (o *oracle) rollout(b *events.Overlay) {
	o.rolling = true
	if b.Rollout.Ordered {
		o.act = nil
	}
	exists, to := o.over[b.ID] != nil, *b.Rollout
	was := o.staging[b.ID]
	if b.Remove {
		if exists && was.State == to.State {
			o.remove(b.ID)
			o.thaw()
		}
		return
	}
	if o.gone[b.ID] || exists && o.kinds[b.ID] != ident.Rollout {
		return
	}
	if one := o.thatIs(to.State); to.State != ident.RolloutStopped && one != "" && one != b.ID {
		return
	}
	corrects := len(b.Values) > 0 && to.Step == was.Step
	var fits bool
	switch {
	case !exists:
		fits = !to.Ordered && to.State != ident.RolloutStopped
	case was.State == ident.RolloutWaiting:
		fits = !to.Ordered && to.State != ident.RolloutStopped
	case was.State == ident.RolloutRunning && to.State == ident.RolloutRunning:
		fits = to.Step > was.Step || corrects
	case was.State == ident.RolloutRunning:
		fits = to.State == ident.RolloutStopped
	}
	if !fits {
		return
	}
	vals := map[ident.Key]ident.OverlayValue{}
	maps.Copy(vals, o.over[b.ID])
	for _, v := range b.Values {
		if stages(v.Key) {
			vals[v.Key] = v
		}
	}
	maps.DeleteFunc(vals, func(k ident.Key, v ident.OverlayValue) bool { return v.Value != nil && o.rules.Forbid(k, nil) != nil })
	o.over[b.ID], o.kinds[b.ID], o.staging[b.ID] = vals, ident.Rollout, to
	if to.State == ident.RolloutStopped {
		o.stop(b.ID)
	}
}

// stop gives the keys that wait too to the rollout that waits.
func (o *oracle) stop(id string) {
	next := o.thatIs(ident.RolloutWaiting)
	for k, v := range maps.Clone(o.over[id]) {
		if _, waits := o.over[next][k]; waits {
			v.Kept = true
			o.over[next][k] = v
			delete(o.over[id], k)
			continue
		}
		v.Base = hashOf(o.offered[k])
		o.over[id][k] = v
	}
}

// queue adds to the rollout that waits what the record has changed, and takes from it what is as
// before. If a segment or a record about rollouts made that so, the value may stay until a
// record touches the key, so f decides.
func (o *oracle) queue(f *Fold) {
	next := o.thatIs(ident.RolloutWaiting)
	if next == "" || o.rolling {
		return
	}
	is, without := o.served(), o.servedWithout(next)
	waited := maps.Clone(o.over[next])
	for k, v := range waited {
		if same(v.Value, without[k]) && (!same(o.under[k], without[k]) || !f.HasValue(next, k)) {
			delete(o.over[next], k)
		}
	}
	for _, keys := range []map[ident.Key]*ident.Value{o.before, is} {
		for k := range keys {
			was := o.before[k]
			_, has := waited[k]
			if has || !stages(k) || same(was, is[k]) || o.overBy(k, func(id string) bool {
				return o.kinds[id] == ident.Rollback || o.is(id, ident.RolloutStopped)
			}) || was != nil && o.rules.Forbid(k, nil) != nil {
				continue
			}
			o.over[next][k] = ident.OverlayValue{Key: k, Value: was, Kept: true}
		}
	}
}

// overBy reports whether an overlay of some kind has a value for k.
func (o *oracle) overBy(k ident.Key, wanted func(id string) bool) bool {
	for id, vals := range o.over {
		if _, has := vals[k]; has && wanted(id) {
			return true
		}
	}
	return false
}

// rebaseRollouts takes what rollouts keep from the base of a segment.
func (o *oracle) rebaseRollouts(base *state) {
	ids := slices.Sorted(maps.Keys(o.over))
	for _, id := range ids {
		if o.kinds[id] != ident.Rollout {
			continue
		}
		if was := base.rollouts[id]; was != nil {
			o.over[id] = maps.Clone(was.values)
		} else {
			maps.DeleteFunc(o.over[id], func(_ ident.Key, v ident.OverlayValue) bool { return v.Kept })
		}
	}
	for _, id := range ids {
		if !o.is(id, ident.RolloutStopped) {
			continue
		}
		if was := base.rollouts[id]; was == nil || was.Rollout.State != ident.RolloutStopped {
			o.stop(id)
		}
		for k := range maps.Clone(o.over[id]) {
			o.lift(k, hashOf(o.offered[k]))
		}
	}
}

func (o *oracle) pins() map[string]bool {
	pins := map[string]bool{}
	for id := range o.over {
		pins[id] = o.kinds[id] == ident.Pin
	}
	return pins
}

// keepPinned adds to all pins what is not served any more.
func (o *oracle) keepPinned() {
	is := o.served()
	for _, keys := range []map[ident.Key]*ident.Value{o.before, is} {
		for k := range keys {
			was := o.before[k]
			if same(was, is[k]) || !stages(k) || was != nil && o.rules.Forbid(k, nil) != nil {
				continue
			}
			for id, vals := range o.over {
				if _, has := vals[k]; !has && o.kinds[id] == ident.Pin && o.pinned[id] {
					vals[k] = ident.OverlayValue{Key: k, Value: was, Kept: true}
				}
			}
		}
	}
}
