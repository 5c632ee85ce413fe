package faultsim

import (
	"context"
	"fmt"
	"maps"
	"slices"

	"meshlog.dev/events"
	"meshlog.dev/proto/ident"
)

// operatorProc rolls single configs back to earlier published values, deletes
// rollbacks, and approves holds.
type operatorProc struct {
	proc
	log *logPort
}

// rollback is an overlay that the operator created and has not deleted.
type rollback struct {
	id   string
	key  ident.Key
	base value // the value that was served when the overlay was created
	at   int   // number of values that the key had had
	same bool  // base was the source's value
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
	switch x := s.rnd.Float64(); {
	case x < .45 && len(head.holds) > 0:
		o.remove(head.holds[s.rnd.IntN(len(head.holds))].id)
	case x < .6 && len(s.rollbacks) > 0:
		o.remove(slices.Sorted(maps.Keys(s.rollbacks))[s.rnd.IntN(len(s.rollbacks))])
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

// rollBack rolls a config that has no overlay back to an earlier value.
func (o *operatorProc) rollBack(head *version) {
	s := o.s
	busy := head.held()
	for _, r := range s.rollbacks {
		busy[r.key] = true
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
	k := free[s.rnd.IntN(len(free))]
	base := head.eff[k]
	earlier := map[value]bool{}
	for _, v := range s.chainVersions() {
		if was := v.eff[k]; was != base {
			earlier[was] = true
		}
	}
	if len(earlier) == 0 {
		return
	}
	values := slices.Sorted(maps.Keys(earlier))
	v := ident.OverlayValue{Key: k, Base: hashOf(k, base)}
	if to := values[s.rnd.IntN(len(values))]; to != 0 {
		p := to.payload(k)
		v.Value = &p
	}
	src := s.sourceOf(k)
	r := &rollback{id: o.newID(), key: k, base: base, at: len(src.hist[k]), same: src.truth[k] == base}
	s.rollbacks[r.id] = r
	s.note("op rolls %s back from %d (%s)", short(k), base, r.id)
	r.seq = o.append(&events.Overlay{ID: r.id, Kind: ident.Rollback, Reason: "bad", Values: []ident.OverlayValue{v}})
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
	ev := events.Event{ID: o.newID(), Body: b, Actor: o.name}
	for range 5 {
		ack, err := o.log.Append(context.Background(), []events.Event{ev}, events.Fence{})
		if err == nil {
			if ack.Seq == 0 {
				panic(fmt.Sprintf("sim: memlog does not say where %s is", ev.ID))
			}
			return ack.Seq
		}
	}
	return 0
}
