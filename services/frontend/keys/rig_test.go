package keys

import (
	"bytes"
	"context"
	"encoding/base64"
	"encoding/pem"
	"errors"
	"io/fs"
	"log/slog"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"meshlog.dev/deploy/testkit/certtest"
	"meshlog.dev/proto/ident"
	auditv1 "meshlog.dev/proto/meshlog/audit/v1"
	keyv1 "meshlog.dev/proto/meshlog/key/v1"
	"meshlog.dev/services/internal/keyexchange"
	"meshlog.dev/services/internal/seal"
	"meshlog.dev/services/mesh/credential"
)

var (
	sums  = []byte("a key of sixteen bytes")
	shard = ident.Shard{Source: "kubernetes", Instance: "eu"}

	errNoKeeper = errors.New("no watcher of the shard listens for key requests")
)

// newPEM returns a new private key.
func newPEM() []byte { return certtest.NewCA("ca").Server("web", time.Now().Add(time.Hour)).Key }

// keyOf returns the name of a content, as a version has it.
func keyOf(at ident.Shard, name, field string, content []byte) Key {
	s := credential.Source{Namespace: "shop", Name: name, Data: map[string][]byte{field: content}}
	return Key{Shard: at, Namespace: "shop", Name: name, Field: field, Sum: string(credential.Sum(s, field, sums))}
}

// rig is a Store with a watcher, and everything that leaves the Store.
type rig struct {
	t      testing.TB
	config Config
	store  *Store
	stop   func()

	mu      sync.Mutex
	source  map[Key][]byte // what the watcher has now
	ask     func(w keyexchange.Want) (*keyexchange.Answer, error)
	asked   []keyexchange.Want
	times   []time.Duration // of the requests, since the rig began
	began   time.Time
	changes []Key
	audit   []*auditv1.Record
	log     bytes.Buffer
}

// newRig returns a rig whose Store does not run yet.
func newRig(t testing.TB) *rig {
	r := &rig{t: t, source: map[Key][]byte{}, began: time.Now(), stop: func() {}}
	r.ask = r.answer
	r.config = Config{
		Ask: func(_ context.Context, w keyexchange.Want) (*keyexchange.Answer, error) {
			r.mu.Lock()
			defer r.mu.Unlock()
			r.asked = append(r.asked, w)
			r.times = append(r.times, time.Since(r.began))
			return r.ask(w)
		},
		Sums: sums, Log: slog.New(slog.NewTextHandler(lockedWriter{r}, nil)),
		OnChange: func(k Key) {
			r.store.Get(k) // it must not be called under a lock
			r.mu.Lock()
			defer r.mu.Unlock()
			r.changes = append(r.changes, k)
		},
		Audit: func(record *auditv1.Record) {
			r.mu.Lock()
			defer r.mu.Unlock()
			r.audit = append(r.audit, record)
		},
	}
	return r
}

type lockedWriter struct{ *rig }

func (w lockedWriter) Write(b []byte) (int, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.log.Write(b)
}

// sealed gives the Store a directory and a seal key.
func (r *rig) sealed(dir, secret string) *rig {
	r.t.Helper()
	k, err := seal.NewKey([]byte(strings.Repeat(secret, 32)))
	if err != nil {
		r.t.Fatal(err)
	}
	r.config.Dir, r.config.Seal = dir, k
	return r
}

// run makes the Store, and runs it until the test or restart ends it.
func (r *rig) run() *rig {
	r.store = New(r.config)
	r.start()
	return r
}

// start runs the Store.
func (r *rig) start() {
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- r.store.Run(ctx) }()
	r.stop = func() {
		cancel()
		if err := <-ended; !errors.Is(err, context.Canceled) {
			r.t.Errorf("Run: %v", err)
		}
		r.stop = func() {}
	}
}

// answer answers as a watcher does (KEY-5). The caller holds mu.
func (r *rig) answer(w keyexchange.Want) (*keyexchange.Answer, error) {
	a := &keyexchange.Answer{Outcome: keyv1.Outcome_OUTCOME_GIVEN, Fields: map[string][]byte{}}
	for field, sum := range w.Sums {
		k := Key{w.Shard, w.Namespace, w.Name, field, string(sum)}
		content, ok := r.source[k]
		if !ok {
			return &keyexchange.Answer{Outcome: keyv1.Outcome_OUTCOME_CHANGED, Reason: "the source has another " + field}, nil
		}
		a.Fields[field] = bytes.Clone(content)
	}
	return a, nil
}

// has gives the watcher a content, and returns its name.
func (r *rig) has(at ident.Shard, name, field string, content []byte) Key {
	r.mu.Lock()
	defer r.mu.Unlock()
	k := keyOf(at, name, field, content)
	r.source[k] = content
	return k
}

// answers replaces the watcher.
func (r *rig) answers(f func(w keyexchange.Want) (*keyexchange.Answer, error)) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.ask = f
}

func (r *rig) away() {
	r.answers(func(keyexchange.Want) (*keyexchange.Answer, error) { return nil, errNoKeeper })
}

func (r *rig) back() { r.answers(r.answer) }

// requests returns how many there were, and forgets them.
func (r *rig) requests() (all []keyexchange.Want) {
	r.mu.Lock()
	defer r.mu.Unlock()
	all, r.asked = r.asked, nil
	return all
}

// changed returns for which keys OnChange was called, and forgets them.
func (r *rig) changed() (all []Key) {
	r.mu.Lock()
	defer r.mu.Unlock()
	all, r.changes = r.changes, nil
	return all
}

// wants compares the state of a key, and its content.
func (r *rig) wants(what string, k Key, state State, content []byte) {
	r.t.Helper()
	if got, is := r.store.Get(k); is != state || !bytes.Equal(got, content) {
		r.t.Errorf("%s: the key is %s with %d bytes, want %s with %d", what, is, len(got), state, len(content))
	}
}

// outcome returns the counter of an outcome.
func (r *rig) outcome(name string) uint64 {
	r.store.mu.Lock()
	defer r.store.mu.Unlock()
	return r.store.answers[name]
}

// later lets time pass.
func later(d time.Duration) { <-time.After(d); synctest.Wait() }

// files returns the content of the files in the directory.
func (r *rig) files() map[string][]byte {
	r.t.Helper()
	all := map[string][]byte{}
	entries, err := os.ReadDir(r.config.Dir)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		r.t.Fatal(err)
	}
	for _, e := range entries {
		b, err := os.ReadFile(filepath.Join(r.config.Dir, e.Name()))
		if err != nil {
			r.t.Fatal(err)
		}
		all[e.Name()] = b
	}
	return all
}

// leak searches everything that left the Store for private keys, in the forms in which
// they could have (KEY-1).
func (r *rig) leak(secrets ...[]byte) {
	r.t.Helper()
	out := map[string][]byte{}
	for name, content := range r.files() {
		out["the file "+name] = content
	}
	r.mu.Lock()
	out["the log"] = bytes.Clone(r.log.Bytes())
	for _, record := range r.audit {
		out["the audit"] = append(out["the audit"], record.String()...)
	}
	r.mu.Unlock()
	if err := r.store.Trouble(); err != nil {
		out["Trouble"] = []byte(err.Error())
	}
	for _, k := range r.store.Status().Keys {
		out["Status"] = append(out["Status"], k.Object+k.Field+k.HMAC...)
	}
	registry := prometheus.NewPedanticRegistry()
	registry.MustRegister(r.store)
	families, err := registry.Gather()
	if err != nil {
		r.t.Error(err)
	}
	for _, f := range families {
		out["the metrics"] = append(out["the metrics"], f.String()...)
	}
	for _, secret := range secrets {
		block, _ := pem.Decode(secret)
		body := bytes.Split(bytes.TrimSpace(secret), []byte("\n"))
		forms := map[string][]byte{
			"PEM": secret, "a line of PEM": body[1], "DER": block.Bytes,
			"base64": []byte(base64.StdEncoding.EncodeToString(block.Bytes)), "base64 of PEM": []byte(base64.StdEncoding.EncodeToString(secret)),
		}
		for where, text := range out {
			for form, b := range forms {
				if bytes.Contains(text, b) {
					r.t.Errorf("%s has the private key in %s", where, form)
				}
			}
		}
	}
}

// missing returns the metric that says since when a key is missing.
func (r *rig) missing() float64 {
	r.t.Helper()
	registry := prometheus.NewPedanticRegistry()
	registry.MustRegister(r.store)
	families, err := registry.Gather()
	if err != nil {
		r.t.Fatal(err)
	}
	for _, f := range families {
		if f.GetName() == "meshlog_frontend_keys_missing_seconds" {
			return f.GetMetric()[0].GetGauge().GetValue()
		}
	}
	r.t.Fatal("no such metric")
	return 0
}

// sortedFields returns the fields of a request.
func sortedFields(w keyexchange.Want) []string { return slices.Sorted(maps.Keys(w.Sums)) }
