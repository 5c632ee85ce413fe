package fold

import (
	"cmp"
	"fmt"
	"iter"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	gocmp "github.com/google/go-cmp/cmp"

	"meshlog.dev/events"
	"meshlog.dev/proto/ident"
	"meshlog.dev/services/mesh/permit"
)

// oracle is a second fold, as simple as its rules. It is slow, because it keeps no
// derived state such as digests.
type oracle struct {
	judge         testJudge
	rules         *permit.Rules
	epoch, record uint64 // record began the epoch
	offered, good map[ident.Key]*value
	over          map[string]map[ident.Key]ident.OverlayValue
	kinds         map[string]ident.OverlayKind
	scopes        map[string]ident.Scope
	staging       map[string]ident.Staging // of rollouts
	observed      map[string]time.Time     // of overlays
	act           []*events.Overlay        // messages of a rollback
	gone          map[string]bool
	before        map[ident.Key]*ident.Value // served before a record
	under         map[ident.Key]*ident.Value // before, without the rollout that waits
	rolling       bool                       // what the record changes waits for no rollout
	pinned        map[string]bool            // pins before a record
	shards        map[ident.Shard]*oracleShard
}

type oracleShard struct {
	session                     string
	listing, synced, need, hole bool
	staged                      []*events.Object
	last                        map[ident.Key]uint64
	seen                        map[uint64]bool
	floor                       uint64
}

func newOracle(judge testJudge) *oracle {
	return &oracle{
		judge: judge, rules: permit.New(nil, "", ident.Shard{}), offered: map[ident.Key]*value{}, good: map[ident.Key]*value{},
		over: map[string]map[ident.Key]ident.OverlayValue{}, kinds: map[string]ident.OverlayKind{}, scopes: map[string]ident.Scope{},
		staging: map[string]ident.Staging{}, observed: map[string]time.Time{}, gone: map[string]bool{}, shards: map[ident.Shard]*oracleShard{},
	}
}

func (o *oracle) shard(s ident.Shard) *oracleShard {
	x := o.shards[s]
	if x == nil {
		x = &oracleShard{last: map[ident.Key]uint64{}, seen: map[uint64]bool{}}
		o.shards[s] = x
	}
	return x
}

func (x *oracleShard) isHole(pseq, low uint64) bool {
	if pseq > x.floor {
		x.seen[pseq] = true
	}
	for x.seen[x.floor+1] {
		x.floor++
	}
	x.hole = x.hole || low > 0 && x.floor < low-1
	x.need = x.need || x.hole
	return x.hole
}

func (o *oracle) put(k ident.Key, v *value) {
	o.lift(k, hashOf(v))
	if v == nil {
		delete(o.offered, k)
		if !o.frozen(k) {
			delete(o.good, k)
		}
		return
	}
	o.offered[k] = v
	o.serve(k, v)
}

// lift takes k out of the overlays that were made for another value than the offered one.
func (o *oracle) lift(k ident.Key, offered ident.Hash) {
	for id, vals := range o.over {
		if was, ok := vals[k]; ok && !o.frozen(k) && o.lifts(id) && was.Base != offered {
			if delete(vals, k); len(vals) == 0 && o.kinds[id] == ident.Hold {
				delete(o.over, id)
			}
		}
	}
}

// frozen reports whether an operator keeps k as it is.
func (o *oracle) frozen(k ident.Key) bool {
	for _, s := range o.scopes {
		if !s.Config && s.Shard == k.Shard() || s.Config && k.Kind != "Endpoint" && (s.Namespace == "" || s.Namespace == k.Namespace) {
			return true
		}
	}
	return false
}

// serve sets what is served for a key whose source offers v.
func (o *oracle) serve(k ident.Key, v *value) {
	if o.frozen(k) {
		return
	}
	if _, _, good := o.judge.Judge(k, v.Value); good {
		o.good[k] = v
		return
	}
	if last := o.good[k]; last != nil && last.Value.Type != ident.Closed {
		return
	}
	if closed, ok := o.judge.Closed(k, v.Value); ok {
		o.good[k] = newValue(k, closed)
	}
}

func valueOf(ob *events.Object) *value {
	if ob.Op == events.Delete {
		return nil
	}
	return newValue(ob.Key, ob.Value)
}

func (o *oracle) data(x *oracleShard, records []*events.Object) {
	for _, r := range records {
		k := r.Key
		if last, ok := x.last[k]; ok && last >= r.Pseq {
			continue
		}
		x.last[k] = r.Pseq
		o.put(k, valueOf(r))
	}
}

func (o *oracle) apply(rec events.Record, base iter.Seq2[string, []byte]) {
	o.before, o.pinned, o.rolling = o.served(), o.pins(), false
	o.under = o.servedWithout(o.thatIs(ident.RolloutWaiting))
	switch b := rec.Event.Body.(type) {
	case *events.Object:
		o.object(o.shard(b.Key.Shard()), b)
	case *events.Begin:
		x := o.shard(b.Shard)
		*x = oracleShard{session: b.Session, listing: true, synced: x.synced, last: map[ident.Key]uint64{}, seen: map[uint64]bool{}}
	case *events.Alive:
		x := o.shard(b.Shard)
		if x.session != b.Session {
			x.need = true
		} else if !x.isHole(0, b.Low) {
			o.alive(x, b)
		}
	case *events.Overlay:
		if o.overlay(b); o.over[b.ID] != nil {
			o.observed[b.ID] = rec.Event.Observed
		}
	case *events.Segment:
		o.segment(rec.Seq, b, base)
	}
}

func (o *oracle) object(x *oracleShard, b *events.Object) {
	switch {
	case x.session != b.Session || x.isHole(b.Pseq, b.Low):
	case x.listing:
		x.staged = append(x.staged, b)
	case b.Batch.Total > 0:
		x.staged = slices.DeleteFunc(x.staged, func(e *events.Object) bool {
			return e.Batch.ID != b.Batch.ID || e.Batch.Index == b.Batch.Index
		})
		if x.staged = append(x.staged, b); len(x.staged) == int(b.Batch.Total) {
			all := inPseqOrder(x.staged)
			x.staged = nil
			o.data(x, all)
		}
	default:
		o.data(x, []*events.Object{b})
	}
}

func inPseqOrder(records []*events.Object) []*events.Object {
	return slices.SortedStableFunc(slices.Values(records), func(a, b *events.Object) int { return int(a.Pseq) - int(b.Pseq) })
}

func (o *oracle) alive(x *oracleShard, a *events.Alive) {
	if !x.listing && a.Digest == (events.Digest{}) {
		return // nothing to compare
	}
	// mine are the shard's objects that the fold has, saw those that the watcher saw.
	// Both leave out kinds that the session does not cover.
	mine, saw := map[ident.Key]*value{}, map[ident.Key]*value{}
	for k, v := range o.offered {
		if k.Shard() == a.Shard && a.Kinds.Cover(k.Kind) {
			mine[k] = v
			if !x.listing || !a.Listed.Has(events.Bucket(k)) {
				saw[k] = v
			}
		}
	}
	ok := true
	if !a.Partial {
		last := map[ident.Key]uint64{}
		for _, r := range inPseqOrder(x.staged) {
			// The first record with a pseq counts, as in data.
			if k := r.Key; x.listing && last[k] != r.Pseq {
				saw[k], last[k] = valueOf(r), r.Pseq
			}
		}
		maps.DeleteFunc(saw, func(k ident.Key, v *value) bool { return v == nil || !a.Kinds.Cover(k.Kind) })
		var digests events.ShardDigests
		for k, v := range saw {
			digests.Toggle(k, v.hash)
		}
		ok = digests.Sum() == a.Digest
		operator := x.listing && a.Ends && len(a.Kinds) > 0
		first := ok && (x.listing || !x.synced)
		x.synced, x.need = x.synced || ok && !operator, x.need || !ok
		if first {
			defer func() { // the source offers nothing else
				for _, vals := range o.over {
					for k := range vals {
						if k.Shard() == a.Shard && a.Kinds.Cover(k.Kind) && o.offered[k] == nil {
							o.put(k, nil)
						}
					}
				}
			}()
		}
	}
	if ok && x.listing {
		staged := x.staged
		x.listing, x.staged = false, nil
		o.data(x, staged)
		if !a.Partial {
			for k := range mine {
				if saw[k] == nil {
					o.put(k, nil)
				}
			}
		}
	}
}

func (o *oracle) overlay(b *events.Overlay) {
	if b.Kind == ident.Rollout {
		o.rollout(b)
		return
	}
	if b.Kind != ident.Hold && b.Kind != ident.Quarantine {
		if len(o.act) > 0 && o.act[0].Batch.ID != b.Batch.ID {
			o.act = nil
		}
		if b.Batch.Total > 1 {
			if int(b.Batch.Index) != len(o.act) {
				return
			}
			if o.act = append(o.act, b); len(o.act) < int(b.Batch.Total) {
				return
			}
			all := *o.act[0]
			all.Values = nil
			for _, part := range o.act {
				all.Values = append(all.Values, part.Values...)
			}
			b, o.act = &all, nil
		}
	}
	if b.Remove {
		o.rolling = o.kinds[b.ID] == ident.Rollout
		o.remove(b.ID)
		o.thaw()
		return
	}
	if o.gone[b.ID] || o.kinds[b.ID] == ident.Rollout {
		return
	}
	vals := map[ident.Key]ident.OverlayValue{}
	for _, v := range b.Values {
		if v.Resource != nil {
			vals[inQuarantine(v.Resource.Name)] = ident.OverlayValue{}
		} else if k := v.Key; b.Kind == ident.Pin {
			if k.Kind != "Endpoint" && k.Kind != "MeshPolicy" && (v.Value == nil || o.rules.Forbid(k, nil) == nil) {
				vals[k] = v
			}
		} else if b.Kind == ident.Rollback {
			if k.Kind != "Endpoint" {
				vals[k] = v
			}
		} else if (hashOf(o.offered[k]) == v.Base || o.offered[k] == nil && !o.listed(k.Shard()) || o.frozen(k)) &&
			(v.Value == nil || o.rules.Forbid(k, nil) == nil) {
			vals[k] = v
		}
	}
	if len(vals) == 0 && b.Scope == nil && b.Kind != ident.Pin {
		return
	}
	if b.Kind == ident.Pin && o.kinds[b.ID] == ident.Pin {
		for k, v := range o.over[b.ID] {
			if _, again := vals[k]; !again {
				vals[k] = v
			}
		}
	}
	o.over[b.ID], o.kinds[b.ID] = vals, b.Kind
	if delete(o.scopes, b.ID); b.Scope != nil {
		o.scopes[b.ID] = *b.Scope
	}
	o.thaw() // the overlay with that id may have had another scope
}

// thaw serves what is no longer frozen.
func (o *oracle) thaw() {
	for id, vals := range o.over {
		for k, v := range vals {
			unread := o.offered[k] == nil && !o.listed(k.Shard())
			if o.lifts(id) && !o.frozen(k) && !unread && v.Base != hashOf(o.offered[k]) {
				delete(vals, k)
			}
		}
		if _, scoped := o.scopes[id]; len(vals) == 0 && !scoped && o.kinds[id] != ident.Pin && o.kinds[id] != ident.Rollout {
			delete(o.over, id)
		}
	}
	for k := range o.good {
		if o.offered[k] == nil && !o.frozen(k) {
			delete(o.good, k)
		}
	}
	for k, v := range o.offered {
		o.serve(k, v)
	}
}

// enforce takes from service what rules forbid (ACL-1).
func (o *oracle) enforce(rules *permit.Rules) {
	o.rules = rules
	forbidden := func(k ident.Key) bool { return rules.Forbid(k, nil) != nil }
	maps.DeleteFunc(o.good, func(k ident.Key, _ *value) bool { return forbidden(k) })
	for k, v := range o.offered {
		if !forbidden(k) {
			o.serve(k, v)
		}
	}
	for id, vals := range o.over {
		if o.kinds[id] == ident.Hold || o.kinds[id] == ident.Pin || o.kinds[id] == ident.Rollout {
			maps.DeleteFunc(vals, func(k ident.Key, v ident.OverlayValue) bool { return v.Value != nil && forbidden(k) })
		}
		if _, scoped := o.scopes[id]; len(vals) == 0 && !scoped && o.kinds[id] != ident.Pin && o.kinds[id] != ident.Rollout {
			delete(o.over, id)
		}
	}
}

// served returns what is served to proxies that are not pinned, and that all rollouts have
// reached.
func (o *oracle) served() map[ident.Key]*ident.Value { return o.servedWithout("") }

// servedWithout is served, if there was no overlay of that id.
func (o *oracle) servedWithout(absent string) map[ident.Key]*ident.Value {
	all := map[ident.Key]*ident.Value{}
	for k, v := range o.good {
		all[k] = &v.Value
	}
	ids := slices.SortedFunc(maps.Keys(o.over), func(a, b string) int {
		return cmp.Or(o.observed[a].Compare(o.observed[b]), strings.Compare(a, b))
	})
	for _, kind := range []ident.OverlayKind{ident.Hold, ident.Rollout, ident.Rollback} { // the last one counts
		for _, id := range ids {
			for k, v := range o.over[id] {
				if o.kinds[id] == kind && !o.is(id, ident.RolloutRunning) && id != absent {
					all[k] = v.Value
				}
			}
		}
	}
	return all
}

func (o *oracle) listed(s ident.Shard) bool { return o.shards[s] != nil && o.shards[s].synced }

func (o *oracle) segment(seq uint64, g *events.Segment, rows iter.Seq2[string, []byte]) {
	if g.EpochRecord == 0 && g.Epoch <= o.epoch || g.EpochRecord != 0 && (g.Epoch != o.epoch || g.EpochRecord != o.record) {
		return
	}
	base := newState()
	if rows != nil {
		base, _, _ = parse(rows)
	}
	was := map[ident.Key]*value{}
	for _, sh := range base.shards {
		for k, e := range sh.entries {
			if e.good != nil {
				was[k] = e.good
			}
		}
	}
	if g.EpochRecord == 0 {
		judge, rules := o.judge, o.rules
		*o = *newOracle(judge)
		o.rules = rules
		o.epoch, o.record = g.Epoch, seq
		for name, sh := range base.shards {
			o.shard(name).need = true
			for k, e := range sh.entries {
				if e.offered != nil {
					o.offered[k] = e.offered
				} else if e.good != nil {
					o.good[k] = e.good
				}
			}
		}
		for id, over := range base.overlays {
			o.over[id], o.kinds[id] = over.everything(), over.Kind
			o.observed[id] = over.Observed
			if over.Scope != nil {
				o.scopes[id] = *over.Scope
			}
			if over.Rollout != nil {
				o.staging[id] = *over.Rollout
			}
		}
		for id := range base.gone {
			o.gone[id] = true
		}
		good := o.good
		o.good = was
		o.before, o.pinned = o.served(), o.pins()
		o.good = good
	} else {
		for id, vals := range o.over {
			if o.kinds[id] != ident.Pin {
				continue
			}
			maps.DeleteFunc(vals, func(_ ident.Key, v ident.OverlayValue) bool { return v.Kept })
			if o.pinned[id] = base.overlays[id] != nil && base.overlays[id].Kind == ident.Pin; !o.pinned[id] {
				continue
			}
			for k, v := range base.overlays[id].values {
				if _, said := vals[k]; !said && v.Kept {
					vals[k] = v
				}
			}
		}
		published := newOracle(o.judge)
		published.good = was
		for id, over := range base.overlays {
			published.over[id], published.kinds[id], published.observed[id] = over.everything(), over.Kind, over.Observed
			if over.Rollout != nil {
				published.staging[id] = *over.Rollout
			}
		}
		o.before = published.served()
	}
	o.rolling = true
	o.rebaseRollouts(&base)
	o.good = map[ident.Key]*value{}
	for k, v := range o.offered {
		if w := was[k]; w != nil {
			o.good[k] = w
		}
		o.serve(k, v)
	}
	for k, w := range was { // deleted by their sources
		if o.offered[k] == nil && o.frozen(k) {
			o.good[k] = w
		}
	}
}

// known is the state that oracle and Fold have in common.
type known struct {
	Offered, Good map[string]string
	Over          map[string][]string
	Gone          []string
	Shards        map[string]string
}

func (o *oracle) known() known {
	n := known{map[string]string{}, map[string]string{}, map[string][]string{}, slices.Sorted(maps.Keys(o.gone)), map[string]string{}}
	for k, v := range o.offered {
		n.Offered[k.Row()] = string(v.Value.Bytes)
	}
	for k, v := range o.good {
		n.Good[k.Row()] = string(v.Value.Bytes)
	}
	for id, vals := range o.over {
		n.Over[id] = overlaid(vals)
		if o.kinds[id] == ident.Rollout {
			n.Over[id] = append(n.Over[id], fmt.Sprint(o.staging[id].State, o.staging[id].Step))
		}
	}
	for name, x := range o.shards {
		n.Shards[name.String()] = fmt.Sprint(x.session, x.listing, x.synced, x.need, x.hole, len(x.staged))
	}
	return n
}

// inQuarantine returns a key that stands for a resource; no source has such keys.
func inQuarantine(resource string) ident.Key { return ident.Key{Kind: "quarantine", Name: resource} }

// everything returns all keys that o covers.
func (o *overlay) everything() map[ident.Key]ident.OverlayValue {
	all := maps.Clone(o.values)
	for _, v := range o.resources {
		all[inQuarantine(v.Resource.Name)] = ident.OverlayValue{}
	}
	return all
}

func overlaid(vals map[ident.Key]ident.OverlayValue) (rows []string) {
	for k, v := range vals {
		row := k.Row()
		if v.Value != nil {
			row += "=" + string(v.Value.Bytes)
		}
		rows = append(rows, row)
	}
	slices.Sort(rows)
	return rows
}

func (f *Fold) known() known {
	n := known{map[string]string{}, map[string]string{}, map[string][]string{}, slices.Sorted(maps.Keys(f.gone)), map[string]string{}}
	for name, sh := range f.shards {
		n.Shards[name.String()] = fmt.Sprint(sh.Session, sh.Listing, sh.Synced, sh.Need != "", sh.Hole, len(sh.staged))
		for _, e := range sh.entries {
			if e.offered != nil {
				n.Offered[e.row] = string(e.offered.Value.Bytes)
			}
			if e.good != nil {
				n.Good[e.row] = string(e.good.Value.Bytes)
			}
		}
	}
	for id, o := range f.overlays {
		n.Over[id] = overlaid(o.everything())
		if o.Rollout != nil {
			n.Over[id] = append(n.Over[id], fmt.Sprint(o.Rollout.State, o.Rollout.Step))
		}
	}
	return n
}

// The fold and the oracle have the same state after every record of random logs.
func TestOracle(t *testing.T) {
	for seed := range uint64(600) {
		r := rand.New(rand.NewPCG(seed, 6))
		a := newAuthor(r.IntN)
		f, o := New("A", testJudge("A")), newOracle("A")
		for range 100 {
			rec := a.next(f)
			base := a.baseOf(f, rec)
			if _, _, err := f.Apply(rec, base); err != nil {
				t.Fatal(err)
			}
			o.apply(rec, base)
			o.enforce(f.rules)
			o.queue(f)
			o.keepPinned()
			if diff := gocmp.Diff(o.known(), f.known()); diff != "" {
				t.Fatalf("seed %d, record %d, %T %+v (-model +fold):\n%s", seed, rec.Seq, rec.Event.Body, rec.Event.Body, diff)
			}
		}
	}
}
