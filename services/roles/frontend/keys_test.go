package frontend

import (
	"bytes"
	"context"
	"errors"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"meshlog.dev/deploy/testkit/certtest"
	"meshlog.dev/proto/ident"
	auditv1 "meshlog.dev/proto/meshlog/audit/v1"
	keyv1 "meshlog.dev/proto/meshlog/key/v1"
	"meshlog.dev/services/frontend/keys"
	"meshlog.dev/services/internal/audit"
	"meshlog.dev/services/internal/bus"
	"meshlog.dev/services/internal/busauth"
	"meshlog.dev/services/internal/keyexchange"
	"meshlog.dev/services/internal/keyexchange/keyring"
	"meshlog.dev/services/internal/process"
	"meshlog.dev/services/mesh/credential"
)

func must(t *testing.T, errs ...error) {
	t.Helper()
	if err := errors.Join(errs...); err != nil {
		t.Fatal(err)
	}
}

var (
	shard = ident.Shard{Source: "file", Instance: "default"}
	sums  = []byte("a key of sixteen bytes")
	quiet = slog.New(slog.DiscardHandler)
)

func newKey(name string) (k keys.Key, content []byte) {
	content = certtest.NewCA("ca").Server(name, time.Now().Add(time.Hour)).Key
	s := credential.Source{Namespace: "shop", Name: name, Data: map[string][]byte{"tls.key": content}}
	return keys.Key{Shard: shard, Namespace: "shop", Name: name, Field: "tls.key", Sum: string(credential.Sum(s, "tls.key", sums))}, content
}

// waitFor waits until the store has a key.
func waitFor(t *testing.T, s *keys.Store, k keys.Key, content []byte) {
	t.Helper()
	for deadline := time.Now().Add(time.Minute); ; {
		got, state := s.Get(k)
		if state == keys.Here && bytes.Equal(got, content) {
			return
		}
		if time.Now().After(deadline) {
			t.Fatalf("the key is %s with %d bytes, want here with %d", state, len(got), len(content))
		}
		<-time.After(time.Millisecond)
	}
}

// run runs a store and what is beside it until the test ends.
func run(t *testing.T, stage ...func(context.Context) error) (stop func()) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- process.RunStages(ctx, stage) }()
	return func() {
		cancel()
		if err := <-ended; err != nil {
			t.Errorf("run: %v", err)
		}
	}
}

// KEY-3, KEY-5, KEY-8, KEY-13: over a bus with accounts, a frontend that started without it
// gets a key, sealed; one whose HMAC does not fit is refused, which the audit has. A
// restarted frontend has the key without a bus.
func TestKeysOverTheBus(t *testing.T) {
	data := t.TempDir()
	server, err := bus.StartServer(bus.ServerOptions{
		Dir: data, Accounts: busauth.Accounts("mesh", bus.Builder(), bus.Frontend(), bus.Operator(), bus.Watcher(shard)), Log: quiet,
	})
	must(t, err)
	t.Cleanup(func() { must(t, server.Close()) })
	connect := func(r bus.Role) *bus.Conn {
		nc, err := bus.Connect(bus.ConnectOptions{Server: server, Role: r, Name: r.String(), Log: quiet})
		must(t, err)
		t.Cleanup(nc.Close)
		return nc
	}
	must(t, audit.EnsureStream(t.Context(), connect(bus.Builder()), audit.StreamOptions{}))
	ring := func(r bus.Role) keyring.Ring {
		name, _ := r.ExchangeKeyName()
		return keyring.Ring{File: filepath.Join(data, "auth", name)}
	}

	// A watcher that gives the key, whichever is wanted.
	k, content := newKey("web")
	forged, _ := newKey("api")
	var door keyexchange.Door
	watcher := bus.NewFleet(connect(bus.Watcher(shard)), "mesh", quiet)
	answer := func(_ context.Context, request []byte) []byte {
		list, err := ring(bus.Watcher(shard)).List()
		own, ownErr := ring(bus.Watcher(shard)).Own()
		if err := errors.Join(err, ownErr); err != nil {
			t.Error(err)
			return nil
		}
		asked, err := door.Open(own, list.Frontends(), request)
		if err != nil {
			t.Error(err)
			return nil
		}
		sealed, err := asked.Seal(own, &keyexchange.Answer{Outcome: keyv1.Outcome_OUTCOME_GIVEN, Fields: map[string][]byte{"tls.key": content}})
		if err != nil {
			t.Error(err)
		}
		return sealed
	}

	s := Settings{SealKeyFile: certtest.WriteFile(t, t.TempDir(), "seal", bytes.Repeat([]byte("s"), 32))}
	must(t, os.Chmod(s.SealKeyFile, 0o600))
	x := KeyExchange{File: ring(bus.Frontend()).File, SumsFile: certtest.WriteFile(t, t.TempDir(), "hmac", append(sums, '\n'))}
	must(t, x.Check(), x.Verify())
	options, err := x.Keys(&s)
	must(t, err)
	o := &Options{Domain: "mesh", ID: "f", Data: t.TempDir(), Keys: options}
	link := &busLink{ready: make(chan struct{})}
	store := o.keyStore(quiet, link, nil)
	nc := connect(bus.Frontend())
	writer, err := audit.NewWriter(nc, audit.WriterOptions{Domain: "mesh", Role: bus.Frontend(), Process: "f", Log: quiet})
	must(t, err)
	stop := run(t, store.Run, writer.Run, func(ctx context.Context) error { return watcher.ServeKeys(ctx, shard, bus.KeyAnswers{Answer: answer}) })
	store.Want([]keys.Key{k, forged})
	link.audit.write(&auditv1.Record{Action: auditv1.Action_ACTION_KEY_REFUSED, Object: "early", Digest: []byte(k.Sum)})
	link.audit.open(writer)
	link.fleet.Store(bus.NewFleet(nc, "mesh", quiet))
	waitFor(t, store, k, content)

	reader, err := audit.NewReader(connect(bus.Operator()), "mesh")
	must(t, err)
	var refused, early bool
	for deadline := time.Now().Add(time.Minute); !(refused && early) && time.Now().Before(deadline); {
		all, _, err := reader.Newest(t.Context(), 10)
		must(t, err)
		for _, e := range all {
			must(t, e.Err)
			early = early || e.Record.GetObject() == "early"
			refused = refused || e.Record.GetObject() == "Secret shop/api (file/default)" && string(e.Record.GetDigest()) == forged.Sum
		}
	}
	if _, state := store.Get(forged); state == keys.Here || !refused || !early {
		t.Errorf("the other key is %s; the audit has it: %v, and the early record: %v", state, refused, early)
	}
	stop()

	again := o.keyStore(quiet, &busLink{ready: make(chan struct{})}, nil)
	waitFor(t, again, k, content)
}

// KEY-9: a watcher dies with a request that it has taken. The frontend asks again, and the
// other replica of the watcher answers before proxies are told that the secret is unknown.
func TestKeysOfKilledWatcher(t *testing.T) {
	server, err := bus.StartServer(bus.ServerOptions{
		Dir: t.TempDir(), Accounts: busauth.Accounts("mesh", bus.Frontend(), bus.Watcher(shard)), Log: quiet,
	})
	must(t, err)
	t.Cleanup(func() { must(t, server.Close()) })
	connect := func(r bus.Role) *bus.Conn {
		nc, err := bus.Connect(bus.ConnectOptions{Server: server, Role: r, Name: r.String(), Log: quiet})
		must(t, err)
		t.Cleanup(nc.Close)
		return nc
	}
	serve := func(nc *bus.Conn, answer func() []byte) (stop func()) {
		return run(t, func(ctx context.Context) error {
			err := bus.NewFleet(nc, "mesh", quiet).ServeKeys(ctx, shard, bus.KeyAnswers{Answer: func(context.Context, []byte) []byte { return answer() }})
			if nc.IsClosed() {
				<-ctx.Done() // it is dead, and nothing else ends
				return nil
			}
			return err
		})
	}
	k, content := newKey("web")
	other, dying := connect(bus.Watcher(shard)), connect(bus.Watcher(shard))
	var second func()
	died := make(chan struct{})
	first := serve(dying, func() []byte {
		second = serve(other, func() []byte { return content })
		dying.Close()
		close(died)
		return nil
	})
	fleet := bus.NewFleet(connect(bus.Frontend()), "mesh", quiet)
	store := keys.New(keys.Config{Sums: sums, Log: quiet, Ask: func(ctx context.Context, w keyexchange.Want) (*keyexchange.Answer, error) {
		b, err := fleet.RequestKey(ctx, shard, []byte("x"))
		if err != nil {
			return nil, err
		}
		return &keyexchange.Answer{Outcome: keyv1.Outcome_OUTCOME_GIVEN, Fields: map[string][]byte{"tls.key": b}}, nil
	}})
	stop := run(t, store.Run)
	store.Want([]keys.Key{k})
	<-died
	began := time.Now()
	waitFor(t, store, k, content)
	if took := time.Since(began); took >= 4*time.Second {
		t.Errorf("the key came %s after the watcher died", took)
	} else {
		t.Logf("the key came %s after the watcher died", took.Round(time.Millisecond))
	}
	stop()
	first()
	second()
}

// KEY-3: a request to a watcher of the same process is a function call. A watcher
// elsewhere is asked over the bus, or not at all without --key-exchange.
func TestKeysByCall(t *testing.T) {
	k, content := newKey("web")
	o := &Options{Data: t.TempDir(), Keys: Keys{Sums: sums, Keepers: map[ident.Shard]Ask{
		shard: func(_ context.Context, w keyexchange.Want) (*keyexchange.Answer, error) {
			return &keyexchange.Answer{Outcome: keyv1.Outcome_OUTCOME_GIVEN, Fields: map[string][]byte{"tls.key": bytes.Clone(content)}}, nil
		},
	}}}
	link := &busLink{ready: make(chan struct{})}
	store := o.keyStore(quiet, link, nil)
	defer run(t, store.Run)()
	store.Want([]keys.Key{k})
	waitFor(t, store, k, content)

	elsewhere := keyexchange.Want{Shard: ident.Shard{Source: "kubernetes", Instance: "eu"}}
	if _, err := o.Keys.ask(link)(t.Context(), elsewhere); err == nil || !strings.Contains(err.Error(), "--key-exchange") {
		t.Errorf("a watcher elsewhere: %v", err)
	}
	o.Keys.Ring.File = "frontend.xk"
	if _, err := o.Keys.ask(link)(t.Context(), elsewhere); !errors.Is(err, errAway) {
		t.Errorf("without a bus: %v", err)
	}
	if new(Keys).ask(link) != nil {
		t.Error("a frontend without watchers asks some")
	}
}

// KEY-4, KEY-8: --check finds files that are missing or open to others, and a setting
// without effect.
func TestKeySettings(t *testing.T) {
	missing := filepath.Join(t.TempDir(), "missing")
	x := KeyExchange{SumsFile: missing}
	if err := x.Check(); err == nil || !strings.Contains(err.Error(), "--secret-key-file has no effect without --key-exchange or --certificates") {
		t.Errorf("without --key-exchange: %v", err)
	}
	if err := x.Verify(); err == nil || !strings.Contains(err.Error(), "--secret-key-file") {
		t.Errorf("a missing key of the HMACs: %v", err)
	}
	x.File = missing
	must(t, x.Check())
	if err := x.Verify(); err == nil || !strings.Contains(err.Error(), "--key-exchange") || !strings.Contains(err.Error(), "--secret-key-file") {
		t.Errorf("missing files: %v", err)
	}
	y := KeyExchange{Certificates: missing}
	if err := y.Check(); err == nil || !strings.Contains(err.Error(), "--certificates needs") {
		t.Errorf("certificates without the key of the HMACs: %v", err)
	}
	y.SumsFile = certtest.WriteFile(t, t.TempDir(), "hmac", sums)
	if err := y.Check(); err == nil || !strings.Contains(err.Error(), "--certificates-instance") {
		t.Errorf("certificates of no watcher: %v", err)
	}
	y.Instance = "default"
	must(t, y.Check())
	if err := y.Verify(); err == nil || !strings.Contains(err.Error(), "--certificates") {
		t.Errorf("a missing directory: %v", err)
	}
	s := DefaultSettings()
	must(t, s.Verify())
	s.SealKeyFile = certtest.WriteFile(t, t.TempDir(), "seal", bytes.Repeat([]byte("s"), 32))
	must(t, os.Chmod(s.SealKeyFile, 0o644))
	if err := s.Verify(); err == nil || !strings.Contains(err.Error(), "--seal-key-file") || !strings.Contains(err.Error(), "chmod o=") {
		t.Errorf("a seal key that others may read: %v", err)
	}
	if _, err := x.Keys(&s); err == nil {
		t.Error("the frontend starts without its files")
	}
}
