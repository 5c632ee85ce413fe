package cakv

import (
	"errors"
	"io/fs"
	"log/slog"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"meshlog.dev/services/internal/bus"
)

func must(t *testing.T, errs ...error) {
	t.Helper()
	if err := errors.Join(errs...); err != nil {
		t.Fatal(err)
	}
}

// open returns the join tokens of a bus without accounts, as an older data directory has it.
func open(t *testing.T) (*bus.Conn, *Tokens) {
	t.Helper()
	quiet := slog.New(slog.DiscardHandler)
	s, err := bus.StartServer(bus.ServerOptions{Dir: t.TempDir(), Log: quiet})
	must(t, err)
	t.Cleanup(func() { must(t, s.Close()) })
	nc, err := bus.Connect(bus.ConnectOptions{Server: s, Name: t.Name(), Log: quiet})
	must(t, err)
	t.Cleanup(nc.Close)
	tokens, err := New(nc, "mesh")
	must(t, err)
	return nc, tokens
}

// CA-6: a token is kept until it is spent, once. Errors say what to do.
func TestTokens(t *testing.T) {
	nc, s := open(t)
	ctx, key, until := t.Context(), strings.Repeat("ab", 32), time.Now().Add(time.Hour)
	if err := s.Create(ctx, key, nil, until); err == nil || !strings.Contains(err.Error(), "a builder of this build makes their stream") {
		t.Errorf("without the stream: %v", err)
	}
	must(t, EnsureStream(ctx, nc, 1), EnsureStream(ctx, nc, 1), s.Create(ctx, key, []byte("cart"), until))
	value, revision, err := s.Get(ctx, key)
	if err != nil || string(value) != "cart" || revision != 1 {
		t.Fatalf("%q, %d, %v", value, revision, err)
	}
	other, err := New(nc, "other")
	must(t, err)
	if _, _, err := other.Get(ctx, key); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("the token of another mesh: %v", err)
	}
	must(t, s.Delete(ctx, key, revision))
	_, _, gone := s.Get(ctx, key)
	for _, err := range []error{gone, s.Delete(ctx, key, revision)} {
		if !errors.Is(err, fs.ErrNotExist) {
			t.Errorf("a spent token: %v", err)
		}
	}
	if err := s.Create(ctx, strings.Repeat("cd", 32), nil, time.Now().Add(lasts+time.Minute)); err == nil || !strings.Contains(err.Error(), "for 24h0m0s at most") {
		t.Errorf("a token for longer than spent ones are kept: %v", err)
	}
	for _, bad := range []string{"", "x", ">", "*", key + ".x", strings.ToUpper(key)} {
		_, _, err := s.Get(ctx, bad)
		if !errors.Is(err, fs.ErrNotExist) || !errors.Is(s.Delete(ctx, bad, 1), fs.ErrNotExist) || s.Create(ctx, bad, nil, until) == nil {
			t.Errorf("the key %q is used as a subject: %v", bad, err)
		}
	}
}

// CA-6: a stream in which a token could be spent twice is refused.
func TestSettings(t *testing.T) {
	if f := faults(Config(1)); f.Err() != nil {
		t.Error(f.Err())
	}
	for name, change := range map[string]func(*bus.StreamConfig){
		"discard":                 func(c *bus.StreamConfig) { c.Discard = jetstream.DiscardOld },
		"discard_new_per_subject": func(c *bus.StreamConfig) { c.DiscardNewPerSubject = false },
		"max_msgs_per_subject":    func(c *bus.StreamConfig) { c.MaxMsgsPerSubject = 2 },
		"max_age":                 func(c *bus.StreamConfig) { c.MaxAge = lasts },
		"deny_delete":             func(c *bus.StreamConfig) { c.DenyDelete = false },
		"deny_purge":              func(c *bus.StreamConfig) { c.DenyPurge = false },
		"allow_rollup_hdrs":       func(c *bus.StreamConfig) { c.AllowRollup = true },
		"allow_msg_ttl":           func(c *bus.StreamConfig) { c.AllowMsgTTL = true },
		"no_ack":                  func(c *bus.StreamConfig) { c.NoAck = true },
		"republish":               func(c *bus.StreamConfig) { c.RePublish = &jetstream.RePublish{} },
	} {
		c := Config(1)
		change(&c)
		if err := faults(c).Err(); err == nil || !strings.Contains(err.Error(), name+":") {
			t.Errorf("%s: %v", name, err)
		}
	}
}
