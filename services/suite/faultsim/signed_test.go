package faultsim

import (
	"bytes"
	"context"
	"crypto/ed25519"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"meshlog.dev/events"
	"meshlog.dev/proto/ident"
	configv1 "meshlog.dev/proto/meshlog/config/v1"
	"meshlog.dev/services/mesh/fold"
	"meshlog.dev/services/mesh/permit"
)

// signer signs what the operator appends, and what an attacker appends who has the bus key
// of operators and no key of an operator.
type signer struct {
	rnd    *rand.Rand // of the attacker, so that a schedule's other choices are the same without it
	number uint64
	// valid holds, for each record of an operator, whether it must count.
	valid map[ident.Hash]bool
	// fold has read the log so far, and found the records in void to be so.
	fold *fold.Fold
	void map[ident.Hash]bool
}

func newSigner(seed uint64) signer {
	return signer{rnd: rand.New(rand.NewPCG(seed, 4)), valid: map[ident.Hash]bool{}, void: map[ident.Hash]bool{}}
}

// evil begins the ids of the attacker's overlays.
const evil = "evil-"

// signingKey returns a key: 0 and 1 are of the operator, any other one is of nobody.
func signingKey(n byte) ed25519.PrivateKey {
	return ed25519.NewKeyFromSeed(bytes.Repeat([]byte{n}, ed25519.SeedSize))
}

func publicKey(n byte) (k permit.Key) {
	copy(k[:], signingKey(n).Public().(ed25519.PublicKey))
	return k
}

// simOperators is the operator of schedules in which operators sign.
func simOperators() []*configv1.Operator {
	return []*configv1.Operator{{Name: "op", Keys: []string{permit.KeyText(publicKey(0)), permit.KeyText(publicKey(1))}}}
}

// folded returns a fold of the whole log, as a command that follows the log has it.
func (s *sim) folded() *fold.Fold {
	all, f := s.records(), s.signer.fold
	if f == nil || f.Position().Seq > uint64(len(all)) || all[f.Position().Seq-1].Hash != f.RecordHash() {
		f = fold.New(buildA, s.judge(buildA))
	}
	s.apply(f, all[f.Position().Seq:], func(rec events.Record) { s.signer.void[rec.Hash] = f.Verdict().Void != "" })
	s.signer.fold = f
	return f
}

// apply calls seen after each record that f applies.
func (s *sim) apply(f *fold.Fold, records []events.Record, seen func(events.Record)) {
	for _, rec := range records {
		if _, _, err := f.Apply(rec, s.baseOf(f, rec)); err != nil {
			panic(err)
		}
		seen(rec)
	}
}

// sign returns records with the signature of a key, as one that reads the whole log makes it.
func (s *sim) sign(key byte, batch []events.Event) []events.Event {
	f := s.folded()
	signed := slices.Clone(batch)
	for i, e := range batch {
		s.signer.number++
		var err error
		if signed[i], err = events.Sign(e, signingKey(key), f.Segment().ID, f.Position(), s.signer.number); err != nil {
			panic(err)
		}
	}
	return signed
}

// counts reports whether the record with that number counts.
func (s *sim) counts(seq uint64) bool {
	s.folded()
	return seq <= s.last() && !s.signer.void[s.records()[seq-1].Hash]
}

// forgeOperator appends a record that no operator has signed for this place on the log.
func (s *sim) forgeOperator() {
	if s.head() == nil {
		return
	}
	rnd := s.signer.rnd
	var own []events.Event // what the operator has signed
	for _, r := range s.records() {
		if r.Err == nil && r.Event.Signature != nil {
			own = append(own, r.Event)
		}
	}
	id := fmt.Sprint(evil, rnd.Uint64())
	e := events.Event{ID: id, Actor: "op", Body: s.evilOverlay(id)}
	how := "unsigned"
	switch n := rnd.IntN(4); {
	case n == 0:
		e = s.sign(2, []events.Event{e})[0]
		how = "signed by a stranger"
	case n == 1 && len(own) > 0:
		e, how = own[rnd.IntN(len(own))], "replayed"
		if o, ok := e.Body.(*events.Overlay); ok && s.rewinds > 0 {
			// The rewind may have taken the first one from the log: then this one counts.
			s.unsure[o.ID] = true
		}
	case n == 2 && len(own) > 0:
		e.Signature, how = own[rnd.IntN(len(own))].Signature, "with a moved signature"
	}
	data, err := events.Encode(e)
	if err != nil {
		panic(err)
	}
	subject, err := events.SubjectOf(e)
	if err != nil {
		panic(err)
	}
	s.note("forged, %s: record %d: %s", how, s.log.AppendRaw(subject, data), describe([]events.Event{e}))
}

// evilOverlay returns what an attacker would have an operator say.
func (s *sim) evilOverlay(id string) *events.Overlay {
	rnd, head := s.signer.rnd, s.head()
	switch n := rnd.IntN(5); {
	case n == 0 && len(head.overlays) > 0:
		o := head.overlays[rnd.IntN(len(head.overlays))]
		if o.Kind != ident.Rollout {
			return &events.Overlay{ID: o.ID, Remove: true}
		}
		staging := &ident.Staging{State: o.Rollout.State, Ordered: true}
		if o.ForSome() && rnd.IntN(2) == 0 {
			return &events.Overlay{ID: o.ID, Kind: ident.Rollout, Rollout: &ident.Staging{State: ident.RolloutStopped, Step: 1, Ordered: true}}
		}
		return &events.Overlay{ID: o.ID, Kind: ident.Rollout, Remove: true, Rollout: staging}
	case n == 1:
		return &events.Overlay{ID: id, Kind: ident.Freeze, Reason: "evil", Scope: &ident.Scope{Shard: shardOf(rnd.IntN(sources))}}
	case n == 2:
		return &events.Overlay{ID: id, Kind: ident.Pin, Reason: "evil", Proxies: &ident.Proxies{Namespace: pinnedNamespace}}
	}
	k := keyOf(rnd.IntN(sources), config, rnd.IntN(perKind))
	return &events.Overlay{ID: id, Kind: ident.Rollback, Reason: "evil", Values: []ident.OverlayValue{{Key: k}}}
}

// judgeSigned decides, without the fold, which records of operators must count. The fold only
// says in which epoch a record is, and whether there are operators.
func (s *sim) judgeSigned() {
	type mark struct{ seq, number uint64 }
	last := map[permit.Key]mark{}
	epoch, begun, named := uint64(0), "", false
	f := fold.New(buildA, s.judge(buildA))
	s.apply(f, s.records(), func(rec events.Record) {
		defer func() {
			if at := f.Segment(); at.Epoch != epoch {
				clear(last)
				epoch, begun = at.Epoch, at.ID
			}
			named = len(f.Operators()) > 0
		}()
		if rec.Err != nil || !named || !fold.OfOperators(rec.Event) {
			return
		}
		sig, ok := rec.Event.Signature, false
		if sig != nil && slices.Contains([]permit.Key{publicKey(0), publicKey(1)}, sig.Key) && sig.Valid() {
			at, was := mark{sig.Read.Seq, sig.Number}, last[sig.Key]
			later := at.seq > was.seq || at.seq == was.seq && at.number > was.number
			if ok = later && sig.Read.Epoch == epoch && sig.EpochID == begun && sig.Read.Seq < rec.Seq; ok {
				last[sig.Key] = at
			}
		}
		s.signer.valid[rec.Hash] = ok
	})
}

// checkSigned checks SIM-12 for a record that a fold has just applied, and whether that has
// changed the content.
func (s *sim) checkSigned(f *fold.Fold, rec events.Record, changed bool) {
	valid, judged := s.signer.valid[rec.Hash]
	switch v := f.Verdict(); {
	case !judged:
	case valid != (v.Void == "") || valid != (v.Operator == "op"):
		fail("SIM-12", "record %d of an operator must count: %t; the fold says %+v", rec.Seq, valid, v)
	case !valid && changed:
		fail("SIM-12", "record %d is void and changes the content", rec.Seq)
	}
}

// checkEvil checks SIM-12 for a version: it has no overlay of an attacker.
func (s *sim) checkEvil(v *version) {
	for _, o := range v.overlays {
		if strings.HasPrefix(o.ID, evil) {
			fail("SIM-12", "version %s has %s, which no operator has signed", v.v, o.ID)
		}
	}
}

// appendSigned is appendAll of an operator who signs. A record that does not count is as one
// whose append got no answer.
func (o *operatorProc) appendSigned(batch []events.Event) uint64 {
	batch = o.s.sign(byte(o.s.rnd.IntN(2)), batch)
	for range 5 {
		ack, err := o.log.Append(context.Background(), batch, events.Fence{})
		if err != nil {
			continue
		}
		if !o.s.counts(ack.Seq) {
			o.s.note("  op: record %d does not count", ack.Seq)
			return 0
		}
		return ack.Seq
	}
	return 0
}

// TestSigned runs schedules in which the operator signs, and an attacker with the operators'
// key of the bus appends unsigned records, copies, moved signatures, and records that a
// stranger has signed; in half of them with rollouts.
func TestSigned(t *testing.T) {
	if *faults != "" {
		return // TestSim runs the faults that the flag names
	}
	simulate(t, *seeds/3, func(seed uint64) string { return []string{"sign", "signroll"}[seed%2] })
}
