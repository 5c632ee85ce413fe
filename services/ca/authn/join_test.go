package authn_test

import (
	"bytes"
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/grpc/codes"

	"meshlog.dev/services/ca/authn"
	"meshlog.dev/services/ca/jointoken"
)

// forStores runs a test with each store; replicas returns one more replica's view of it.
func forStores(t *testing.T, test func(t *testing.T, replica func() jointoken.Store)) {
	t.Helper()
	t.Run("memory", func(t *testing.T) {
		s := new(jointoken.Memory)
		test(t, func() jointoken.Store { return s })
	})
	t.Run("file", func(t *testing.T) {
		dir := filepath.Join(t.TempDir(), "tokens")
		test(t, func() jointoken.Store {
			s, err := jointoken.NewFiles(dir)
			if err != nil {
				t.Fatal(err)
			}
			return s
		})
	})
}

func newToken(t *testing.T, s jointoken.Store, until time.Time) string {
	t.Helper()
	token, err := jointoken.New(t.Context(), s, "shop", "cart", until)
	if err != nil {
		t.Fatal(err)
	}
	return token
}

// CA-6: a join token is good for one certificate of one identity.
func TestJoinTokenOnce(t *testing.T) {
	forStores(t, func(t *testing.T, replica func() jointoken.Store) {
		s := replica()
		token := newToken(t, s, time.Now().Add(10*time.Minute))
		other := newToken(t, s, time.Now().Add(10*time.Minute))
		j := authn.NewJoin(domain, s)
		for range 2 { // checking it costs nothing: the certificate request may be invalid
			if p, err := authenticate(t, j, token); err != nil || p.ID != cart {
				t.Fatalf("%+v, %v", p, err)
			}
		}
		p, err := authenticate(t, j, token)
		if err != nil || p.Spend(t.Context()) != nil {
			t.Fatal(err)
		}
		again, err := authenticate(t, j, token)
		expectRefusal(t, again, err, codes.Unauthenticated, "unknown, spent or has ended", token)
		var r *authn.Refusal
		if err := p.Spend(t.Context()); !errors.As(err, &r) || r.Code != codes.Unauthenticated {
			t.Errorf("spent twice: %v", err)
		}
		if _, err := authenticate(t, j, other); err != nil {
			t.Errorf("another token: %v", err)
		}
		for _, unknown := range []string{"meshlog-join-", "meshlog-join-AAAA", "meshlog-join-../../etc/passwd", token + "x", token[:len(token)-1]} {
			p, err := authenticate(t, j, unknown)
			expectRefusal(t, p, err, codes.Unauthenticated, "unknown, spent or has ended", "")
		}
	})
}

// CA-6: of replicas that get a join token at once, one accepts it.
func TestJoinTokenAtTwoReplicasAtOnce(t *testing.T) {
	forStores(t, func(t *testing.T, replica func() jointoken.Store) {
		const replicas, rounds = 4, 50
		for range rounds {
			token := newToken(t, replica(), time.Now().Add(time.Minute))
			spent := make([]error, replicas)
			var all sync.WaitGroup
			start := make(chan struct{})
			for i := range replicas {
				j := authn.NewJoin(domain, replica())
				p, err := authenticate(t, j, token)
				if err != nil {
					t.Fatal(err)
				}
				all.Go(func() { <-start; spent[i] = p.Spend(context.Background()) })
			}
			close(start)
			all.Wait()
			accepted := 0
			for _, err := range spent {
				if err == nil {
					accepted++
				}
			}
			if accepted != 1 {
				t.Fatalf("%d of %d replicas accepted one token: %v", accepted, replicas, spent)
			}
		}
	})
}

// CA-6: a join token ends.
func TestJoinTokenEnds(t *testing.T) {
	forStores(t, func(t *testing.T, replica func() jointoken.Store) {
		synctest.Test(t, func(t *testing.T) {
			s := replica()
			j := authn.NewJoin(domain, s)
			token := newToken(t, s, time.Now().Add(10*time.Minute))
			<-time.After(10*time.Minute - time.Second)
			if _, err := authenticate(t, j, token); err != nil {
				t.Error(err)
			}
			<-time.After(time.Second)
			p, err := authenticate(t, j, token)
			expectRefusal(t, p, err, codes.Unauthenticated, "ended", token)
			if _, err := jointoken.New(t.Context(), s, "shop", "cart", time.Now()); err == nil {
				t.Error("a token was made that has ended")
			}
		})
	})
	for _, names := range [][2]string{{"Shop", "cart"}, {"shop", ""}, {"shop", "a/b"}, {"*", "cart"}} {
		if _, err := jointoken.New(t.Context(), new(jointoken.Memory), names[0], names[1], time.Now().Add(time.Hour)); err == nil {
			t.Errorf("a token for %v was made", names)
		}
	}
}

// CA-6: what is kept is a hash, readable by the owner only; what has ended goes.
func TestJoinTokenFiles(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "tokens")
	s, err := jointoken.NewFiles(dir)
	if err != nil {
		t.Fatal(err)
	}
	token := newToken(t, s, time.Now().Add(time.Hour))
	if secret, ok := strings.CutPrefix(token, "meshlog-join-"); !ok || len(secret) != 43 { // 256 bits
		t.Errorf("the token is %q", token)
	}
	files := func() []os.DirEntry {
		all, err := os.ReadDir(dir)
		if err != nil {
			t.Fatal(err)
		}
		return all
	}
	all := files()
	if len(all) != 1 {
		t.Fatalf("the files are %v", all)
	}
	path := filepath.Join(dir, all[0].Name())
	content, err := os.ReadFile(path)
	if err != nil || bytes.Contains(content, []byte(token)) || strings.Contains(token, all[0].Name()) {
		t.Errorf("the file has the token: %v", err)
	}
	if info, err := all[0].Info(); err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("the mode is %v, %v", info.Mode(), err)
	}
	old, foreign := time.Now().Add(-time.Hour), filepath.Join(dir, "notes")
	if err := errors.Join(os.WriteFile(foreign, nil, 0o600), os.Chtimes(foreign, old, old), os.Chtimes(path, old, old)); err != nil {
		t.Fatal(err)
	}
	newToken(t, s, time.Now().Add(time.Hour))
	if all := files(); len(all) != 2 || filepath.Join(dir, all[0].Name()) == path || all[1].Name() != "notes" {
		t.Errorf("the files are %v", all)
	}
}

// A store that cannot be reached refuses, and the caller may try again.
func TestJoinStoreAway(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "tokens")
	s, err := jointoken.NewFiles(dir)
	if err != nil {
		t.Fatal(err)
	}
	token := newToken(t, s, time.Now().Add(time.Hour))
	if err := errors.Join(os.RemoveAll(dir), os.WriteFile(dir, nil, 0o600)); err != nil { // now a file
		t.Fatal(err)
	}
	p, err := authenticate(t, authn.NewJoin(domain, s), token)
	expectRefusal(t, p, err, codes.Unavailable, "cannot be read now", token)
}
