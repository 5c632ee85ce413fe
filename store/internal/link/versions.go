package link

import (
	"cmp"
	"errors"
	"fmt"
	"iter"
	"slices"

	"meshlog.dev/proto/ident"
	"meshlog.dev/store"
)

// Entry is a message of the stream that holds a chain.
type Entry interface {
	// Position returns the message's sequence on the stream.
	Position() uint64
	// Link returns the manifest of the version that the message holds, or why it
	// holds none.
	Link() (*store.Manifest, error)
}

// Versions yields the versions of a chain, newest first. back yields the messages
// of its stream, newest first. A message that holds no version, or one that does
// not follow the version before it, is passed over: foreign (nil: nothing) gets
// it and the reason, before Versions yields an older version.
//
// A version is known by its predecessor, so Versions reads one message more than
// it yields. The oldest message of the stream that can be read counts as a
// version.
func Versions[E Entry](back iter.Seq2[E, error], foreign func(E, error)) iter.Seq2[E, error] {
	w := walk[E]{foreign: foreign}
	return func(yield func(E, error) bool) {
		for e, err := range back {
			if err != nil {
				yield(e, err)
				return
			}
			for _, v := range w.add(e) {
				if !yield(v, nil) {
					return
				}
			}
		}
		for _, v := range w.end() {
			if !yield(v, nil) {
				return
			}
		}
	}
}

// Head returns the newest version of a chain, false if there is none, and the
// messages behind it that are no versions, nil if there are none. back yields the
// messages of the chain's stream, newest first.
func Head[E Entry](back iter.Seq2[E, error]) (head E, found bool, foreign *store.ForeignError, err error) {
	var passed []*store.ForeignError
	pass := func(e E, why error) { passed = append(passed, &store.ForeignError{Seq: e.Position(), Reason: why}) }
	for head, err = range Versions(back, pass) {
		if err != nil {
			return head, false, nil, err
		}
		found = true
		break
	}
	for _, e := range passed {
		switch {
		case found && e.Seq < head.Position():
			continue
		case foreign == nil:
			foreign = &store.ForeignError{Seq: e.Seq, Reason: e.Reason}
		case e.Seq > foreign.Seq:
			foreign.Seq, foreign.Reason = e.Seq, e.Reason
		}
		foreign.Messages++
	}
	return head, found, foreign, nil
}

// maxForeign is how many messages Foreign returns.
const maxForeign = 1000

// Foreign returns the messages of a chain's stream that are no versions, the
// newest ones. back yields all messages of the stream, newest first.
func Foreign[E Entry](back iter.Seq2[E, error]) ([]store.ForeignError, error) {
	var all []store.ForeignError
	pass := func(e E, why error) {
		all = append(all, store.ForeignError{Seq: e.Position(), Reason: why, Messages: 1})
	}
	for _, err := range Versions(back, pass) {
		if err != nil {
			return nil, err
		}
		if len(all) >= maxForeign {
			break
		}
	}
	slices.SortFunc(all, func(a, b store.ForeignError) int { return cmp.Compare(b.Seq, a.Seq) })
	return all[:min(len(all), maxForeign)], nil
}

// walk goes back through the messages of a stream.
type walk[E Entry] struct {
	foreign func(E, error)
	last    *store.Manifest // of the oldest version found; nil: none yet
	open    []E             // read after last, newest first, and not known to be versions
}

// add takes the next older message, and returns the versions that it reveals.
func (w *walk[E]) add(e E) []E {
	m, err := e.Link()
	switch {
	case err != nil:
		w.pass(e, err)
		return nil
	case w.last != nil && Follows(m, w.last):
		for _, o := range w.open {
			w.pass(o, errNotFollowing)
		}
		w.open, w.last = w.open[:0], m
		return []E{e}
	case w.last == nil && len(w.open) > 0 && Follows(m, manifest(w.open[len(w.open)-1])):
		return append(w.resolve(), w.add(e)...)
	}
	w.open = append(w.open, e)
	return nil
}

// resolve returns the versions among the open messages, of which the oldest is one.
func (w *walk[E]) resolve() (found []E) {
	i := len(w.open) - 1
	newest := manifest(w.open[i])
	w.last, found = newest, append(found, w.open[i])
	for _, e := range slices.Backward(w.open[:i]) {
		if m := manifest(e); Follows(newest, m) {
			newest, found = m, append(found, e)
			continue
		}
		prev, _ := store.PreviousOf(manifest(e))
		w.pass(e, fmt.Errorf("%w: it was made after %s, and the version before it is %s", errNotFollowing, orNone(prev), store.VersionOf(newest.GetVersion())))
	}
	w.open = nil
	slices.Reverse(found)
	return found
}

// end returns the versions that are known when the stream has no older message.
func (w *walk[E]) end() []E {
	if w.last == nil && len(w.open) > 0 {
		return w.resolve()
	}
	for _, o := range w.open {
		w.pass(o, errNoLead)
	}
	return nil
}

func (w *walk[E]) pass(e E, why error) {
	if w.foreign != nil {
		w.foreign(e, why)
	}
}

var (
	errNotFollowing = errors.New("does not follow the version before it")
	errNoLead       = errors.New("no later version follows it")
)

// manifest returns the manifest of a message that holds one.
func manifest[E Entry](e E) *store.Manifest {
	m, _ := e.Link()
	return m
}

func orNone(v ident.Position) string {
	if v.IsZero() {
		return "no version"
	}
	return v.String()
}

// Back keeps of run, messages of a stream, oldest first, the ones that lead to
// next, and drops those between them that are no versions of the chain.
func Back[E Entry](run []E, next *store.Manifest) []E {
	var kept []E
	for _, e := range slices.Backward(run) {
		if m, err := e.Link(); err == nil && Follows(m, next) {
			next, kept = m, append(kept, e)
		}
	}
	slices.Reverse(kept)
	return kept
}
