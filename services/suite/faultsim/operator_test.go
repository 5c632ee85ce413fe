package faultsim

import (
	"context"
	"fmt"
	"maps"
	"slices"

	"meshlog.dev/events"
	"meshlog.dev/proto/ident"
)

// operatorProc rolls configs back to earlier published values, freezes sources and
// configuration, pins proxies, releases all of these, and approves holds.
type operatorProc struct {
	proc
	log *logPort
}

// pinnedNamespace is that of proxies which the operator pins.
const pinnedNamespace = "pinned"

// rollback is an overlay that the operator created and has not deleted.
type rollback struct {
	id   string
	keys []ident.Key // none: a freeze
	seq  uint64

	acked bool // the log has acknowledged it
	shown bool // a version contained it
}

func newOperator(s *sim) *operatorProc {
	o := &operatorProc{proc: proc{s: s, name: "op"}}
	o.log = &logPort{proc: &o.proc}
	o.body = o.run
	return o
}

func (o *operatorProc) run() {
	for {
		o.pause()
		if o.s.faults && o.s.rnd.Float64() < .03 {
			o.act()
		}
	}
}

func (o *operatorProc) act() {
	s := o.s
	head := s.head()
	if head == nil {
		return
	}
	if s.has("rollout") && s.rnd.IntN(3) == 0 && o.steer(head) {
		return
	}
	switch x := s.rnd.Float64(); {
	case x < .45 && len(head.holds) > 0:
		o.remove(head.holds[s.rnd.IntN(len(head.holds))].id)
	case x < .65 && len(s.rollbacks) > 0:
		o.remove(slices.Sorted(maps.Keys(s.rollbacks))[s.rnd.IntN(len(s.rollbacks))])
	case x < .7:
		o.put(nil, &events.Overlay{Kind: ident.Pin, Proxies: &ident.Proxies{Namespace: pinnedNamespace}})
	case x < .75:
		o.put(nil, &events.Overlay{Kind: ident.Freeze, Scope: &ident.Scope{Shard: shardOf(s.rnd.IntN(sources))}})
	default:
		o.rollBack(head)
	}
}

func (o *operatorProc) remove(id string) {
	o.s.unsure[id] = true
	if o.append(&events.Overlay{ID: id, Remove: true}) != 0 {
		delete(o.s.rollbacks, id)
	} else {
		o.giveUp(id)
	}
}

// rollBack rolls configs that have no overlay back to earlier values, each by a
// message of its own; sometimes all other configuration stays as it is meanwhile.
func (o *operatorProc) rollBack(head *version) {
	s := o.s
	busy := head.held()
	for _, r := range s.rollbacks {
		for _, k := range r.keys {
			busy[k] = true
		}
	}
	for k := range head.rolled {
		busy[k] = true
	}
	var free []ident.Key
	for _, k := range sortedKeys(head.eff) {
		if k.Kind == config && !busy[k] {
			free = append(free, k)
		}
	}
	if len(free) == 0 {
		return
	}
	s.rnd.Shuffle(len(free), func(i, j int) { free[i], free[j] = free[j], free[i] })
	var keys []ident.Key
	var parts []*events.Overlay
	var scope *ident.Scope
	if s.rnd.Float64() < .2 {
		scope = &ident.Scope{Config: true}
	}
	for _, k := range free[:min(len(free), 1+s.rnd.IntN(2))] {
		if v, ok := o.earlier(head, k); ok {
			keys = append(keys, k)
			parts = append(parts, &events.Overlay{Kind: ident.Rollback, Scope: scope, Values: []ident.OverlayValue{v}})
		}
	}
	if len(parts) > 0 {
		o.put(keys, parts...)
	}
}

// earlier returns another value that k once had.
func (o *operatorProc) earlier(head *version, k ident.Key) (ident.OverlayValue, bool) {
	base, earlier := head.eff[k], map[value]bool{}
	for _, v := range o.s.chainVersions() {
		if was := v.eff[k]; was != base {
			earlier[was] = true
		}
	}
	if len(earlier) == 0 {
		return ident.OverlayValue{}, false
	}
	values := slices.Sorted(maps.Keys(earlier))
	v := ident.OverlayValue{Key: k, Base: hashOf(k, base)}
	if to := values[o.s.rnd.IntN(len(values))]; to != 0 {
		p := to.payload(k)
		v.Value = &p
	}
	return v, true
}

// put appends an overlay, which spans one message or several.
func (o *operatorProc) put(keys []ident.Key, parts ...*events.Overlay) {
	s := o.s
	r := &rollback{id: o.newID(), keys: keys}
	s.rollbacks[r.id] = r
	var batch []events.Event
	for i, p := range parts {
		p.ID, p.Reason = r.id, "bad"
		if len(parts) > 1 {
			p.Batch = events.Batch{ID: r.id, Index: uint32(i), Total: uint32(len(parts))}
		}
		batch = append(batch, events.Event{ID: o.newID(), Body: p, Actor: o.name})
	}
	s.note("op puts %s over %d keys, kind %d", r.id, len(keys), parts[0].Kind)
	r.seq = o.appendAll(batch)
	if r.acked = r.seq != 0; !r.acked {
		o.giveUp(r.id)
	}
}

// giveUp forgets an overlay whose append got no answer: it may be on the log.
func (o *operatorProc) giveUp(id string) {
	delete(o.s.rollbacks, id)
	o.s.unsure[id] = true
}

// append returns the sequence of the record, 0 if it is unknown.
func (o *operatorProc) append(b *events.Overlay) uint64 {
	return o.appendAll([]events.Event{{ID: o.newID(), Body: b, Actor: o.name}})
}

func (o *operatorProc) appendAll(batch []events.Event) uint64 {
	if o.s.has("sign") {
		return o.appendSigned(batch)
	}
	for range 5 {
		ack, err := o.log.Append(context.Background(), batch, events.Fence{})
		if err == nil {
			if ack.Seq == 0 {
				panic(fmt.Sprintf("sim: memlog does not say where %s is", batch[0].ID))
			}
			return ack.Seq
		}
	}
	return 0
}
