package keys

import (
	"bytes"
	"context"
	"errors"
	"math/rand/v2"
	"slices"
	"strings"
	"time"

	"meshlog.dev/proto/ident"
	auditv1 "meshlog.dev/proto/meshlog/audit/v1"
	keyv1 "meshlog.dev/proto/meshlog/key/v1"
	"meshlog.dev/services/internal/failpoint"
	"meshlog.dev/services/internal/keyexchange"
	"meshlog.dev/services/mesh/keymaterial"
)

const (
	// A fetch asks again after these pauses, each a quarter longer at most: 250 ms to
	// 10 s (KEY-9).
	firstRetry = 250 * time.Millisecond
	lastRetry  = 8 * time.Second
	// A request gets these times to be answered, each twice the one that was too short. A watcher that
	// dies with a request never answers it, and the bus does not tell, so the first time is
	// short: another replica can answer before proxies are told that the secret is unknown.
	// It is longer than the 1.5 s after which a watcher says that it is busy.
	firstAskWithin = 2 * time.Second
	lastAskWithin  = 6 * time.Second
	// perShard is how many requests a shard gets at a time. It is a limit of the shard,
	// so that a shard that does not answer delays no other.
	perShard = 16
)

// Outcomes of requests, as the metric has them: those of answers, and ours.
const (
	unanswered = "unanswered" // no watcher answered
	unfit      = "unfit"      // a field is not what the version names
)

var outcomes = []string{"given", "gone", "changed", "refused", "busy", unanswered, unfit}

// object names what a request is about.
type object struct {
	shard           ident.Shard
	namespace, name string
}

func (k Key) of() object { return object{k.Shard, k.Namespace, k.Name} }

// fetch asks for the missing keys of an object, with one request at a time.
type fetch struct {
	object object
	wake   chan struct{} // missing has changed

	// guarded by Store.mu
	missing []Key // in the order in which they came to be wanted
	singly  bool  // ask for each key alone: a request for several was refused
}

// rouse has the fetch look at its keys now.
func (f *fetch) rouse() {
	select {
	case f.wake <- struct{}{}:
	default:
	}
}

// fetch asks until no key of the object is missing, or ctx is done.
func (s *Store) fetch(ctx context.Context, f *fetch) {
	pause, within := firstRetry, firstAskWithin
	for {
		began := time.Now()
		s.attempt(ctx, f, within)
		if time.Since(began) >= within { // a watcher has the request, and may only be slow
			within = min(2*within, lastAskWithin)
		}
		if s.ended(f) {
			return
		}
		timer := time.NewTimer(pause + rand.N(pause/4))
		select {
		case <-ctx.Done():
			timer.Stop()
			return
		case <-f.wake:
			timer.Stop()
			pause = firstRetry
		case <-timer.C:
			pause = min(2*pause, lastRetry)
		}
	}
}

// ended forgets a fetch that has nothing to do.
func (s *Store) ended(f *fetch) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(f.missing) > 0 {
		return false
	}
	delete(s.fetches, f.object)
	return true
}

// attempt asks once for each missing key.
func (s *Store) attempt(ctx context.Context, f *fetch, within time.Duration) {
	select {
	case <-f.wake: // this attempt asks for the keys that woke it too
	default:
	}
	for _, batch := range s.batches(f) {
		batch = slices.DeleteFunc(batch, func(k Key) bool { return s.local(ctx, k) })
		switch {
		case len(batch) == 0:
		case s.cfg.Ask == nil:
			s.giveUp(batch)
		case !s.ask(ctx, f, batch, within):
			return
		}
	}
}

// batches returns the missing keys as they are asked for: those of different fields
// together, the newest first. At a rotation a field is wanted twice, in two batches.
func (s *Store) batches(f *fetch) (all [][]Key) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, k := range slices.Backward(f.missing) {
		i := slices.IndexFunc(all, func(batch []Key) bool {
			return !f.singly && !slices.ContainsFunc(batch, func(other Key) bool { return other.Field == k.Field })
		})
		if i < 0 {
			all = append(all, []Key{k})
		} else {
			all[i] = append(all[i], k)
		}
	}
	return all
}

// local reports whether this machine has a key, and keeps it.
func (s *Store) local(ctx context.Context, k Key) bool {
	if s.cfg.Local == nil || len(s.cfg.Sums) == 0 {
		return false
	}
	content, err := s.cfg.Local(ctx, k)
	if err != nil {
		s.log.Warn("cannot read a private key on this machine; asking its watcher", "object", k.object(), "field", k.Field, "error", harmless(err.Error()))
	}
	if err != nil || s.check(k, content) != nil { // it may be of another version
		clear(content)
		return false
	}
	s.keep(k, content)
	return true
}

// giveUp marks keys as gone that no watcher can be asked for.
func (s *Store) giveUp(batch []Key) {
	for _, k := range batch {
		s.mu.Lock()
		e := s.entries[k]
		news := e != nil && e.content == nil && !e.gone
		if news {
			e.gone = true
		}
		s.mu.Unlock()
		if news {
			s.changed(k)
		}
	}
}

// ask sends a request for fields of an object, and keeps what fits. It reports whether
// another request of the attempt makes sense.
func (s *Store) ask(ctx context.Context, f *fetch, batch []Key, within time.Duration) bool {
	slots := s.slotsOf(f.object.shard)
	select {
	case slots <- struct{}{}:
	case <-ctx.Done():
		return false
	}
	if batch = s.stillMissing(f, batch); len(batch) == 0 {
		<-slots
		return true
	}
	answer, err := s.request(ctx, f.object, batch, within)
	<-slots // the next request does not wait for the disk
	if err != nil {
		if ctx.Err() == nil {
			s.count(unanswered)
			s.log.Warn("a request for private keys is not answered; asking again", "object", batch[0].object(), "fields", fields(batch), "error", harmless(err.Error()))
		}
		return false
	}
	defer answer.Wipe()
	outcome := outcomeName(answer.Outcome)
	if answer.Outcome == keyv1.Outcome_OUTCOME_GIVEN {
		failpoint.At(failpoint.FrontendKeyAnswered)
		s.count(s.take(batch, answer.Fields))
		return true
	}
	s.count(outcome)
	s.log.Warn("a watcher does not give private keys; asking again", "object", batch[0].object(), "fields", fields(batch), "outcome", outcome, "reason", harmless(answer.Reason))
	// The fields may be of two versions, or too large together.
	partial := answer.Outcome == keyv1.Outcome_OUTCOME_CHANGED || answer.Outcome == keyv1.Outcome_OUTCOME_REFUSED
	if partial && len(batch) > 1 {
		s.mu.Lock()
		f.singly = true
		s.mu.Unlock()
	}
	return partial
}

func (s *Store) slotsOf(shard ident.Shard) chan struct{} {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.slots[shard] == nil {
		s.slots[shard] = make(chan struct{}, perShard)
	}
	return s.slots[shard]
}

// stillMissing returns the keys of a batch that Want has not dropped meanwhile.
func (s *Store) stillMissing(f *fetch, batch []Key) []Key {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.DeleteFunc(batch, func(k Key) bool { return !slices.Contains(f.missing, k) })
}

func (s *Store) request(ctx context.Context, o object, batch []Key, within time.Duration) (*keyexchange.Answer, error) {
	w := keyexchange.Want{Shard: o.shard, Namespace: o.namespace, Name: o.name, Sums: map[string][]byte{}}
	for _, k := range batch {
		w.Sums[k.Field] = []byte(k.Sum)
	}
	ctx, cancel := context.WithTimeout(ctx, within)
	defer cancel()
	failpoint.At(failpoint.FrontendKeyAsk)
	answer, err := s.cfg.Ask(ctx, w)
	if err == nil && answer == nil {
		err = errors.New("there is no answer")
	}
	return answer, err
}

// take keeps the fields that fit, and returns the outcome of the request. The caller
// wipes the fields.
func (s *Store) take(batch []Key, given map[string][]byte) (outcome string) {
	outcome = outcomeName(keyv1.Outcome_OUTCOME_GIVEN)
	for _, k := range batch {
		if err := s.check(k, given[k.Field]); err != nil {
			s.refuse(k, err)
			outcome = unfit
			continue
		}
		s.keep(k, bytes.Clone(given[k.Field]))
	}
	return outcome
}

// refuse tells the log and the audit about a key that is not used (KEY-13). The audit has
// it once while the key is wanted: a watcher that gives wrong keys must not push other
// records out.
func (s *Store) refuse(k Key, why error) {
	s.log.Error("a watcher gave a private key that is not the one of the version; it is not used", "object", k.object(), "field", k.Field, "hmac", hexSum(k), "reason", why)
	s.mu.Lock()
	e := s.entries[k]
	first := e != nil && !e.refused
	if first {
		e.refused = true
	}
	s.mu.Unlock()
	if first && s.cfg.Audit != nil {
		s.cfg.Audit(&auditv1.Record{
			Action: auditv1.Action_ACTION_KEY_REFUSED, Object: k.object(), Name: k.Field, Digest: []byte(k.Sum),
			Reason: "the frontend does not use what the watcher gave: " + why.Error(),
		})
	}
}

// keep seals a key into its file, and then makes it available (KEY-8). It owns content.
func (s *Store) keep(k Key, content []byte) {
	err := s.save(k, content)
	failpoint.At(failpoint.FrontendKeySealed)
	s.mu.Lock()
	e := s.entries[k]
	if e == nil || e.content != nil { // Want has dropped it meanwhile
		clear(content)
		s.mu.Unlock()
		return
	}
	e.content, e.sealed, e.gone = content, err == nil && s.cfg.Seal != nil, false
	if f := s.fetches[k.of()]; f != nil {
		f.missing = slices.DeleteFunc(f.missing, func(m Key) bool { return m == k })
	}
	s.mu.Unlock()
	failpoint.At(failpoint.FrontendKeyKept)
	s.log.Info("a private key has come", "object", k.object(), "field", k.Field, "hmac", hexSum(k))
	s.changed(k)
}

func (s *Store) count(outcome string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.answers[outcome]++
}

func outcomeName(o keyv1.Outcome) string {
	return strings.ToLower(strings.TrimPrefix(o.String(), "OUTCOME_"))
}

func fields(batch []Key) (names []string) {
	for _, k := range batch {
		names = append(names, k.Field)
	}
	slices.Sort(names)
	return names
}

// harmless returns a text of another process as it may be logged: no text that has a
// private key is (KEY-1).
func harmless(text string) string {
	if keymaterial.In([]byte(text)) != "" {
		return "(left out: the text has a private key)"
	}
	return text
}
