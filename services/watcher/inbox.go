package watcher

import (
	"context"
	"errors"
	"time"

	"meshlog.dev/services/mesh/problem"
)

// Inbox provides a Publisher with its inputs and the time. One goroutine uses it. Run
// makes one; the simulation has its own.
type Inbox interface {
	Now() time.Time
	// Watch runs the watcher from the start. It drops the inputs of an earlier
	// run and earlier requests for a listing.
	Watch(ctx context.Context)
	// Rest ends the watcher's run.
	Rest()
	// Wait returns the next input, or nil at until. If until is not in the
	// future, Wait does not block. The error is ctx's.
	Wait(ctx context.Context, until time.Time) (Input, error)
}

// Input is one of Listed, Changed, Reported, Ended and Requested.
type Input interface{ isInput() }

// Listed is Sink.List.
type Listed struct{ Listing Listing }

// Changed is Sink.Change.
type Changed struct{ Set []Object }

// Reported is Sink.Problems.
type Reported struct {
	Origin      string
	Diagnostics []problem.Diagnostic
}

// Ended is the last input of a run, with the error of Watcher.Run.
type Ended struct{ Err error }

// Requested asks for a new listing.
type Requested struct{ Reason string }

func (Listed) isInput()    {}
func (Changed) isInput()   {}
func (Reported) isInput()  {}
func (Ended) isInput()     {}
func (Requested) isInput() {}

// queued is how many inputs of a run wait before its sink blocks.
const queued = 64

// inbox is the Inbox of a process.
type inbox struct {
	watcher  Watcher
	requests <-chan string

	// The run under way; all nil if there is none.
	inputs chan Input
	cancel context.CancelFunc
	ended  chan struct{}
}

// NewInbox returns the Inbox of a process. It runs w. requests yields the reasons
// for which the leader asks for a new listing, and may be nil.
func NewInbox(w Watcher, requests <-chan string) Inbox {
	return &inbox{watcher: w, requests: requests}
}

func (b *inbox) Now() time.Time { return time.Now() }

func (b *inbox) Watch(ctx context.Context) {
	b.Rest()
	for len(b.requests) > 0 {
		<-b.requests
	}
	ctx, b.cancel = context.WithCancel(ctx)
	inputs, ended := make(chan Input, queued), make(chan struct{})
	b.inputs, b.ended = inputs, ended
	go func() {
		defer close(ended)
		s := sink{inputs, ctx.Done()}
		err := b.watcher.Run(ctx, s)
		_ = s.put(ctx, Ended{err}) // when ctx is done, its error does not matter
	}()
}

func (b *inbox) Rest() {
	if b.cancel == nil {
		return
	}
	b.cancel()
	<-b.ended
	b.inputs, b.cancel, b.ended = nil, nil, nil
}

func (b *inbox) Wait(ctx context.Context, until time.Time) (Input, error) {
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	var due <-chan time.Time // nil if something waits
	if d := time.Until(until); d > 0 {
		due = time.After(d)
	} else if len(b.inputs)+len(b.requests) == 0 {
		return nil, nil
	}
	select {
	case in := <-b.inputs:
		return in, nil
	case reason := <-b.requests:
		return Requested{reason}, nil
	case <-due:
		return nil, nil
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

// sink is the Sink of one run.
type sink struct {
	inputs chan<- Input
	done   <-chan struct{} // of the run
}

// errNoKind: on the log, a session without kinds covers all kinds.
var errNoKind = errors.New("the source can be read for no kind")

func (s sink) List(ctx context.Context, l Listing) error {
	if l.Kinds != nil && len(l.Kinds) == 0 {
		return errNoKind
	}
	return s.put(ctx, Listed{l})
}

func (s sink) Change(ctx context.Context, set []Object) error {
	return s.put(ctx, Changed{set})
}

func (s sink) Problems(origin string, ds []problem.Diagnostic) {
	_ = s.put(context.Background(), Reported{origin, ds}) // it fails only after the run has ended
}

func (s sink) put(ctx context.Context, in Input) error {
	select {
	case s.inputs <- in:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	case <-s.done:
		return context.Canceled
	}
}
