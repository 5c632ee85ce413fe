package keys

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"meshlog.dev/proto/ident"
	auditv1 "meshlog.dev/proto/meshlog/audit/v1"
	keyv1 "meshlog.dev/proto/meshlog/key/v1"
	"meshlog.dev/services/internal/keyexchange"
)

// bubble runs a test on the clock of synctest.
func bubble(t *testing.T, f func(r *rig)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t)
		defer func() { r.stop() }()
		f(r)
	})
}

// KEY-5: the store asks once for the fields of an object, keeps what fits the HMACs, and
// asks no more.
func TestKeyComes(t *testing.T) {
	bubble(t, func(r *rig) {
		content, crt := newPEM(), []byte("a certificate")
		k, c := r.has(shard, "web", "tls.key", content), r.has(shard, "web", "tls.crt", crt)
		r.store = New(r.config)
		r.wants("before Want", k, Gone, nil)
		r.store.Want([]Key{k, c, k})
		r.wants("before Run", k, Coming, nil)
		r.start()
		synctest.Wait()
		r.wants("the key", k, Here, content)
		r.wants("the certificate", c, Here, crt)
		if all := r.requests(); len(all) != 1 || len(all[0].Sums) != 2 {
			t.Errorf("%d requests, want one for both fields", len(all))
		}
		if got := r.changed(); len(got) != 2 || !slices.Contains(got, k) || !slices.Contains(got, c) {
			t.Errorf("OnChange was called for %d keys, want both", len(got))
		}
		r.store.Want([]Key{c, k})
		later(time.Hour)
		if all := r.requests(); len(all) != 0 {
			t.Errorf("%d requests for keys that are here", len(all))
		}
		copied, _ := r.store.Get(k)
		clear(copied)
		r.wants("after a caller has cleared its copy", k, Here, content)
		r.leak(content)
	})
}

// KEY-9: until a key comes, the store asks again after 250 ms to 10 s; it counts as
// coming for 4 s and then as gone, and OnChange tells both.
func TestRetry(t *testing.T) {
	content := newPEM()
	given := func(o keyv1.Outcome) func(keyexchange.Want) (*keyexchange.Answer, error) {
		return func(keyexchange.Want) (*keyexchange.Answer, error) {
			return &keyexchange.Answer{Outcome: o, Reason: string(content)}, nil
		}
	}
	for outcome, answer := range map[string]func(keyexchange.Want) (*keyexchange.Answer, error){
		"gone":    given(keyv1.Outcome_OUTCOME_GONE),
		"changed": given(keyv1.Outcome_OUTCOME_CHANGED),
		"refused": given(keyv1.Outcome_OUTCOME_REFUSED),
		"busy":    given(keyv1.Outcome_OUTCOME_BUSY),
		unanswered: func(keyexchange.Want) (*keyexchange.Answer, error) {
			return nil, fmt.Errorf("%w: %s", errNoKeeper, content)
		},
		"none": func(keyexchange.Want) (*keyexchange.Answer, error) { return nil, nil },
	} {
		t.Run(outcome, func(t *testing.T) {
			bubble(t, func(r *rig) {
				k := r.has(shard, "web", "tls.key", content)
				r.answers(answer)
				r.run()
				r.store.Want([]Key{k})
				later(comingFor - time.Nanosecond)
				r.wants("just before 4 s", k, Coming, nil)
				if got := r.changed(); len(got) != 0 {
					t.Errorf("OnChange was called before 4 s")
				}
				later(time.Nanosecond)
				r.wants("after 4 s", k, Gone, nil)
				if got := r.changed(); !slices.Equal(got, []Key{k}) {
					t.Errorf("after 4 s OnChange was called %d times, want once", len(got))
				}
				later(time.Minute)
				if got := r.missing(); got != 64 {
					t.Errorf("a key is missing for %v s, want 64", got)
				}
				for i := 1; i < len(r.times); i++ {
					least := min(firstRetry<<(i-1), lastRetry)
					if pause := r.times[i] - r.times[i-1]; pause < least || pause > least*5/4 || pause > 10*time.Second {
						t.Errorf("pause %d is %s, want %s to a quarter more", i, pause, least)
					}
				}
				if n := len(r.times); n < 10 || n > 14 {
					t.Errorf("%d requests in a minute", n)
				}
				if outcome != "none" && r.outcome(outcome) != uint64(len(r.times)) {
					t.Errorf("%d requests are counted as %s, want %d", r.outcome(outcome), outcome, len(r.times))
				}
				r.back()
				later(10 * time.Second)
				r.wants("when it is given", k, Here, content)
				if got := r.missing(); got != 0 {
					t.Errorf("a key is missing for %v s though all are here", got)
				}
				if got := r.changed(); !slices.Equal(got, []Key{k}) {
					t.Errorf("when it came OnChange was called %d times, want once", len(got))
				}
				r.leak(content)
			})
		})
	}
}

// KEY-5, KEY-13: content that is not what the version names is not used, and the audit
// and the counter have it.
func TestUnfit(t *testing.T) {
	other := newPEM()
	for what, fields := range map[string]map[string][]byte{
		"another key": {"tls.key": other},
		"no field":    {},
		"empty":       {"tls.key": {}},
		"too large":   {"tls.key": make([]byte, keyexchange.MaxFields+1)},
	} {
		t.Run(what, func(t *testing.T) {
			bubble(t, func(r *rig) {
				k := keyOf(shard, "web", "tls.key", newPEM())
				r.sealed(t.TempDir(), "s").answers(func(keyexchange.Want) (*keyexchange.Answer, error) {
					return &keyexchange.Answer{Outcome: keyv1.Outcome_OUTCOME_GIVEN, Fields: map[string][]byte{"tls.key": slices.Clone(fields["tls.key"])}}, nil
				})
				r.run()
				r.store.Want([]Key{k})
				synctest.Wait()
				r.wants("refused", k, Coming, nil)
				if r.outcome(unfit) != 1 || len(r.files()) != 0 {
					t.Errorf("%d requests are unfit, %d files; want 1 and none", r.outcome(unfit), len(r.files()))
				}
				later(time.Minute)
				if len(r.audit) != 1 {
					t.Fatalf("the audit has %d records, want 1", len(r.audit))
				}
				got := r.audit[0]
				if got.GetAction() != auditv1.Action_ACTION_KEY_REFUSED || got.GetObject() != "Secret shop/web (kubernetes/eu)" || got.GetName() != "tls.key" || string(got.GetDigest()) != k.Sum || got.GetReason() == "" {
					t.Errorf("the audit has %v", got)
				}
				r.leak(other)
			})
		})
	}
}

// KEY-5: the HMAC of another object's key opens nothing: it is on the log, so any source
// can write it into a reference of its own.
func TestCopiedSum(t *testing.T) {
	bubble(t, func(r *rig) {
		content := newPEM()
		k := r.has(shard, "web", "tls.key", content)
		r.run()
		r.store.Want([]Key{k})
		synctest.Wait()
		foreign := k
		foreign.Shard.Instance = "us"
		thief := k
		thief.Name = "thief"
		r.answers(func(w keyexchange.Want) (*keyexchange.Answer, error) {
			if w.Shard != shard {
				return &keyexchange.Answer{Outcome: keyv1.Outcome_OUTCOME_CHANGED}, nil
			}
			return &keyexchange.Answer{Outcome: keyv1.Outcome_OUTCOME_GIVEN, Fields: map[string][]byte{"tls.key": slices.Clone(content)}}, nil
		})
		r.store.Want([]Key{k, thief, foreign})
		later(time.Minute)
		r.wants("under the name of another object", thief, Gone, nil)
		r.wants("of another shard", foreign, Gone, nil)
		r.wants("under its own name", k, Here, content)
	})
}

// Without the key of the HMACs, the store takes what watchers give, and nothing local.
func TestNoSums(t *testing.T) {
	bubble(t, func(r *rig) {
		content := newPEM()
		k := r.has(shard, "web", "tls.key", content)
		r.config.Sums = nil
		r.config.Local = func(context.Context, Key) ([]byte, error) { return newPEM(), nil }
		r.run()
		r.store.Want([]Key{k})
		synctest.Wait()
		r.wants("without a check", k, Here, content)
	})
}

// A twin that lags behind the log answers that the key has changed; the next request may
// reach the other one.
func TestTwins(t *testing.T) {
	bubble(t, func(r *rig) {
		content := newPEM()
		k := r.has(shard, "web", "tls.key", content)
		n := 0
		r.answers(func(w keyexchange.Want) (*keyexchange.Answer, error) {
			if n++; n%2 == 1 {
				return &keyexchange.Answer{Outcome: keyv1.Outcome_OUTCOME_CHANGED}, nil
			}
			return r.answer(w)
		})
		r.run()
		r.store.Want([]Key{k})
		later(400 * time.Millisecond)
		r.wants("after the second answer", k, Here, content)
	})
}

// A rotation wants the new key beside the old one. Fields of two versions are asked for
// alone when they were refused together.
func TestRotation(t *testing.T) {
	bubble(t, func(r *rig) {
		old, renewed := newPEM(), newPEM()
		k := r.has(shard, "web", "tls.key", old)
		r.run()
		r.store.Want([]Key{k})
		synctest.Wait()
		delete(r.source, k)
		next := r.has(shard, "web", "tls.key", renewed)
		r.store.Want([]Key{k, next})
		synctest.Wait()
		r.wants("the old key", k, Here, old)
		r.wants("the new key", next, Here, renewed)
		r.store.Want([]Key{next})
		r.wants("the old key, which no version names", k, Gone, nil)
		r.wants("the new key", next, Here, renewed)

		// A frontend that starts in the middle of it gets what is there.
		r.stop()
		r.run().requests()
		crt := r.has(shard, "web", "tls.crt", []byte("new"))
		oldCrt := keyOf(shard, "web", "tls.crt", []byte("old"))
		r.store.Want([]Key{crt, k, oldCrt, next}) // newest: next with oldCrt, k with crt
		later(time.Second)
		r.wants("the new key", next, Here, renewed)
		r.wants("the new certificate", crt, Here, []byte("new"))
		r.wants("the old key", k, Coming, nil)
		all := r.requests()
		if len(all) < 3 || len(sortedFields(all[0])) != 2 {
			t.Fatalf("%d requests, want at least 3, the first for two fields", len(all))
		}
	})
}

// Keys that are no longer wanted are wiped from memory, and not asked for.
func TestWipe(t *testing.T) {
	bubble(t, func(r *rig) {
		content := newPEM()
		k := r.has(shard, "web", "tls.key", content)
		missing := keyOf(shard, "web", "tls.key", newPEM())
		r.run()
		r.store.Want([]Key{k, missing})
		synctest.Wait()
		inside := r.store.entries[k].content
		copied, _ := r.store.Get(k)
		r.store.Want(nil)
		if slices.ContainsFunc(inside, func(b byte) bool { return b != 0 }) {
			t.Error("the content is still in memory")
		}
		if string(copied) != string(content) {
			t.Error("a copy of Get was wiped")
		}
		r.requests()
		later(time.Minute)
		if n := len(r.requests()); n != 0 || len(r.store.fetches) != 0 {
			t.Errorf("%d requests, %d fetches for keys that are not wanted", n, len(r.store.fetches))
		}
		r.wants("after Want without it", k, Gone, nil)
	})
}

// The store wipes what it was given, whether it fits or not: its own copy is the only one.
func TestWipeAnswers(t *testing.T) {
	bubble(t, func(r *rig) {
		content, other := newPEM(), newPEM()
		k := keyOf(shard, "web", "tls.key", content)
		given := [][]byte{slices.Clone(other), slices.Clone(content)}
		n := 0
		r.answers(func(keyexchange.Want) (*keyexchange.Answer, error) {
			n++
			return &keyexchange.Answer{Outcome: keyv1.Outcome_OUTCOME_GIVEN, Fields: map[string][]byte{"tls.key": given[n-1]}}, nil
		})
		r.run()
		r.store.Want([]Key{k})
		later(time.Second)
		r.wants("the second answer", k, Here, content)
		for i, b := range given {
			if slices.ContainsFunc(b, func(b byte) bool { return b != 0 }) {
				t.Errorf("answer %d is still in memory", i)
			}
		}
	})
}

// A key that comes after Want has dropped it is not kept.
func TestLateAnswer(t *testing.T) {
	bubble(t, func(r *rig) {
		r.sealed(t.TempDir(), "s")
		k := r.has(shard, "web", "tls.key", newPEM())
		r.config.Ask = func(_ context.Context, w keyexchange.Want) (*keyexchange.Answer, error) {
			<-time.After(time.Second)
			r.mu.Lock()
			defer r.mu.Unlock()
			return r.answer(w)
		}
		r.run()
		r.store.Want([]Key{k})
		synctest.Wait()
		r.store.Want(nil)
		later(time.Minute)
		if len(r.store.entries) != 0 || len(r.changed()) != 0 {
			t.Error("a key that is not wanted was kept")
		}
		later(grace + tendEvery)
		if len(r.files()) != 0 {
			t.Error("its file stays")
		}
	})
}

// A watcher that does not answer delays no other shard, and its own get 16 requests at a
// time, for 6 s at most.
func TestSilentShard(t *testing.T) {
	bubble(t, func(r *rig) {
		open, most := 0, 0
		r.config.Ask = func(ctx context.Context, w keyexchange.Want) (*keyexchange.Answer, error) {
			r.mu.Lock()
			if w.Shard == shard {
				defer r.mu.Unlock()
				return r.answer(w)
			}
			open++
			most = max(most, open)
			r.mu.Unlock()
			<-ctx.Done()
			r.mu.Lock()
			defer r.mu.Unlock()
			open--
			return nil, ctx.Err()
		}
		content := newPEM()
		var all []Key
		for i := range 100 {
			all = append(all, keyOf(ident.Shard{Source: "kubernetes", Instance: "silent"}, fmt.Sprint("s", i), "tls.key", content))
		}
		k := r.has(shard, "web", "tls.key", content)
		r.run()
		r.store.Want(append(all, k))
		synctest.Wait()
		r.wants("of the shard that answers", k, Here, content)
		later(comingFor)
		for _, silent := range all {
			r.wants("of the silent shard", silent, Gone, nil)
		}
		later(time.Minute)
		if most != perShard {
			t.Errorf("%d requests at a time, want %d", most, perShard)
		}
	})
}

// KEY-9: a watcher that dies with a request delays the answer of another replica by little,
// and a replica that takes longer than the first request waits is heard by a later one.
func TestDeadWatcher(t *testing.T) {
	for takes, comes := range map[time.Duration]time.Duration{0: 2500 * time.Millisecond, 3 * time.Second: 5500 * time.Millisecond} {
		bubble(t, func(r *rig) {
			content := newPEM()
			k := r.has(shard, "web", "tls.key", content)
			asked := 0
			r.config.Ask = func(ctx context.Context, w keyexchange.Want) (*keyexchange.Answer, error) {
				if asked++; asked == 1 {
					<-ctx.Done()
					return nil, ctx.Err()
				}
				select {
				case <-ctx.Done():
					return nil, ctx.Err()
				case <-time.After(takes):
				}
				r.mu.Lock()
				defer r.mu.Unlock()
				return r.answer(w)
			}
			r.run()
			r.store.Want([]Key{k})
			later(comes)
			r.wants(fmt.Sprintf("of a replica that takes %s", takes), k, Here, content)
		})
	}
}

// Without watchers to ask, a key is gone at once, unless this machine has it; content of
// another version is not used (KEY-7).
func TestLocal(t *testing.T) {
	bubble(t, func(r *rig) {
		r.config.Ask = nil
		k := keyOf(shard, "web", "tls.key", newPEM())
		r.run()
		r.store.Want([]Key{k})
		r.wants("with nothing to ask", k, Gone, nil)
		later(time.Minute)
		if len(r.changed()) != 0 {
			t.Error("OnChange was called for what Get said")
		}
	})
	bubble(t, func(r *rig) {
		content := newPEM()
		k := keyOf(shard, "web", "tls.key", content)
		var here []byte
		var err error
		r.config.Ask, r.config.Local = nil, func(context.Context, Key) ([]byte, error) {
			r.mu.Lock()
			defer r.mu.Unlock()
			return slices.Clone(here), err
		}
		set := func(content []byte, e error) {
			r.mu.Lock()
			defer r.mu.Unlock()
			here, err = content, e
		}
		r.run()
		r.store.Want([]Key{k})
		synctest.Wait()
		r.wants("with nothing here", k, Gone, nil)
		set(newPEM(), nil)
		later(10 * time.Second)
		r.wants("with another version here", k, Gone, nil)
		set(nil, fmt.Errorf("a bad file: %s", content))
		later(10 * time.Second)
		set(content, nil)
		later(10 * time.Second)
		r.wants("with its content here", k, Here, content)
		if got := r.changed(); !slices.Equal(got, []Key{k, k}) {
			t.Errorf("OnChange was called %d times, want when it was gone and when it came", len(got))
		}
		r.leak(content)
	})
	bubble(t, func(r *rig) {
		content := newPEM()
		k := r.has(shard, "web", "tls.key", content)
		r.config.Local = func(context.Context, Key) ([]byte, error) { return slices.Clone(content), nil }
		r.run()
		r.store.Want([]Key{k})
		synctest.Wait()
		r.wants("with its content here", k, Here, content)
		if len(r.requests()) != 0 {
			t.Error("a watcher was asked")
		}
	})
}

// What cannot be asked for is gone, and so is what is beyond the limit; Trouble says why.
// Keys that were wanted before stay.
func TestLimits(t *testing.T) {
	bubble(t, func(r *rig) {
		content := newPEM()
		k := r.has(shard, "zz", "tls.key", content)
		r.run()
		r.store.Want([]Key{k})
		synctest.Wait()
		r.away()
		bad := []Key{{}, k, k, k, k}
		bad[1].Sum = ""
		bad[2].Field = "../tls.key"
		bad[3].Name = "a\x00b"
		bad[4].Shard.Instance = ""
		r.store.Want(append(bad, k))
		for _, b := range bad {
			r.wants("a key that cannot be asked for", b, Gone, nil)
		}
		if err := r.store.Trouble(); err == nil || !strings.Contains(err.Error(), "without a valid HMAC in the served versions: 5;") {
			t.Errorf("trouble: %v", err)
		}
		var all []Key
		for i := range maxKeys {
			n := k
			n.Name = fmt.Sprint("n", i)
			all = append(all, n)
		}
		r.store.Want(append(all, k))
		r.wants("a key that was here before", k, Here, content)
		r.wants("the first", all[0], Coming, nil)
		r.wants("beyond the limit", all[maxKeys-1], Gone, nil)
		if err := r.store.Trouble(); err == nil || !strings.Contains(err.Error(), "private keys that are not served: 1: a frontend keeps 10000 at most") {
			t.Errorf("trouble: %v", err)
		}
		r.store.Want([]Key{k})
		if err := r.store.Trouble(); err != nil {
			t.Errorf("trouble: %v", err)
		}
	})
}

// A proxy's node asks for a key that many proxies want: one request at a time for each.
func TestOneRequestAtATime(t *testing.T) {
	bubble(t, func(r *rig) {
		content := newPEM()
		k := r.has(shard, "web", "tls.key", content)
		open := 0
		r.config.Ask = func(_ context.Context, w keyexchange.Want) (*keyexchange.Answer, error) {
			r.mu.Lock()
			if open++; open > 1 {
				t.Error("two requests for an object at a time")
			}
			r.mu.Unlock()
			<-time.After(time.Second)
			r.mu.Lock()
			defer r.mu.Unlock()
			open--
			if time.Since(r.began) < 5*time.Second {
				return nil, errors.New("busy")
			}
			return r.answer(w)
		}
		r.run()
		for range 20 {
			r.store.Want([]Key{k})
			r.store.Want(nil)
			r.store.Want([]Key{k})
			later(300 * time.Millisecond)
		}
		later(10 * time.Second)
		r.wants("in the end", k, Here, content)
	})
}
