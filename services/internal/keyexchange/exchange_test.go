package keyexchange

import (
	"bytes"
	"errors"
	"maps"
	"strings"
	"testing"

	"github.com/nats-io/nkeys"

	"meshlog.dev/proto/ident"
	keyv1 "meshlog.dev/proto/meshlog/key/v1"
)

// canary is a key that must be on no wire in clear.
const canary = "-----BEGIN PRIVATE KEY-----\ncanary\n-----END PRIVATE KEY-----\n"

var want = Want{
	Shard: ident.Shard{Source: "file", Instance: "default"}, Namespace: "shop", Name: "web",
	Sums: map[string][]byte{"tls.key": bytes.Repeat([]byte{7}, sumSize)},
}

func must(t testing.TB, errs ...error) {
	t.Helper()
	if err := errors.Join(errs...); err != nil {
		t.Fatal(err)
	}
}

// party is a process with a long-lived xkey.
type party struct {
	key    nkeys.KeyPair
	public string
}

func newParty(t testing.TB) party {
	t.Helper()
	key, err := nkeys.CreateCurveKeys()
	must(t, err)
	public, err := key.PublicKey()
	must(t, err)
	return party{key, public}
}

func given() *Answer {
	return &Answer{Outcome: keyv1.Outcome_OUTCOME_GIVEN, Fields: map[string][]byte{"tls.key": []byte(canary)}}
}

// exchange is one request that the watcher has opened and answered.
type exchange struct {
	frontend, watcher party
	door              Door
	request, answer   []byte
	pending           *Pending
	asked             *Asked
}

func newExchange(t testing.TB) *exchange {
	t.Helper()
	x := &exchange{frontend: newParty(t), watcher: newParty(t)}
	var err error
	x.request, x.pending, err = Ask(x.frontend.key, x.watcher.public, want)
	must(t, err)
	x.asked, err = x.door.Open(x.watcher.key, []string{newParty(t).public, x.frontend.public}, x.request)
	must(t, err)
	x.answer, err = x.asked.Seal(x.watcher.key, given())
	must(t, err)
	return x
}

// KEY-3: the watcher reads what the frontend wants, the frontend gets the fields, and
// the bus sees neither the object nor the key. Who wipes an answer has no key any more.
func TestExchange(t *testing.T) {
	x := newExchange(t)
	if x.asked.Sender != x.frontend.public || x.asked.Shard != want.Shard || x.asked.Namespace != "shop" || x.asked.Name != "web" ||
		!maps.EqualFunc(x.asked.Sums, want.Sums, bytes.Equal) {
		t.Errorf("the watcher reads %+v", x.asked)
	}
	for what, b := range map[string][]byte{"request": x.request, "answer": x.answer} {
		for _, secret := range []string{"canary", "PRIVATE KEY", "shop", "tls.key", string(want.Sums["tls.key"])} {
			if bytes.Contains(b, []byte(secret)) {
				t.Errorf("the %s shows %q", what, secret)
			}
		}
	}
	a, err := x.pending.Open(x.answer)
	must(t, err)
	key := a.Fields["tls.key"]
	if a.Outcome != keyv1.Outcome_OUTCOME_GIVEN || string(key) != canary {
		t.Errorf("the frontend gets %s, %q", a.Outcome, key)
	}
	if a.Wipe(); len(bytes.Trim(key, "\x00")) > 0 {
		t.Errorf("after Wipe: %q", key)
	}
}

// KEY-3: an answer without fields says why.
func TestOutcomes(t *testing.T) {
	for _, outcome := range []keyv1.Outcome{
		keyv1.Outcome_OUTCOME_GONE, keyv1.Outcome_OUTCOME_CHANGED, keyv1.Outcome_OUTCOME_REFUSED, keyv1.Outcome_OUTCOME_BUSY,
	} {
		x := newExchange(t)
		sealed, err := x.asked.Seal(x.watcher.key, &Answer{Outcome: outcome, Reason: strings.Repeat("ä", maxReason)})
		must(t, err)
		a, err := x.pending.Open(sealed)
		must(t, err)
		if a.Outcome != outcome || a.Fields != nil || a.Reason != strings.Repeat("ä", maxReason/2) {
			t.Errorf("%s: %+v", outcome, a)
		}
	}
}

// KEY-3: a replayed request is refused. To another process of the shard it is new, and
// the answer is of no use: the key to it is gone.
func TestReplayedRequest(t *testing.T) {
	x := newExchange(t)
	senders := []string{x.frontend.public}
	if _, err := x.door.Open(x.watcher.key, senders, x.request); !errors.Is(err, ErrReplayed) {
		t.Errorf("the same request again: %v", err)
	}
	_, err := x.pending.Open(x.answer)
	must(t, err)
	var twin Door
	again, err := twin.Open(x.watcher.key, senders, x.request)
	must(t, err)
	sealed, err := again.Seal(x.watcher.key, given())
	must(t, err)
	if _, err := x.pending.Open(sealed); !errors.Is(err, ErrForged) {
		t.Errorf("the answer to a replayed request: %v", err)
	}
}

// KEY-3: a Door forgets its oldest request first, and no newer one.
func TestDoorForgetsOldest(t *testing.T) {
	var d Door
	nonce := func(n int) (b [nonceSize]byte) { b[0], b[1], b[2] = byte(n), byte(n>>8), byte(n>>16); return b }
	for n := range remembered + 1 {
		if !d.first(nonce(n)) {
			t.Fatalf("request %d counts as a replay", n)
		}
	}
	if d.first(nonce(1)) || d.first(nonce(remembered)) || !d.first(nonce(0)) || len(d.seen) != remembered {
		t.Errorf("%d requests are remembered, or not the newest", len(d.seen))
	}
}

// KEY-3: a replayed answer opens for no other request, not even of the same object.
func TestReplayedAnswer(t *testing.T) {
	x := newExchange(t)
	_, p, err := Ask(x.frontend.key, x.watcher.public, want)
	must(t, err)
	if _, err := p.Open(x.answer); !errors.Is(err, ErrForged) {
		t.Errorf("the answer to an earlier request: %v", err)
	}
	_, err = x.pending.Open(x.answer)
	must(t, err)
	if _, err := x.pending.Open(x.answer); !errors.Is(err, ErrForged) {
		t.Errorf("the same answer again: %v", err)
	}
	// Nor does one with the nonce of another request.
	y := newExchange(t)
	y.asked.nonce = x.asked.nonce
	sealed, err := y.asked.Seal(y.watcher.key, given())
	must(t, err)
	if _, err := y.pending.Open(sealed); !errors.Is(err, ErrForged) {
		t.Errorf("another nonce: %v", err)
	}
}

// KEY-4: a request of a sender that is not listed is refused: of a builder, an operator,
// or a frontend whose key was replaced; and one that only claims to be a listed sender
// (S40).
func TestWrongSender(t *testing.T) {
	x := newExchange(t)
	builder := newParty(t)
	request, _, err := Ask(builder.key, x.watcher.public, want)
	must(t, err)
	if _, err := x.door.Open(x.watcher.key, []string{x.frontend.public}, request); !errors.Is(err, ErrSender) {
		t.Errorf("a request of a builder: %v", err)
	}
	claimed := append([]byte(x.frontend.public), request[publicSize:]...)
	if _, err := x.door.Open(x.watcher.key, []string{x.frontend.public}, claimed); !errors.Is(err, nkeys.ErrCouldNotDecrypt) {
		t.Errorf("a builder that says it is a frontend: %v", err)
	}
	// The answer of a process that is not the watcher.
	sealed, err := x.asked.Seal(builder.key, given())
	must(t, err)
	if _, err := x.pending.Open(sealed); !errors.Is(err, ErrForged) {
		t.Errorf("an answer of a builder: %v", err)
	}
}

// KEY-4: a stale frontend, whose key was replaced, gets nothing, and learns why.
func TestStaleFrontend(t *testing.T) {
	x := newExchange(t)
	request, p, err := Ask(x.frontend.key, x.watcher.public, want)
	must(t, err)
	if _, err := x.door.Open(x.watcher.key, []string{newParty(t).public}, request); !errors.Is(err, ErrSender) {
		t.Errorf("a request of a replaced key: %v", err)
	}
	if _, err := p.Open(nil); !errors.Is(err, ErrNotOpened) {
		t.Errorf("a request that was not opened: %v", err)
	}
}

// KEY-3: a request that is sealed to another watcher opens nowhere else (S40).
func TestWrongRecipient(t *testing.T) {
	x := newExchange(t)
	request, _, err := Ask(x.frontend.key, newParty(t).public, want)
	must(t, err)
	if _, err := x.door.Open(x.watcher.key, []string{x.frontend.public}, request); !errors.Is(err, nkeys.ErrCouldNotDecrypt) {
		t.Errorf("a request to another watcher: %v", err)
	}
	if _, err := x.frontend.key.Open(x.answer, x.watcher.public); !errors.Is(err, nkeys.ErrCouldNotDecrypt) {
		t.Errorf("the frontend's long-lived key opens an answer: %v", err)
	}
}

// KEY-3: one flipped bit, anywhere, and a request or an answer is refused (S40).
func TestFlippedBits(t *testing.T) {
	x := newExchange(t)
	for i := range x.request {
		b := bytes.Clone(x.request)
		b[i] ^= 1
		if _, err := new(Door).Open(x.watcher.key, []string{x.frontend.public}, b); err == nil {
			t.Errorf("a request with another byte %d is opened", i)
		}
	}
	for i := range x.answer {
		b := bytes.Clone(x.answer)
		b[i] ^= 1
		once := *x.pending
		once.once = copyOf(t, x.pending.once)
		if _, err := once.Open(b); !errors.Is(err, ErrForged) {
			t.Errorf("an answer with another byte %d: %v", i, err)
		}
	}
}

func copyOf(t *testing.T, k nkeys.KeyPair) nkeys.KeyPair {
	t.Helper()
	seed, err := k.Seed()
	must(t, err)
	c, err := nkeys.FromCurveSeed(seed)
	must(t, err)
	return c
}

// KEY-3: messages have limits, and an answer has the wanted fields and no others.
func TestLimits(t *testing.T) {
	x := newExchange(t)
	sum := want.Sums["tls.key"]
	many := map[string][]byte{}
	for i := range maxWanted + 1 {
		many[string(rune('a'+i))] = sum
	}
	for what, change := range map[string]func(w *Want){
		"no object":       func(w *Want) { w.Name = "" },
		"no shard":        func(w *Want) { w.Shard = ident.Shard{} },
		"no field":        func(w *Want) { w.Sums = nil },
		"too many fields": func(w *Want) { w.Sums = many },
		"a short HMAC":    func(w *Want) { w.Sums = map[string][]byte{"tls.key": sum[1:]} },
		"a long name":     func(w *Want) { w.Name = strings.Repeat("x", maxRequest) },
	} {
		w := want
		change(&w)
		if _, _, err := Ask(x.frontend.key, x.watcher.public, w); err == nil {
			t.Errorf("a request with %s is sealed", what)
		}
	}
	for _, n := range []int{0, publicSize, maxRequest + 1} {
		if _, err := x.door.Open(x.watcher.key, []string{x.frontend.public}, make([]byte, n)); err == nil || !strings.Contains(err.Error(), "bytes, want") {
			t.Errorf("a request of %d bytes: %v", n, err)
		}
	}
	large := &Answer{Outcome: keyv1.Outcome_OUTCOME_GIVEN, Fields: map[string][]byte{"tls.key": make([]byte, MaxFields+1)}}
	if _, err := x.asked.Seal(x.watcher.key, large); err == nil {
		t.Error("an answer that is too large is sealed")
	}
	for what, a := range map[string]*Answer{
		"too few fields":   {Outcome: keyv1.Outcome_OUTCOME_GIVEN},
		"another field":    {Outcome: keyv1.Outcome_OUTCOME_GIVEN, Fields: map[string][]byte{"tls.crt": []byte("x")}},
		"a field and busy": {Outcome: keyv1.Outcome_OUTCOME_BUSY, Fields: given().Fields},
		"no outcome":       {},
	} {
		y := newExchange(t)
		sealed, err := y.asked.Seal(y.watcher.key, a)
		must(t, err)
		if got, err := y.pending.Open(sealed); err == nil {
			t.Errorf("an answer with %s is taken: %+v", what, got)
		}
	}
	if _, err := x.pending.Open(make([]byte, maxAnswer+1)); err == nil || !strings.Contains(err.Error(), "bytes, want") {
		t.Errorf("an answer that is too large: %v", err)
	}
}

func BenchmarkExchange(b *testing.B) {
	for b.Loop() {
		x := newExchange(b)
		if _, err := x.pending.Open(x.answer); err != nil {
			b.Fatal(err)
		}
	}
}
