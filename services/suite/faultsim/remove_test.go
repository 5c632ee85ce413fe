package faultsim

import (
	"context"
	"errors"

	"meshlog.dev/events"
)

// remover is an operator that takes away a source that is no more, as
// `meshlog sources remove` does.
type remover struct {
	proc
	src *source
	log *logPort
}

func newRemover(s *sim, src *source) *remover {
	r := &remover{proc: proc{s: s, name: "rm"}, src: src}
	r.log = &logPort{proc: &r.proc}
	r.body = r.run
	return r
}

// patience is how many times it looks before it says something again.
const patience = 400

func (r *remover) run() {
	for {
		r.pause()
		if !r.there() {
			continue
		}
		r.speak()
		for i := 0; i < patience && r.there(); i++ {
			r.pause()
		}
	}
}

// there says whether the source still has something in the head.
func (r *remover) there() bool {
	head := r.s.head()
	if head == nil {
		return false
	}
	for k := range head.src {
		if k.Shard() == shardOf(r.src.n) {
			return true
		}
	}
	return false
}

// speak says an empty listing in the source's place.
func (r *remover) speak() {
	ctx := context.Background()
	shard := shardOf(r.src.n)
	subject := events.ControlSubject(shard)
	last, err := r.log.Last(ctx, subject)
	if err != nil && !errors.Is(err, events.ErrNotFound) { // retention may have taken it
		return
	}
	session := r.newID() + "-1"
	seq := last.Seq
	for _, body := range []events.Body{
		&events.Begin{Shard: shard, Session: session, Holder: r.name},
		&events.Alive{Shard: shard, Session: session, Low: 1, Digest: new(events.ShardDigests).Sum(), Listed: events.AllBuckets()},
	} {
		e := events.Event{ID: r.newID(), Actor: r.name, Body: body}
		ack, err := r.log.Append(ctx, []events.Event{e}, events.Fence{Kind: events.FenceSubject, Subject: subject, Seq: seq})
		if err != nil {
			return
		}
		seq = ack.Seq
	}
}
