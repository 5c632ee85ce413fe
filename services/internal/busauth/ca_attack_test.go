package busauth

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"meshlog.dev/proto/jsapi"
	"meshlog.dev/services/internal/bus"
	"meshlog.dev/services/internal/cakv"
)

// Keys of join tokens, and the subjects of one.
var (
	joinKey      = strings.Repeat("0a", 32)
	joinSubject  = "$KV.meshlog_ca.mesh.join." + joinKey
	spentSubject = "$KV.meshlog_ca.mesh.spent." + strings.Repeat("0b", 32)
)

// tokens returns the join tokens as a role reaches them.
func (b *target) tokens(r bus.Role, node int) *cakv.Tokens {
	b.Helper()
	s, err := cakv.New(b.connect(r, node), "mesh")
	must(b.TB, err)
	return s
}

// CA-6: with the keys that bus-auth writes, an operator makes join tokens, and of several
// CAs that spend one at once, on different servers, one succeeds.
func TestJoinTokens(t *testing.T) {
	for name, a := range arrangements {
		t.Run(name, func(t *testing.T) {
			b := underAttack(t, a, nil)
			ctx, until := t.Context(), time.Now().Add(10*time.Minute)
			operator := b.tokens(bus.Operator(), 0)
			cas := []*cakv.Tokens{b.tokens(bus.Watcher(ca), 1), b.tokens(bus.Watcher(ca), 2), b.tokens(bus.Watcher(ca), 0)}
			for round := range 20 {
				key := fmt.Sprintf("%064x", round)
				must(t, operator.Create(ctx, key, []byte("shop"), until))
				if err := operator.Create(ctx, key, []byte("other"), until); !errors.Is(err, fs.ErrExist) {
					t.Errorf("a token is made twice: %v", err)
				}
				spent := make([]error, len(cas))
				start := make(chan struct{})
				var all sync.WaitGroup
				for i, c := range cas {
					value, revision, err := c.Get(ctx, key)
					if err != nil || string(value) != "shop" {
						t.Fatalf("%q, %v", value, err)
					}
					all.Go(func() { <-start; spent[i] = c.Delete(ctx, key, revision) })
				}
				close(start)
				all.Wait()
				accepted := 0
				for _, err := range spent {
					switch {
					case err == nil:
						accepted++
					case !errors.Is(err, fs.ErrNotExist):
						t.Errorf("a CA that comes late: %v", err)
					}
				}
				if accepted != 1 {
					t.Fatalf("%d of %d CAs spent one token: %v", accepted, len(cas), spent)
				}
				if _, _, err := cas[0].Get(ctx, key); !errors.Is(err, fs.ErrNotExist) {
					t.Errorf("a spent token: %v", err)
				}
				if err := operator.Create(ctx, key, []byte("shop"), until); !errors.Is(err, fs.ErrExist) {
					t.Errorf("a spent token is made again: %v", err)
				}
			}
		})
	}
}

func joinAttacks() map[string]attack {
	operator, authority := []bus.Role{bus.Operator()}, []bus.Role{bus.Watcher(ca)}
	return map[string]attack{
		"make a token":          {request{"$KV.meshlog_ca.mesh.join." + strings.Repeat("c", 64), "x"}, operator},
		"replace a token":       {request{joinSubject, "x"}, operator},
		"spend a token":         {request{"$KV.meshlog_ca.mesh.spent." + joinKey, "x"}, authority},
		"write elsewhere":       {request{"$KV.meshlog_ca.mesh.other", "x"}, nil},
		"a token of another":    {request{"$KV.meshlog_ca.other.join.x", "x"}, nil},
		"read":                  {request{"$JS.API.STREAM.MSG.GET.KV_meshlog_ca", `{"seq":1}`}, authority},
		"read by Direct Get":    {request{"$JS.API.DIRECT.GET.KV_meshlog_ca", `{"seq":1}`}, nil},
		"read the last":         {request{"$JS.API.DIRECT.GET.KV_meshlog_ca." + joinSubject, ""}, nil},
		"list":                  {request{"$JS.API.STREAM.INFO.KV_meshlog_ca", `{"subjects_filter":">"}`}, []bus.Role{bus.Builder(), bus.Operator()}},
		"make the stream":       {request{"$JS.API.STREAM.CREATE.KV_meshlog_ca", `{"name":"KV_meshlog_ca"}`}, []bus.Role{bus.Builder()}},
		"read by a consumer":    {request{"$JS.API.CONSUMER.CREATE.KV_meshlog_ca.c", `{"stream_name":"KV_meshlog_ca","config":{"name":"c","deliver_subject":"x","ack_policy":"none"}}`}, nil},
		"purge the spent ones":  {request{"$JS.API.STREAM.PURGE.KV_meshlog_ca", `{"filter":"` + spentSubject + `"}`}, nil},
		"delete a spent one":    {request{"$JS.API.STREAM.MSG.DELETE.KV_meshlog_ca", `{"seq":2}`}, nil},
		"delete the stream":     {request{"$JS.API.STREAM.DELETE.KV_meshlog_ca", ""}, nil},
		"change the stream":     {request{"$JS.API.STREAM.UPDATE.KV_meshlog_ca", `{"name":"KV_meshlog_ca","subjects":["x"]}`}, nil},
		"restore the stream":    {request{"$JS.API.STREAM.RESTORE.KV_meshlog_ca", `{"config":{"name":"KV_meshlog_ca"}}`}, nil},
		"take a snapshot of it": {request{"$JS.API.STREAM.SNAPSHOT.KV_meshlog_ca", `{"deliver_subject":"x"}`}, nil},
	}
}

// CA-6: only operators make join tokens, only the ca reads and spends them, and no role
// deletes what was spent. The user's list refuses each request; a user without a list,
// which only the account holds, changes no stream and gets no answer.
func TestJoinTokenAttacks(t *testing.T) {
	for name, a := range arrangements {
		t.Run(name, func(t *testing.T) {
			b := underAttack(t, a, nil)
			before := b.state()
			for _, role := range []bus.Role{bus.Watcher(files), bus.Watcher(ca), bus.Watcher(jwks), bus.Frontend(), bus.Builder(), bus.Operator(), bus.Observer(), bus.Console()} {
				limited, unlimited := b.raw(b.key(role), len(b.addrs)-1), b.raw(b.observers[accountName(role)], len(b.addrs)-1)
				h := b.observe(accountName(role), 0)
				for _, subject := range []string{"$KV.>", "$KV.meshlog_ca.>", joinSubject} {
					if said := limited.subscribe(subject); !strings.Contains(said, "Permissions Violation") {
						t.Errorf("%s may subscribe to %s: %s", role, subject, said)
					}
				}
				for what, q := range joinAttacks() {
					if slices.Contains(q.allowed, role) {
						continue
					}
					if said := limited.publish(q.subject, "", q.data); !strings.Contains(said, "Permissions Violation") {
						t.Errorf("%s: %s may publish to %s: %s", what, role, q.subject, said)
					}
					own := fmt.Sprintf("answer.%s.", role)
					reply := own + strings.ReplaceAll(what, " ", "-")
					unlimited.publish(q.subject, reply, q.data)
					if now := b.state(); now != before {
						t.Fatalf("%s by %s changed the streams:\n%swas\n%s", what, role, now, before)
					}
					must(t, h.nc.Flush())
					if n := h.any(q.subject, reply, own); n > 0 {
						t.Errorf("%s by %s: %d answers", what, role, n)
					}
				}
			}
		})
	}
}

// CA-6: the server itself stores one message for each token and one when it is spent,
// also for a client that leaves the conditions out, and for the administrator.
func TestJoinTokenIsSpentOnceByTheServer(t *testing.T) {
	b := underAttack(t, one, nil)
	for role, subject := range map[bus.Role]string{bus.Operator(): joinSubject, bus.Watcher(ca): spentSubject} {
		js, err := jetstream.New(b.connect(role, 0))
		must(t, err)
		if _, err := js.Publish(t.Context(), subject, []byte("x")); jsapi.Code(err) != jsapi.StreamStoreFailed {
			t.Errorf("%s writes %s again: %v", role, subject, err)
		}
	}
	got, err := b.admin.Stream(t.Context(), cakv.Stream)
	must(t, err)
	m, err := got.GetLastMsgForSubject(t.Context(), joinSubject)
	if err != nil || !bytes.Equal(m.Data, []byte(creation)) {
		t.Errorf("the token is %q, %v", m.Data, err)
	}
	c := cakv.Config(1)
	c.DiscardNewPerSubject = false
	_, err = b.admin.UpdateStream(t.Context(), c)
	must(t, err)
	if err := cakv.EnsureStream(t.Context(), b.connect(bus.Builder(), 0), 1); err == nil || !strings.Contains(err.Error(), "a join token could be spent twice") {
		t.Errorf("a builder takes a stream that allows it: %v", err)
	}
}
