package faultsim

import (
	"context"
	"slices"

	"meshlog.dev/events"
	"meshlog.dev/proto/ident"
	reportv1 "meshlog.dev/proto/meshlog/report/v1"
)

// kinds returns the kinds that a listing of the source names.
func (o *source) kinds() []string {
	switch {
	case o.hidden == config:
		return []string{endpoint}
	case o.hidden == endpoint:
		return []string{config}
	case o.named:
		return []string{config, endpoint}
	}
	return nil
}

// hide makes a kind unreadable, and the others readable.
func (o *source) hide(kind string, named bool) {
	was := o.hidden
	o.hidden, o.named = kind, named
	if was != "" && was != kind {
		for k := range o.hist {
			if k.Kind == was {
				o.seen(k)
			}
		}
	}
	o.s.note("source %d: kinds %v", o.n, o.kinds())
}

// seen records that the source could observe the absence of k, if k is absent.
func (o *source) seen(k ident.Key) {
	if o.truth[k] == 0 {
		o.gone[k] = append(o.gone[k], len(o.hist[k]))
	}
}

// leaks decides whether the watch shows an unreadable object this once. It never
// shows configs: they change in batches, and it would show a part of one.
func (o *source) leaks() bool { return o.hidden == endpoint && o.s.rnd.IntN(3) == 0 }

// readable returns the part of the changes that a watch shows.
func (o *source) readable(set []change) []change {
	leaks := o.leaks()
	return slices.DeleteFunc(slices.Clone(set), func(c change) bool {
		hidden := c.key.Kind == o.hidden && !leaks
		if !hidden && c.value == 0 { // the key may exist again by now
			o.gone[c.key] = append(o.gone[c.key], len(o.hist[c.key]))
		}
		return hidden
	})
}

// turnKinds makes a kind of a source unreadable, or readable again.
func (s *sim) turnKinds() {
	if src := s.sources[s.rnd.IntN(sources)]; !src.removed {
		src.hide([]string{"", endpoint, config}[s.rnd.IntN(3)], s.rnd.IntN(2) == 0)
	}
}

// kindRemover is an operator that removes the objects of frozen kinds, as
// `meshlog sources remove --kind` does.
type kindRemover struct {
	proc
	log *logPort
}

func newKindRemover(s *sim) *kindRemover {
	r := &kindRemover{proc: proc{s: s, name: "kr"}}
	r.log = &logPort{proc: &r.proc}
	r.body = r.run
	return r
}

func (r *kindRemover) run() {
	for {
		r.pause()
		if r.s.faults && r.s.rnd.IntN(300) == 0 {
			r.speak(r.s.sources[r.s.rnd.IntN(sources)])
		}
	}
}

// speak publishes an empty listing of the kind that the source cannot be read
// for, unless the source's session names that kind.
func (r *kindRemover) speak(src *source) {
	ctx := context.Background()
	shard, kind := shardOf(src.n), src.hidden
	subject := events.ControlSubject(shard)
	last, err := r.log.Last(ctx, subject)
	if err != nil || kind == "" || src.removed {
		return
	}
	said, ok := last.Event.Body.(*events.Alive)
	if !ok || said.Ends || said.Kinds.Cover(kind) {
		return
	}
	r.s.dropped[dropped{src.n, kind}] = true
	session := r.newID() + "-1"
	_, err = r.log.Append(ctx, []events.Event{
		{ID: r.newID(), Actor: r.name, Body: &events.Begin{Shard: shard, Session: session, Holder: r.name}},
		{ID: r.newID(), Actor: r.name, Body: &events.Alive{
			Shard: shard, Session: session, Low: 1, Digest: new(events.ShardDigests).Sum(), Listed: events.AllBuckets(),
			Kinds: events.KindsOf(kind), Ends: true,
		}},
	}, events.Fence{Kind: events.FenceSubject, Subject: subject, Seq: last.Seq})
	if err == nil {
		_ = fleetPort{&r.proc}.AskListing(ctx, &reportv1.ListingRequest{Source: shard.Source, Instance: shard.Instance, Reason: "objects were removed"})
	}
}

// dropped is a kind of a source whose objects an operator may have removed.
type dropped struct {
	source int
	kind   string
}

// checkKinds checks SIM-5: an object in a version does not vanish unless its source
// could be read for its kind when the object was absent, or an operator removed
// the kind. A new epoch continues from the version that its segment names. Newer
// objects may be lost, as after a rewind, and all of them if that version's
// content is lost too.
func (s *sim) checkKinds(v *version) {
	before := s.byName[v.prev]
	if before != nil && before.v.Epoch != v.v.Epoch {
		before = s.byName[s.epochHead(v.v.Epoch)]
	}
	if before == nil || s.rewinds > 0 {
		return
	}
	for _, k := range sortedKeys(before.src) {
		src := s.sourceOf(k)
		if _, still := v.src[k]; still || s.dropped[dropped{src.n, k.Kind}] {
			continue
		}
		since := slices.Index(src.hist[k], before.src[k])
		if !slices.ContainsFunc(src.gone[k], func(at int) bool { return at > since }) {
			fail("SIM-5", "version %s lost %s=%d, but its source was never readable while the object was absent", v.v, short(k), before.src[k])
		}
	}
}

// epochHead returns the head that an epoch continues from, zero if it starts empty.
func (s *sim) epochHead(epoch uint64) ident.Position {
	for _, r := range s.records() {
		if g, ok := r.Event.Body.(*events.Segment); ok && g.Epoch == epoch && g.EpochRecord == 0 && !g.Base.IsZero() {
			return g.Head
		}
	}
	return ident.Position{}
}
