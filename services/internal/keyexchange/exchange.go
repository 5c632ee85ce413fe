// Package keyexchange seals the requests of frontends for private keys, and the answers
// of watchers, so that the bus carries neither in clear (KEY-3).
//
// A request is the public xkey of the frontend and a box of NaCl, from the frontend's
// long-lived xkey to the watcher's. The answer is a box from the watcher's xkey to a key
// that the frontend made for this request only: an attacker that records the bus, and
// later steals both long-lived keys, still opens no answer. Boxes authenticate both ways, so each side
// accepts the senders that it knows and no others (KEY-4).
//
// The package does no IO but to read random bytes. It wipes what it decodes and encodes;
// the caller wipes what it passes in or gets, with Answer.Wipe.
package keyexchange

import (
	"bytes"
	"crypto/rand"
	"errors"
	"fmt"
	"maps"
	"slices"

	"github.com/nats-io/nkeys"
	"google.golang.org/protobuf/proto"

	"meshlog.dev/proto/ident"
	keyv1 "meshlog.dev/proto/meshlog/key/v1"
)

// Limits of messages.
const (
	// MaxFields is how many bytes the fields of an answer have together at most. The
	// bus lets watchers send 600 KB.
	MaxFields = 512 << 10

	maxRequest = 8 << 10
	maxAnswer  = MaxFields + 4<<10
	maxWanted  = 16
	maxReason  = 512
	sumSize    = 32
	nonceSize  = 32
	publicSize = 56
)

// Want names fields of a credential, as a version does.
type Want struct {
	Shard           ident.Shard
	Namespace, Name string
	Sums            map[string][]byte // the HMAC of each wanted field
}

// check returns an error if w is no valid request.
func (w Want) check() error {
	switch {
	case w.Shard.Source == "" || w.Shard.Instance == "" || w.Namespace == "" || w.Name == "":
		return errors.New("names no object of a shard")
	case len(w.Sums) == 0 || len(w.Sums) > maxWanted:
		return fmt.Errorf("names %d fields, want 1 to %d", len(w.Sums), maxWanted)
	}
	for _, field := range slices.Sorted(maps.Keys(w.Sums)) {
		if n := len(w.Sums[field]); n != sumSize {
			return fmt.Errorf("the HMAC of %q has %d bytes, want %d", field, n, sumSize)
		}
	}
	return nil
}

// Answer is the answer to a request.
type Answer struct {
	Outcome keyv1.Outcome
	Fields  map[string][]byte // exactly the wanted ones, if they are given
	Reason  string            // why they are not given
}

// Wipe overwrites the fields. Copies that the caller made stay.
func (a *Answer) Wipe() { wipe(a.Fields) }

func wipe(fields map[string][]byte) {
	for _, b := range fields {
		clear(b)
	}
}

// IsPublic reports whether text is a public xkey.
func IsPublic(text string) bool { return nkeys.IsValidPublicCurveKey(text) }

// Pending is a request that waits for its answer.
type Pending struct {
	want    Want
	watcher string
	nonce   []byte
	once    nkeys.KeyPair
}

// Ask returns a request, sealed with the frontend's own xkey to that of a watcher. The
// caller wipes p if no answer comes.
func Ask(own nkeys.KeyPair, watcher string, w Want) (request []byte, p *Pending, err error) {
	if err := w.check(); err != nil {
		return nil, nil, fmt.Errorf("request for a key: %w", err)
	}
	sender, err := own.PublicKey()
	if err != nil {
		return nil, nil, err
	}
	once, err := nkeys.CreateCurveKeys()
	if err != nil {
		return nil, nil, err
	}
	p = &Pending{want: w, watcher: watcher, nonce: make([]byte, nonceSize), once: once}
	box, err := p.seal(own)
	if err == nil && len(box)+publicSize > maxRequest {
		err = fmt.Errorf("request for a key: has %d bytes, want at most %d", len(box)+publicSize, maxRequest)
	}
	if err != nil {
		p.Wipe()
		return nil, nil, err
	}
	return append([]byte(sender), box...), p, nil
}

func (p *Pending) seal(own nkeys.KeyPair) ([]byte, error) {
	answerTo, err := p.once.PublicKey()
	if err != nil {
		return nil, err
	}
	if _, err := rand.Read(p.nonce); err != nil {
		return nil, err
	}
	plain, err := proto.Marshal(&keyv1.Request{
		Source: p.want.Shard.Source, Instance: p.want.Shard.Instance, Namespace: p.want.Namespace, Name: p.want.Name,
		Sums: p.want.Sums, Nonce: p.nonce, AnswerTo: answerTo,
	})
	if err != nil {
		return nil, err
	}
	return own.Seal(plain, p.watcher)
}

// Wipe forgets the key of the answer: none can be opened after that.
func (p *Pending) Wipe() { p.once.Wipe() }

// Errors of Pending.Open.
var (
	// ErrNotOpened says that the watcher could not open the request.
	ErrNotOpened = errors.New("the watcher does not accept requests of this frontend: one of them has an older list of public keys, or another key; give both the files of the same `meshlog bus-auth`")
	// ErrForged says that bytes are no answer of the watcher to this request.
	ErrForged = errors.New("is no answer of the watcher to this request")
)

// Open returns the answer to the request, and wipes p: a request has one answer. The
// caller wipes the answer. Open does not compare HMACs, which takes their key.
func (p *Pending) Open(answer []byte) (*Answer, error) {
	defer p.Wipe()
	switch {
	case len(answer) == 0:
		return nil, ErrNotOpened
	case len(answer) > maxAnswer:
		return nil, fmt.Errorf("answer: has %d bytes, want at most %d", len(answer), maxAnswer)
	}
	plain, err := p.once.Open(answer, p.watcher)
	if err != nil {
		return nil, fmt.Errorf("answer: %w: %w", ErrForged, err)
	}
	defer clear(plain)
	var m keyv1.Answer
	err = proto.Unmarshal(plain, &m)
	if err == nil && !bytes.Equal(m.GetNonce(), p.nonce) {
		err = ErrForged
	}
	if err == nil {
		err = p.complete(&m)
	}
	if err != nil {
		wipe(m.GetFields())
		return nil, fmt.Errorf("answer: %w", err)
	}
	return &Answer{Outcome: m.GetOutcome(), Fields: m.GetFields(), Reason: m.GetReason()}, nil
}

// complete returns an error unless an answer has what its outcome says.
func (p *Pending) complete(m *keyv1.Answer) error {
	if m.GetOutcome() == keyv1.Outcome_OUTCOME_UNSPECIFIED {
		return errors.New("has no outcome")
	}
	given := slices.Sorted(maps.Keys(m.GetFields()))
	var want []string
	if m.GetOutcome() == keyv1.Outcome_OUTCOME_GIVEN {
		want = slices.Sorted(maps.Keys(p.want.Sums))
	}
	if !slices.Equal(given, want) {
		return fmt.Errorf("is %s and has the fields %q, want %q", m.GetOutcome(), given, want)
	}
	return nil
}
