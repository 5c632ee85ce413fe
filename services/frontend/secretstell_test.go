package frontend

import (
	"context"
	"log/slog"
	"strings"
	"testing"

	"meshlog.dev/proto/ident"
	"meshlog.dev/services/frontend/keys"
	"meshlog.dev/services/internal/keyexchange"
	"meshlog.dev/services/internal/loglimit"
	"meshlog.dev/services/mesh/xds/piece"
)

// A stream that is behind asks for the key of the version before after the new version is
// served: no key stays that no served version names (KEY-8).
func TestKeyOfVersionBefore(t *testing.T) {
	log := slog.New(slog.DiscardHandler)
	store := keys.New(keys.Config{Log: log, Ask: func(ctx context.Context, _ keyexchange.Want) (*keyexchange.Answer, error) {
		<-ctx.Done()
		return nil, ctx.Err()
	}})
	key := func(sum string) piece.Key {
		return piece.Key{Object: ident.Key{Source: "file", Instance: "default", Kind: "Secret", Namespace: "edge", Name: "shop"}, Field: "tls.key", Sum: strings.Repeat(sum, 32)}
	}
	before, now := key("1"), key("2")
	served := map[piece.Key]bool{before: true}
	s := newSecrets(store, func() map[piece.Key]bool { return served }, loglimit.New(log, 1), nil)
	ask := func(k piece.Key) { s.asked[keyOf(&k)] = &askedKey{by: map[*conn][]string{}} }
	state := func(k piece.Key) keys.State {
		_, state := store.Get(keyOf(&k))
		return state
	}
	ask(before)
	s.tell()
	served = map[piece.Key]bool{now: true}
	s.keep()
	ask(before)
	ask(now)
	s.tell()
	if state(before) != keys.Gone || state(now) != keys.Coming {
		t.Errorf("the key of the version before is %s, that of the served one %s; want gone, coming", state(before), state(now))
	}
	s.named = func() map[piece.Key]bool { // a version is served meanwhile
		s.named = func() map[piece.Key]bool { return map[piece.Key]bool{now: true, before: true} }
		s.kept++
		return served
	}
	ask(before)
	s.tell()
	if state(before) != keys.Coming {
		t.Errorf("a key that the newest version names is %s, want coming", state(before))
	}
}
