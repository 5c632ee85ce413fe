package watcher

import (
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
	keyv1 "meshlog.dev/proto/meshlog/key/v1"
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

// KEY-3, KEY-5, KEY-13: over a bus with accounts, a frontend gets the key that a version
// names from the directory of the watcher, and nothing else: not by an old HMAC after a
// rotation, not a removed key, and not one that others may read. The audit has each answer.
func TestKeys(t *testing.T) {
	data, quiet, shard := t.TempDir(), slog.New(slog.DiscardHandler), ident.Shard{Source: "file", Instance: "default"}
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

	certificates := t.TempDir()
	web := filepath.Join(certificates, "shop", "web")
	must(t, os.MkdirAll(web, 0o755))
	var sums map[string][]byte
	secrets := Secrets{KeyFile: certtest.WriteFile(t, t.TempDir(), "hmac", []byte("a key of sixteen bytes")), Public: true}
	options, err := secrets.Options()
	must(t, err)
	rotate := func() (key string) {
		pair := certtest.NewCA("ca").Server("web", time.Now().Add(time.Hour))
		certtest.WriteFile(t, web, "tls.crt", pair.Cert)
		certtest.WriteFile(t, web, "tls.key", pair.Key)
		ref, err := credential.Reference(credential.Source{Namespace: "shop", Name: "web", Data: map[string][]byte{"tls.crt": pair.Cert, "tls.key": pair.Key}}, options)
		must(t, err)
		sums = map[string][]byte{"tls.key": ref.GetFields()["tls.key"]}
		return string(pair.Key)
	}
	key := rotate()

	d := Directories{Config: t.TempDir(), Certificates: certificates}
	files, err := d.Watcher(secrets)
	must(t, err)
	ring := func(r bus.Role) keyring.Ring {
		name, _ := r.ExchangeKeyName()
		return keyring.Ring{File: filepath.Join(data, "auth", name)}
	}
	keys, err := d.Keys(secrets, files, ring(bus.Watcher(shard)))
	must(t, err)
	nc := connect(bus.Watcher(shard))
	stage, err := keys.stage(nc, bus.NewFleet(nc, "mesh", quiet), Options{Domain: "mesh", Shard: shard, Holder: "w"}, quiet)
	must(t, err)
	ctx, stop := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- process.RunStages(ctx, stage) }()
	t.Cleanup(func() {
		stop()
		if err := <-ended; err != nil {
			t.Errorf("answer requests: %v", err)
		}
	})

	frontend := bus.NewFleet(connect(bus.Frontend()), "mesh", quiet)
	send := func(ctx context.Context, request []byte) ([]byte, error) {
		return frontend.RequestKey(ctx, shard, request)
	}
	want := func(name string) keyexchange.Want {
		return keyexchange.Want{Shard: shard, Namespace: "shop", Name: name, Sums: sums}
	}
	ask := func(w keyexchange.Want) (keyv1.Outcome, string, string) {
		t.Helper()
		for {
			a, err := ring(bus.Frontend()).Ask(t.Context(), w, send)
			if errors.Is(err, bus.ErrNoKeeper) {
				continue // it does not listen yet
			}
			must(t, err)
			return a.Outcome, string(a.Fields["tls.key"]), a.Reason
		}
	}
	if outcome, got, reason := ask(want("web")); outcome != keyv1.Outcome_OUTCOME_GIVEN || got != key {
		t.Errorf("the frontend gets %s, %d bytes, %q", outcome, len(got), reason)
	}
	old := want("web")
	key = rotate()
	for what, c := range map[string]struct {
		want    keyexchange.Want
		outcome keyv1.Outcome
	}{
		"an old HMAC":      {old, keyv1.Outcome_OUTCOME_CHANGED},
		"another object":   {want("other"), keyv1.Outcome_OUTCOME_GONE},
		"a path":           {want("../shop/web"), keyv1.Outcome_OUTCOME_GONE},
		"the rotated HMAC": {want("web"), keyv1.Outcome_OUTCOME_GIVEN},
	} {
		outcome, got, _ := ask(c.want)
		if given := outcome == keyv1.Outcome_OUTCOME_GIVEN; outcome != c.outcome || given != (got == key) || !given && got != "" {
			t.Errorf("%s: %s with %d bytes, want %s", what, outcome, len(got), c.outcome)
		}
	}
	must(t, os.Chmod(filepath.Join(web, "tls.key"), 0o644))
	if outcome, got, reason := ask(want("web")); outcome != keyv1.Outcome_OUTCOME_REFUSED || got != "" || !strings.Contains(reason, "run: chmod 600") {
		t.Errorf("a key that others may read: %s, %d bytes, %q", outcome, len(got), reason)
	}

	// A frontend of the same process asks by a function call, with the same answers (KEY-3).
	if a, err := keys.Ask(t.Context(), want("web")); err != nil || a.Outcome != keyv1.Outcome_OUTCOME_REFUSED || len(a.Fields) != 0 {
		t.Errorf("a key that others may read, by a call: %v, %v", a, err)
	}
	must(t, os.Chmod(filepath.Join(web, "tls.key"), 0o600))
	if a, err := keys.Ask(t.Context(), old); err != nil || a.Outcome != keyv1.Outcome_OUTCOME_CHANGED || len(a.Fields) != 0 {
		t.Errorf("an old HMAC, by a call: %v, %v", a, err)
	}
	if a, err := keys.Ask(t.Context(), want("web")); err != nil || a.Outcome != keyv1.Outcome_OUTCOME_GIVEN || string(a.Fields["tls.key"]) != key {
		t.Errorf("by a call: %v, %v", a.Outcome, err)
	}
	if _, err := keys.Ask(t.Context(), keyexchange.Want{Shard: ident.Shard{Source: "file", Instance: "other"}}); err == nil {
		t.Error("the watcher answers for another shard")
	}
	if _, err := new(Keys).Ask(t.Context(), want("web")); !errors.Is(err, errNotStarted) {
		t.Errorf("before the watcher has started: %v", err)
	}

	// A watcher with too many requests says so, and writes no record.
	busy := func(_ context.Context, request []byte) ([]byte, error) { return keys.running.Load().busy(request), nil }
	if a, err := ring(bus.Frontend()).Ask(t.Context(), want("web"), busy); err != nil || a.Outcome != keyv1.Outcome_OUTCOME_BUSY || len(a.Fields) != 0 {
		t.Errorf("beyond the bounds: %v, %v", a, err)
	}

	// A frontend that is not in the list is not answered, and is told why.
	name := ring(bus.Frontend()).File
	must(t, os.Remove(name))
	seed, err := keyring.NewSeed()
	must(t, err, os.WriteFile(name, seed, 0o600))
	if _, err := ring(bus.Frontend()).Ask(t.Context(), want("web"), send); !errors.Is(err, keyexchange.ErrNotOpened) {
		t.Errorf("a frontend that is not in the list: %v", err)
	}
	if _, err := ring(bus.Frontend()).Ask(t.Context(), want("web"), busy); !errors.Is(err, keyexchange.ErrNotOpened) {
		t.Errorf("a frontend that is not in the list, beyond the bounds: %v", err)
	}

	reader, err := audit.NewReader(connect(bus.Operator()), "mesh")
	must(t, err)
	var all []audit.Entry
	for deadline := time.Now().Add(time.Minute); len(all) < 9 && time.Now().Before(deadline); {
		all, _, err = reader.Newest(t.Context(), 20)
		must(t, err)
	}
	given := 0
	for _, e := range all {
		must(t, e.Err)
		if r := e.Record; r.GetReason() == "" {
			given++
		}
	}
	if len(all) != 9 || given != 3 {
		t.Errorf("the audit has %d answers, %d of them with a key", len(all), given)
	}
}

// KEY-4: --check finds missing files of the key exchange, and a setting without effect.
func TestKeyExchange(t *testing.T) {
	var none KeyExchange
	must(t, none.Check("certificates", ""), none.Verify())
	missing := KeyExchange{File: filepath.Join(t.TempDir(), "watcher-file-default.xk")}
	if err := missing.Check("certificates", ""); err == nil || !strings.Contains(err.Error(), "--key-exchange has no effect without --certificates") {
		t.Errorf("without certificates: %v", err)
	}
	if err := missing.Verify(); !errors.Is(err, os.ErrNotExist) || !strings.Contains(err.Error(), missing.File) {
		t.Errorf("a missing file: %v", err)
	}
	must(t, missing.Check("certificates", t.TempDir()))
}
