package keyexchange

import (
	"errors"
	"fmt"
	"slices"
	"sync"

	"github.com/nats-io/nkeys"
	"google.golang.org/protobuf/proto"

	keyv1 "meshlog.dev/proto/meshlog/key/v1"
)

// remembered is how many requests a Door recognizes: those of minutes at the rate at
// which it could answer them.
const remembered = 1 << 14

// Door opens the requests that reach a watcher, each once. The zero Door is ready. It is
// safe for concurrent use.
//
// A Door remembers its last 16384 requests. An older one that is replayed, or one that is
// replayed to another process, is answered; no process has the key to that answer.
type Door struct {
	mu    sync.Mutex
	seen  map[[nonceSize]byte]bool
	order [][nonceSize]byte // a ring, once it is full
	next  int
}

// Asked is a request that a Door has opened.
type Asked struct {
	Want
	Sender string // the public xkey of the frontend

	nonce    []byte
	answerTo string
}

// Errors of Door.Open.
var (
	// ErrSender says that the sender of a request is not in the list.
	ErrSender = errors.New("comes from a frontend that is not in the list of public keys: give this watcher the newest list of `meshlog bus-auth`, if the frontend may have keys")
	// ErrReplayed says that a request has come before.
	ErrReplayed = errors.New("has come before: a process of the bus replays requests for keys")
)

// Open opens a request that is sealed to the watcher's own xkey by one of the senders.
func (d *Door) Open(own nkeys.KeyPair, senders []string, request []byte) (*Asked, error) {
	if n := len(request); n <= publicSize || n > maxRequest {
		return nil, fmt.Errorf("request for a key: has %d bytes, want %d to %d", n, publicSize+1, maxRequest)
	}
	sender := string(request[:publicSize])
	if !slices.Contains(senders, sender) {
		return nil, fmt.Errorf("request for a key: %w", ErrSender)
	}
	plain, err := own.Open(request[publicSize:], sender)
	if err != nil {
		return nil, fmt.Errorf("request for a key: was changed, or sealed to another watcher: %w", err)
	}
	var m keyv1.Request
	if err := proto.Unmarshal(plain, &m); err != nil {
		return nil, fmt.Errorf("request for a key: %w", err)
	}
	a := &Asked{Sender: sender, nonce: m.GetNonce(), answerTo: m.GetAnswerTo()}
	a.Shard.Source, a.Shard.Instance = m.GetSource(), m.GetInstance()
	a.Namespace, a.Name, a.Sums = m.GetNamespace(), m.GetName(), m.GetSums()
	err = a.check()
	switch {
	case err != nil:
	case len(a.nonce) != nonceSize || !IsPublic(a.answerTo):
		err = errors.New("has no nonce, or no key for the answer")
	case !d.first([nonceSize]byte(a.nonce)):
		err = ErrReplayed
	}
	if err != nil {
		return nil, fmt.Errorf("request for a key: %w", err)
	}
	return a, nil
}

// first reports whether a nonce is new, and remembers it.
func (d *Door) first(nonce [nonceSize]byte) bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.seen[nonce] {
		return false
	}
	if d.seen == nil {
		d.seen = map[[nonceSize]byte]bool{}
	}
	if len(d.order) < remembered {
		d.order = append(d.order, nonce)
	} else {
		delete(d.seen, d.order[d.next])
		d.order[d.next] = nonce
		d.next = (d.next + 1) % remembered
	}
	d.seen[nonce] = true
	return true
}

// Seal returns an answer, sealed with the watcher's own xkey for this request. It does
// not wipe the answer.
func (a *Asked) Seal(own nkeys.KeyPair, answer *Answer) ([]byte, error) {
	size := 0
	for _, b := range answer.Fields {
		size += len(b)
	}
	if size > MaxFields {
		return nil, fmt.Errorf("answer: the fields have %d bytes, want at most %d", size, MaxFields)
	}
	plain, err := proto.Marshal(&keyv1.Answer{
		Nonce: a.nonce, Outcome: answer.Outcome, Fields: answer.Fields, Reason: cut(answer.Reason),
	})
	if err != nil {
		return nil, err
	}
	defer clear(plain)
	return own.Seal(plain, a.answerTo)
}

// cut shortens a reason to what an answer may have, as valid text.
func cut(reason string) string {
	if len(reason) <= maxReason {
		return reason
	}
	end := maxReason
	for end > 0 && reason[end]&0xc0 == 0x80 { // within a character
		end--
	}
	return reason[:end]
}
