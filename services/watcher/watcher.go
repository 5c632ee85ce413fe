// Package watcher is the contract of a source adapter, and the loop that puts
// what it sees on the log: sessions, listings, heartbeats, retries.
package watcher

import (
	"context"
	"time"

	"meshlog.dev/proto/ident"
	"meshlog.dev/services/mesh/problem"
)

// Watcher observes one source instance. Implementations know nothing of
// sessions, retries or the log: they say what the source holds, then what
// changes.
type Watcher interface {
	// Run calls sink.List once with everything that the source holds, read
	// after Run was called, then sink.Change for every change until ctx is
	// done. It returns
	//   - ctx.Err() when ctx is done,
	//   - nil to be run again from the start: what could not be read before
	//     can be read now, or the source's own watch broke,
	//   - an error when the source is down: its shard stays as it is, and Run
	//     is called again after a pause that grows from 250 ms to 30 s.
	// Rather return an error than list a part: a listing that is not Partial
	// removes what it leaves out.
	Run(ctx context.Context, sink Sink) error
}

// Sink takes what a watcher sees. Its methods block while too much is
// unacknowledged, and return an error only when ctx is done or the session has
// ended: the watcher then returns it.
type Sink interface {
	List(ctx context.Context, l Listing) error
	// Change says what changed at once; it is applied at once. An object
	// whose content is what the sink knows already is dropped.
	Change(ctx context.Context, set []Object) error
	// Problems replaces what the watcher has to say about an origin (a file):
	// what cannot be put on the log because its key is not known.
	Problems(origin string, ds []problem.Diagnostic)
}

// Listing is everything that a source holds.
type Listing struct {
	Objects []Object // no key twice
	// Partial says that something could not be read: Objects is applied, and
	// nothing is removed.
	Partial bool
	// Kinds are the kinds that the source can be read for, in any order; nil:
	// all. Objects of other kinds stay as they are: nothing of them is removed,
	// and they count in no digest; one that is seen all the same may be listed
	// and counts. For other kinds Run returns nil, to be run again. A source
	// that can be read for no kind is down: Run returns an error instead.
	Kinds []string
}

// Object is one object of the source, or (Delete) its end. Source and
// instance are the sink's business.
type Object struct {
	Kind, Namespace, Name string
	Delete                bool
	Value                 ident.Value
	SourceVersion         string
	Origin                string // "file:line"
	Actor                 string
	Trace                 string    // W3C traceparent of what caused it, where the source says
	Observed              time.Time // when the watcher saw the change
}
