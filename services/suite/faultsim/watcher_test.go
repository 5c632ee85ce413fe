package faultsim

import (
	"context"
	"errors"
	"fmt"
	"time"

	"meshlog.dev/events"
	"meshlog.dev/proto/ident"
	reportv1 "meshlog.dev/proto/meshlog/report/v1"
	"meshlog.dev/services/watcher"
)

// watcherProc is a watcher.Publisher. It is also the publisher's Inbox, fed by the
// source's watch, and its Leader.
type watcherProc struct {
	proc
	src   *source
	shard ident.Shard
	log   *logPort
	skew  time.Duration // how far its clock is ahead: one of the twins was paused

	requests []string

	// State of the source's watch.
	running bool
	listed  bool
	partial bool            // the listing was incomplete
	hidden  string          // the kind that was unreadable
	named   bool            // the listing named all kinds
	early   []watcher.Input // inputs that arrived before Wait
	off     int             // operations of the source that the watch has shown
}

func newWatcher(s *sim, name string, src *source) *watcherProc {
	w := &watcherProc{proc: proc{s: s, name: name}, src: src, shard: shardOf(src.n)}
	w.log = &logPort{proc: &w.proc}
	w.body = w.run
	return w
}

func (w *watcherProc) run() {
	w.requests, w.skew = nil, 0
	w.Rest()
	p := watcher.NewPublisher(watcher.Config{
		Shard: w.shard, Holder: w.name, Log: w.log, Leader: w, NewID: w.newID, Logger: w.s.logger(w.name),
	}, w)
	panic(fmt.Sprintf("%s ends: %v", w.name, p.Run(context.Background())))
}

// asked receives the leader's request for a new listing.
func (w *watcherProc) asked(r *reportv1.ListingRequest) {
	if w.next != nil && len(w.requests) < 4 {
		w.requests = append(w.requests, r.GetReason())
	}
}

// Now implements watcher.Inbox.
func (w *watcherProc) Now() time.Time { return w.s.time().Add(w.skew) }

// Watch implements watcher.Inbox.
func (w *watcherProc) Watch(context.Context) {
	w.Rest()
	w.running, w.requests = true, nil
	if w.s.rnd.IntN(2) == 0 {
		w.early = append(w.early, w.input())
	}
}

// Rest implements watcher.Inbox.
func (w *watcherProc) Rest() { w.running, w.listed, w.partial, w.early = false, false, false, nil }

// Wait implements watcher.Inbox.
func (w *watcherProc) Wait(_ context.Context, until time.Time) (watcher.Input, error) {
	for {
		if w.dying {
			return nil, errKilled
		}
		w.pause()
		if w.s.faults && w.s.rnd.IntN(250) == 0 {
			w.s.note("%s: its clock jumps", w.name)
			w.skew += 31 * time.Second
		}
		if len(w.early) > 0 {
			in := w.early[0]
			w.early = w.early[1:]
			return in, nil
		}
		if in := w.input(); in != nil {
			return in, nil
		}
		if !w.Now().Before(until) {
			return nil, nil
		}
		if len(w.requests) > 0 {
			r := w.requests[0]
			w.requests = w.requests[1:]
			return watcher.Requested{Reason: r}, nil
		}
	}
}

var errDown = errors.New("the source is down")

// input returns the next input of the source's watch, or nil.
func (w *watcherProc) input() watcher.Input {
	src := w.src
	ended := func(err error) watcher.Input {
		w.s.note("%s: its watch ends: %s", w.name, outcome(err))
		w.running = false
		return watcher.Ended{Err: err}
	}
	switch {
	case !w.running:
		return nil
	case !w.listed && src.down:
		return ended(errDown)
	case !w.listed:
		var l watcher.Listing
		l, w.off = src.list()
		w.listed, w.partial, w.hidden, w.named = true, l.Partial, src.hidden, src.named
		w.s.note("%s lists %d, partial %t, kinds %v", w.name, len(l.Objects), l.Partial, l.Kinds)
		return watcher.Listed{Listing: l}
	case src.down && w.s.faults && w.s.rnd.IntN(20) == 0:
		return ended(errDown)
	case src.down:
		return nil
	case w.partial && !src.partial, w.hidden != src.hidden, w.named != src.named:
		return ended(nil)
	case w.off == len(src.ops):
		return nil
	case w.s.faults && w.s.rnd.IntN(10) == 0:
		return ended(nil)
	}
	set := src.readable(src.ops[w.off])
	w.off++
	var objects []watcher.Object
	for _, c := range set {
		objects = append(objects, object(c))
	}
	return watcher.Changed{Set: objects}
}

// Digests implements watcher.Leader.
func (w *watcherProc) Digests(_ context.Context, shard ident.Shard, session string, kinds events.Kinds) (*events.ShardDigests, error) {
	for range 8 { // 3 s
		if w.dying {
			return nil, errKilled
		}
		w.pause()
		for _, b := range w.s.builders {
			if b.m == nil || !w.s.heard() {
				continue
			}
			if d, ok := b.m.Digests(shard, session, kinds); ok {
				return d, nil
			}
		}
	}
	return nil, errUnknown
}
