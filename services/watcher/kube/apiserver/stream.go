package apiserver

import (
	"context"
	"slices"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/watch"
)

// stream is a watch that converts its objects and ends after a long silence.
type stream struct {
	in   watch.Interface
	feed *Feed
	out  chan watch.Event
	stop func()
	end  context.CancelFunc // cancels the request
	over chan struct{}      // closed by Stop
	done chan struct{}      // closed when run has returned
}

func newStream(in watch.Interface, f *Feed, end context.CancelFunc) *stream {
	s := &stream{in: in, feed: f, end: end, out: make(chan watch.Event), over: make(chan struct{}), done: make(chan struct{})}
	s.stop = sync.OnceFunc(func() { close(s.over) })
	go s.run()
	return s
}

// ResultChan implements watch.Interface.
func (s *stream) ResultChan() <-chan watch.Event { return s.out }

// Stop implements watch.Interface; the stream has ended when it returns.
func (s *stream) Stop() {
	s.stop()
	<-s.done
}

func (s *stream) run() {
	defer close(s.done)
	defer close(s.out)
	defer s.end()
	defer s.in.Stop()
	idle := time.NewTimer(s.feed.o.Limits.Idle)
	defer idle.Stop()
	for {
		select {
		case e, ok := <-s.in.ResultChan():
			if !ok {
				return
			}
			idle.Reset(s.feed.o.Limits.Idle)
			if e, ok = s.convert(e); !ok {
				continue
			}
			select {
			case s.out <- e:
			case <-s.over:
				return
			}
		case <-idle.C:
			return
		case <-s.over:
			return
		}
	}
}

// convert converts an event. ok is false if the event is to be dropped.
func (s *stream) convert(e watch.Event) (watch.Event, bool) {
	if !slices.Contains([]watch.EventType{watch.Added, watch.Modified, watch.Deleted}, e.Type) {
		s.feed.hear(time.Now())
		return e, true
	}
	o, ok := s.feed.arrive(e.Object)
	e.Object = o
	if ok || e.Type == watch.Deleted {
		return e, true
	}
	if e.Type == watch.Added {
		return e, false
	}
	e.Type = watch.Deleted
	return e, true
}
