package certificates_test

import (
	"context"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"meshlog.dev/services/agent/certificates"
)

// A saved certificate is readable by its owner only, and an agent that starts again goes on
// with it: without a token, and renewed in time. One that has ended, or that others could
// read, is not used, and no error quotes the key (KEY-1).
func TestSaved(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		i, saved := newIssuer(t), certificates.File(filepath.Join(t.TempDir(), "identity.pem"))
		start := func(with *certificates.Identity) (*certificates.Keeper, func()) {
			c := certificates.Config{Issuer: i, Tokens: &certificates.JoinFile{Path: "/nowhere"}, TTL: 24 * time.Hour, Saved: saved, Log: slog.New(slog.DiscardHandler)}
			if with == nil {
				c.Tokens = &certificates.JoinFile{Path: token(t)}
			}
			k := certificates.New(c)
			if with != nil {
				k.Restore(with)
			}
			ctx, cancel := context.WithCancel(t.Context())
			ended := make(chan struct{})
			go func() { _ = k.Run(ctx); close(ended) }()
			synctest.Wait()
			return k, func() { cancel(); <-ended }
		}
		load := func(want bool) *certificates.Identity {
			t.Helper()
			id, err := saved.Load(time.Now())
			if err != nil || (id != nil) != want {
				t.Fatalf("the saved certificate is %v, %v", id, err)
			}
			return id
		}
		load(false)
		k, stop := start(nil)
		first, _ := k.Current()
		stop()
		if info, err := os.Stat(string(saved)); err != nil || info.Mode().Perm() != 0o600 {
			t.Errorf("the file is %v, %v", info, err)
		}
		again := load(true)
		if !again.Certificate.Leaf.Equal(first.Certificate.Leaf) || !again.Root.Equal(first.Root) || again.Ends() != first.Ends() {
			t.Error("another certificate was saved")
		}
		k, stop = start(again)
		if k.Ready() != nil || len(i.requests()) != 1 {
			t.Errorf("after a restart: %v, %d requests", k.Ready(), len(i.requests()))
		}
		<-time.After(15 * time.Hour)
		synctest.Wait()
		stop()
		if now := load(true); i.how[1] != "certificate" || now.Certificate.Leaf.Equal(first.Certificate.Leaf) {
			t.Errorf("proofs %v, or the renewed certificate is not saved", i.how)
		}
		<-time.After(24 * time.Hour)
		load(false)
		b, err := os.ReadFile(string(saved))
		if err != nil {
			t.Fatal(err)
		}
		cut := b[:strings.Index(string(b), "PRIVATE KEY-----\n")+100]
		for what, change := range map[string]func() error{
			"damaged": func() error { return os.WriteFile(string(saved), cut, 0o600) },
			"no certificate": func() error {
				return os.WriteFile(string(saved), b[strings.Index(string(b), "-----BEGIN PRIVATE"):], 0o600)
			},
			"open": func() error { return os.Chmod(string(saved), 0o640) },
		} {
			if err := os.WriteFile(string(saved), b, 0o600); err != nil {
				t.Fatal(err)
			}
			if err := change(); err != nil {
				t.Fatal(err)
			}
			id, err := saved.Load(time.Now())
			if err == nil || id != nil {
				t.Errorf("%s: %v", what, id)
			} else if key := strings.Split(string(b[len(cut)-80:]), "\n")[0]; strings.Contains(err.Error(), key) {
				t.Errorf("%s: the error has the key", what)
			}
			if err := os.Chmod(string(saved), 0o600); err != nil {
				t.Fatal(err)
			}
		}
	})
}
