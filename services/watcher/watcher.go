// Package watcher is the contract of a source adapter, and the publisher that
// puts the adapter's objects on the log: sessions, listings, heartbeats, retries.
package watcher

import (
	"cmp"
	"context"
	"time"

	"meshlog.dev/proto/ident"
	"meshlog.dev/services/mesh/problem"
)

// Watcher observes one source instance: it lists the source's objects, then
// reports changes. The publisher handles sessions, retries and the log.
type Watcher interface {
	// Run calls sink.List once with everything that the source holds, read
	// after Run was called, then sink.Change for every change until ctx is
	// done. It returns
	//   - ctx.Err() when ctx is done,
	//   - nil to be run again from the start: something unreadable has become
	//     readable, or the source's own watch broke,
	//   - an error if the source is down: its shard does not change, and the
	//     publisher calls Run again after a pause that grows from 250 ms to 30 s.
	// Return an error rather than a part: a listing that is not Partial removes
	// the objects that it leaves out.
	Run(ctx context.Context, sink Sink) error
}

// Sink takes the objects of a watcher. Its methods block while too many changes
// are unacknowledged, and return an error only when ctx is done or the session
// has ended: the watcher then returns it.
type Sink interface {
	List(ctx context.Context, l Listing) error
	// Change reports objects that changed together; they are applied together.
	// The sink drops an object whose content has not changed.
	Change(ctx context.Context, set []Object) error
	// Problems replaces the problems of an origin (a file) that cannot be put on
	// the log because their keys are not known.
	Problems(origin string, ds []problem.Diagnostic)
}

// Listing is the whole content of a source.
type Listing struct {
	Objects []Object // no key twice
	// Partial: something could not be read, so the listing removes nothing.
	Partial bool
	// Kinds are the kinds that the source can be read for, in any order; nil:
	// all. The listing removes no objects of other kinds, and no digest covers
	// them; the watcher may list those that it sees, and they are published. If
	// the kinds change, Run returns nil, to be run again. If there is none, the
	// source is down: Run returns an error.
	Kinds []string
}

// Object is one object of the source, or (Delete) its deletion. The sink adds
// source and instance.
type Object struct {
	Kind, Namespace, Name string
	Delete                bool
	Value                 ident.Value
	SourceVersion         string
	Origin                string // "file:line"
	Actor                 string
	Trace                 string    // W3C traceparent of its cause, if the source has one
	Observed              time.Time // when the watcher saw the change
}

// Compare orders objects by kind, namespace and name.
func (o Object) Compare(p Object) int {
	return cmp.Or(cmp.Compare(o.Kind, p.Kind), cmp.Compare(o.Namespace, p.Namespace), cmp.Compare(o.Name, p.Name))
}
