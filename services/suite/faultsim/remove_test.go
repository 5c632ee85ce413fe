package faultsim

import (
	"context"
	"errors"

	"meshlog.dev/events"
)

// remover is an operator that removes a source that has ended, as `meshlog sources
// remove` does.
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

// patience is how often the remover checks before it publishes again.
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

// there reports whether the head still holds objects of the source.
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

// speak publishes an empty listing for the source.
func (r *remover) speak() {
	ctx := context.Background()
	shard := shardOf(r.src.n)
	subject := events.ControlSubject(shard)
	last, err := r.log.Last(ctx, subject)
	if err != nil && !errors.Is(err, events.ErrNotFound) { // retention may have removed it
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
