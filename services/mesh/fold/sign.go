package fold

import (
	"bytes"
	"cmp"
	"errors"
	"fmt"
	"maps"
	"slices"

	"meshlog.dev/events"
	"meshlog.dev/proto/ident"
	snapshotv1 "meshlog.dev/proto/meshlog/snapshot/v1"
	"meshlog.dev/services/mesh/permit"
	"meshlog.dev/services/mesh/problem"
)

// Verdict is what the fold found about the author of a record.
type Verdict struct {
	// Operator has signed the record; empty: none has.
	Operator string
	// Void is why the record changes nothing; empty: it counts.
	Void string
}

// mark is up to where a key has signed in this epoch.
type mark struct{ seq, number uint64 }

func (m mark) compare(other mark) int {
	return cmp.Or(cmp.Compare(m.seq, other.seq), cmp.Compare(m.number, other.number))
}

// signatures are what the fold knows of an epoch's signatures.
type signatures struct {
	signed         map[permit.Key]mark
	void, lastVoid uint64 // records that no operator has signed, and the last one
	voidReason     string
}

// voidAdvice is the advice of the Diagnostic about void records.
const voidAdvice = "`meshlog log` shows the record and its author; if no operator has appended it, the key of the bus is in wrong hands: replace it"

const voidEffect = "the record changes nothing"

// Verdict returns what the fold found about the author of the last record.
func (f *Fold) Verdict() Verdict { return f.verdict }

// Operators returns the operators whose signatures count at this position; none: what
// operators append needs no signature.
func (f *Fold) Operators() permit.Operators { return f.rules.Operators }

// AssumeSigned makes the fold take the records of operators without a signature, to see
// what records would change that are not appended yet.
func (f *Fold) AssumeSigned() { f.assume = true }

// OfOperators reports whether operators append e, and not a watcher or a builder. That
// follows from the subject, and so from the permissions on the bus.
func OfOperators(e events.Event) bool {
	switch b := e.Body.(type) {
	case *events.Object:
		return b.Key.Source == ident.API
	case *events.Begin:
		return b.Shard.Source == ident.API || e.Signature != nil
	case *events.Alive:
		return b.Shard.Source == ident.API || e.Signature != nil
	case *events.Overlay:
		return !b.OfBuilder()
	}
	return false
}

// verify checks the signature of a record that needs one, and makes the operator who has
// signed it its actor. It returns false if the record is void.
func (s *step) verify(e events.Event) (events.Event, bool) {
	needed := len(s.rules.Operators) > 0 && !s.assume && OfOperators(e)
	sig := e.Signature
	if e.Signature = nil; !needed { // what is kept of e is verified
		return e, true
	}
	name, err := s.operator(sig)
	if err == nil {
		err = s.joins(e, name)
	}
	if err != nil {
		s.verdict.Void = err.Error()
		s.void, s.lastVoid, s.voidReason = s.void+1, s.seq, err.Error()
		s.warn("unsigned", fmt.Sprintf("record %d, which says that it is by %s, is void: %v", s.seq, cmp.Or(e.Actor, "an operator"), err), voidAdvice, voidEffect)
		return e, false
	}
	s.signed[sig.Key] = mark{sig.Read.Seq, sig.Number}
	s.verdict.Operator, e.Actor = name, name
	return e, true
}

// operator returns the name of the operator who has signed the record, and whether it is
// at its place on the log.
func (s *step) operator(sig *events.Signature) (string, error) {
	if sig == nil {
		return "", errors.New("it has no signature of an operator")
	}
	name, ok := s.rules.Operators[sig.Key]
	at := mark{sig.Read.Seq, sig.Number}
	last, spoke := s.signed[sig.Key]
	switch {
	case !ok:
		return "", fmt.Errorf("the key %s is of no operator in the MeshPolicy", permit.KeyText(sig.Key))
	case !sig.Valid():
		return "", fmt.Errorf("the signature of %s is for other content", name)
	case sig.Read.Epoch != s.segment.Epoch || sig.EpochID != s.segment.ID:
		return "", fmt.Errorf("%s has signed it for epoch %d of this mesh or of another one, not for this epoch", name, sig.Read.Epoch)
	case sig.Read.Seq >= s.seq:
		return "", fmt.Errorf("%s has signed it after record %d, which is not before it", name, sig.Read.Seq)
	case spoke && at.compare(last) == 0:
		return "", fmt.Errorf("%s has signed one record, and it is on the log twice", name)
	case spoke && at.compare(last) < 0:
		return "", fmt.Errorf("%s has signed it before another record that is on the log already", name)
	}
	return name, nil
}

// joins reports whether an operator may add e to what was begun: a session, or a rollback
// of several messages, is of one operator.
func (s *step) joins(e events.Event, name string) error {
	var shard ident.Shard
	var session string
	switch b := e.Body.(type) {
	case *events.Object:
		shard, session = b.Key.Shard(), b.Session
	case *events.Alive:
		shard, session = b.Shard, b.Session
	case *events.Overlay:
		if len(s.acts) == 0 || s.acts[0].event.Body.(*events.Overlay).Batch.ID != b.Batch.ID || s.acts[0].event.Actor == name {
			return nil
		}
		return fmt.Errorf("%s has signed it, and not the message that began the rollback", name)
	}
	if sh := s.shards[shard]; sh != nil && session != "" && sh.Session == session && sh.Operator != name {
		return fmt.Errorf("%s has signed it, and not the beginning of session %s", name, session)
	}
	return nil
}

// voided returns a Diagnostic about the void records of the epoch, or none.
func (f *Fold) voided() []problem.Diagnostic {
	if f.void == 0 {
		return nil
	}
	return []problem.Diagnostic{{
		Severity: problem.Warning, Code: "unsigned", Advice: voidAdvice, Effect: "these records change nothing",
		Reason: fmt.Sprintf("void records of operators in epoch %d: %d, the last one is %d: %s", f.segment.Epoch, f.void, f.lastVoid, f.voidReason),
	}}
}

func (s *signatures) save(m *snapshotv1.FoldMeta) {
	m.Void, m.LastVoid, m.VoidReason = s.void, s.lastVoid, s.voidReason
	for _, k := range slices.SortedFunc(maps.Keys(s.signed), func(a, b permit.Key) int { return bytes.Compare(a[:], b[:]) }) {
		m.Signed = append(m.Signed, &snapshotv1.FoldSigned{Key: k[:], Seq: s.signed[k].seq, Number: s.signed[k].number})
	}
}

func (s *signatures) restore(m *snapshotv1.FoldMeta) error {
	s.void, s.lastVoid, s.voidReason = m.GetVoid(), m.GetLastVoid(), m.GetVoidReason()
	for _, p := range m.GetSigned() {
		if len(p.GetKey()) != len(permit.Key{}) {
			return fmt.Errorf("%w: the key of an operator has %d bytes", ErrCorrupt, len(p.GetKey()))
		}
		s.signed[permit.Key(p.GetKey())] = mark{p.GetSeq(), p.GetNumber()}
	}
	return nil
}
