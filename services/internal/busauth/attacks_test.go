package busauth

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"google.golang.org/protobuf/proto"

	"meshlog.dev/events"
	"meshlog.dev/proto/ident"
	reportv1 "meshlog.dev/proto/meshlog/report/v1"
	"meshlog.dev/services/internal/bus"
)

type ctx = context.Context

// request is a request that a role may send.
type request struct{ subject, data string }

// The requests that watchers, a frontend, an operator, an observer and a console may send and that get an answer.
func requests(t *testing.T) map[bus.Role]map[string]request {
	digests, err := proto.Marshal(&reportv1.DigestRequest{Source: "file", Instance: "default", Session: "1"})
	must(t, err)
	pod, err := proto.Marshal(&reportv1.PodRequest{Namespace: "shop", Name: "web-1", ServiceAccount: "web"})
	must(t, err)
	status, err := proto.Marshal(&reportv1.AuthorityRequest{})
	must(t, err)
	return map[bus.Role]map[string]request{
		bus.Watcher(ca): {"a pod, of the leader": {podsSubject, string(pod)}},
		bus.Operator():  {"the roots, of the ca": {authoritySubject, string(status)}},
		bus.Observer():  {"INFO": {"$JS.API.INFO", ""}},
		bus.Console(): {
			"Direct Get batch": {"$JS.API.DIRECT.GET.MESHLOG_VERSIONS", `{"seq":1,"next_by_subj":"meshlog.ver.mesh","batch":10}`},
			"MSG.GET":          {"$JS.API.STREAM.MSG.GET.MESHLOG_EVENTS", `{"seq":1}`},
		},
		bus.Watcher(files): {
			"STREAM.INFO":               {"$JS.API.STREAM.INFO.MESHLOG_EVENTS", ""},
			"Direct Get":                {"$JS.API.DIRECT.GET.MESHLOG_EVENTS.meshlog.ev.mesh.file.default.Gateway.x", ""},
			"Direct Get without record": {"$JS.API.DIRECT.GET.MESHLOG_EVENTS.meshlog.ev.mesh.file.default.Gateway.none", ""},
			"INFO":                      {"$JS.API.INFO", ""},
			"own permissions":           {"$SYS.REQ.USER.INFO", ""},
			"digests, of the leader":    {"meshlog.fleet.mesh.digests", string(digests)},
		},
		bus.Frontend(): {
			"Direct Get batch": {"$JS.API.DIRECT.GET.MESHLOG_VERSIONS", `{"seq":1,"next_by_subj":"meshlog.ver.mesh","batch":10}`},
			"MSG.GET":          {"$JS.API.STREAM.MSG.GET.MESHLOG_VERSIONS", `{"last_by_subj":"meshlog.ver.mesh"}`},
			"a key":            {"meshlog.key.mesh.file.default", "x"},
		},
	}
}

// replies are subjects of other roles, and of the server. A message on any of the first
// seven is believed by some role; the server obeys the last ones.
var replies = []string{
	"meshlog.ver.mesh",
	"meshlog.ev.mesh._builder.segment",
	"meshlog.ev.mesh._operator.overlay",
	"meshlog.ev.mesh.kubernetes.eu.Gateway.x",
	"$KV.meshlog_lease.builder.mesh",
	"meshlog.fleet.mesh.tick",
	"meshlog.fleet.mesh.report.builder.forged",
	"_IN.builder.builder-1.forged",
	"_R_.forged.x",
	"$JS.API.STREAM.DELETE.MESHLOG_VERSIONS",
	"$JS.ACK.MESHLOG_EVENTS.c.1.1.1.1.0",
	"$SYS.REQ.SERVER.PING",
	"meshlog.audit.mesh.watcher.kubernetes.eu",
	"$KV.meshlog_ca.mesh.join.forged",
}

// repliesOf are more subjects of other roles, for one role; the first is a shard's own.
func repliesOf(r bus.Role) []string {
	all := append(slices.Clone(replies), "meshlog.ev.mesh.file.default._ctl")
	if r == bus.Frontend() {
		return append(all, "meshlog.audit.mesh.watcher.file.default")
	}
	return append(all, "meshlog.audit.mesh.frontend", "meshlog.key.mesh.kubernetes.eu")
}

// reserved reports whether the server refuses a client's reply.
func reserved(reply string) bool {
	return strings.HasPrefix(reply, "_R_.") || strings.HasPrefix(reply, "$JS.ACK.")
}

// BUS-2: JetStream publishes answers without checking the rights of the client that
// asked, to any subject that the client names. None of the 232 combinations changes a
// stream or reaches another account. Those that an operator may publish to without asking
// are left out.
func TestAttacksByReply(t *testing.T) {
	for name, a := range arrangements {
		t.Run(name, func(t *testing.T) {
			b := underAttack(t, a, nil)
			leader := bus.NewFleet(b.connect(bus.Builder(), 0), "mesh", quiet)
			serving, stop := context.WithCancel(t.Context())
			ended := make(chan error, 1)
			go func() {
				ended <- leader.ServeDigests(serving, func(ctx, ident.Shard, string, events.Kinds) (*events.ShardDigests, bool) {
					return new(events.ShardDigests), true
				})
			}()
			t.Cleanup(func() {
				stop()
				if err := <-ended; !errors.Is(err, context.Canceled) {
					t.Errorf("serve digests: %v", err)
				}
			})
			b.serveKeys(files)
			b.serveRoots()
			before, combinations := b.state(), 0
			for role, all := range requests(t) {
				own := accountName(role)
				observed := map[string]heard{}
				for account := range b.observers {
					observed[account] = b.observe(account, 0)
				}
				for node := range b.addrs {
					attacker := b.raw(b.key(role), node)
					for what, q := range all {
						// The answer to this one says that the responder listens.
						b.answered(attacker, q, "_IN."+strings.TrimSuffix(role.String(), "-file-default")+".there", observed[own])
						for _, reply := range repliesOf(role) {
							if role == bus.Operator() && slices.ContainsFunc(Permissions(role, "mesh").Publish, func(own string) bool { return covers(own, reply) }) {
								continue
							}
							combinations++
							said := attacker.publish(q.subject, reply, q.data)
							switch {
							case reserved(reply) && !strings.Contains(said, "-ERR"):
								t.Errorf("%s of %s with the reply %s: the server refuses nothing", what, role, reply)
							case !reserved(reply):
								b.await(reply, observed[own])
							}
							if now := b.state(); now != before {
								t.Fatalf("%s of %s with the reply %s changed the streams:\n%swas\n%s", what, role, reply, now, before)
							}
							for account, h := range observed {
								must(t, h.nc.Flush())
								if n := h.under(reply); n > 0 && account != own {
									t.Errorf("%s of %s with the reply %s: %d answers reached %s", what, role, reply, n, account)
								}
							}
						}
					}
				}
			}
			if want := 232 * len(b.addrs); combinations != want {
				t.Errorf("%d combinations were tried, want %d", combinations, want)
			}
		})
	}
}

// serveKeys answers requests for keys of a shard, as its watcher.
func (b *target) serveKeys(shard ident.Shard) {
	b.Helper()
	b.serve(bus.NewFleet(b.connect(bus.Watcher(shard), 0), "mesh", quiet), shard)
}

func (b *target) serve(watcher *bus.Fleet, shard ident.Shard) {
	b.Helper()
	serving, stop := context.WithCancel(b.Context())
	ended := make(chan error, 1)
	go func() {
		ended <- watcher.ServeKeys(serving, shard, bus.KeyAnswers{Answer: func(_ ctx, request []byte) []byte { return append([]byte("the key for "), request...) }})
	}()
	b.Cleanup(func() {
		stop()
		if err := <-ended; !errors.Is(err, context.Canceled) {
			b.Errorf("serve keys: %v", err)
		}
	})
}

// answered repeats a request until it is answered in the attacker's account.
func (b *target) answered(attacker *raw, q request, reply string, own heard) {
	b.Helper()
	for {
		if said := attacker.publish(q.subject, reply, q.data); said != "" {
			b.Fatalf("%s: %s", q.subject, said)
		}
		select {
		case m := <-own.all:
			if m.Subject == reply && m.Header.Get("Status") != "503" {
				return
			}
		case <-time.After(100 * time.Millisecond):
		case <-b.Context().Done():
			b.Fatalf("%s: no answer", q.subject)
		}
	}
}

// await waits until the answer has arrived where it belongs.
func (b *target) await(reply string, own heard) {
	b.Helper()
	for {
		select {
		case m := <-own.all:
			if m.Subject == reply {
				return
			}
		case <-time.After(10 * time.Second):
			b.Fatalf("no answer under %s: the attack proves nothing", reply)
		}
	}
}

// The other attacks of the design: a role that publishes without asking, as a user
// without a permission list, so that only the account holds it; a trace; the consumer
// of a builder.
func TestAttacksByPublish(t *testing.T) {
	for name, a := range map[string]arrangement{"one": one, "three": three} {
		t.Run(name, func(t *testing.T) {
			b := underAttack(t, a, nil)
			before := b.state()
			observed := map[string]heard{}
			for account := range b.observers {
				observed[account] = b.observe(account, 1)
			}
			check := func(what, subject, own string) {
				t.Helper()
				if now := b.state(); now != before {
					t.Fatalf("%s changed the streams:\n%swas\n%s", what, now, before)
				}
				for account, h := range observed {
					must(t, h.nc.Flush())
					if n := h.under(subject); n > 0 && account != own {
						t.Errorf("%s reached %s", what, account)
					}
				}
			}
			more := []string{
				"meshlog.fleet.mesh.report.watcher.w.kubernetes.eu", "meshlog.fleet.mesh.listing.kubernetes.eu", "meshlog.live.ver.mesh",
				"meshlog.ev.mesh.api.default.Gateway.x", "meshlog.ev.mesh.api.default._ctl", // of operators (API-4)
				"meshlog.fleet.mesh.issuers", "$O.meshlog_blobs.C.x", "$JS.API.STREAM.UPDATE.MESHLOG_EVENTS", "$JS.API.STREAM.PURGE.OBJ_meshlog_blobs", "$JS.API.CONSUMER.CREATE.MESHLOG_EVENTS.x",
			}
			for _, role := range []bus.Role{bus.Watcher(files), bus.Frontend()} {
				limited := b.raw(b.key(role), 0)
				unlimited := b.raw(b.observers[accountName(role)], 0)
				for _, subject := range append(more, replies...) {
					if reserved(subject) {
						continue
					}
					if said := limited.publish(subject, "", creation); !strings.Contains(said, "Permissions Violation") {
						t.Errorf("%s may publish to %s: %s", role, subject, said)
					}
					unlimited.publish(subject, "", creation)
					check(fmt.Sprintf("%s, which published to %s,", role, subject), subject, accountName(role))
				}
			}

			// The server checks the destination of traces; without a list it stays inside.
			own := "meshlog.ev.mesh.file.default.Gateway.none"
			unlimited := b.raw(b.observers["W-file-default"], 0)
			for _, to := range []string{"meshlog.ver.mesh", "$KV.meshlog_lease.builder.mesh", "meshlog.ev.mesh.kubernetes.eu.Gateway.x"} {
				b.raw(b.key(bus.Watcher(files)), 0).traced("$JS.API.STREAM.INFO.MESHLOG_EVENTS", to, "")
				unlimited.traced("$JS.API.DIRECT.GET.MESHLOG_EVENTS."+own, to, "")
				check("a trace to "+to, to, "W-file-default")
			}

			// A builder's consumer delivers records wherever it says.
			builder := b.raw(b.key(bus.Builder()), 0)
			for i, to := range []string{"meshlog.ver.mesh", "meshlog.ev.mesh._operator.overlay", "$KV.meshlog_lease.builder.mesh", "$JS.API.STREAM.DELETE.MESHLOG_VERSIONS"} {
				name := fmt.Sprint("c", i)
				q := fmt.Sprintf(`{"stream_name":"MESHLOG_EVENTS","config":{"name":%q,"deliver_subject":%q,"ack_policy":"none","deliver_policy":"all","inactive_threshold":1000000000}}`, name, to)
				builder.send("PUB $JS.API.CONSUMER.CREATE.MESHLOG_EVENTS.%s _IN.builder.x %d\r\n%s\r\n", name, len(q), q)
				if said := builder.ping(); said != "" {
					t.Fatal(said)
				}
				b.await("_IN.builder.x", observed["BUILDER"])
				check("a consumer that delivers to "+to, to, "MESHLOG")
			}
		})
	}
}

// The attack is real: a client with a watcher's permissions in the account of the
// streams, as in a layout with one account, writes where it likes.
func TestAttacksWorkInOneAccount(t *testing.T) {
	b := underAttack(t, one, func(conf string) string {
		// The watcher's user, moved to the account of the streams. It follows the
		// observer of its account.
		_, user, _ := strings.Cut(conf, "\"W-file-default\" {")
		_, user, _ = strings.Cut(user, "users: [\n")
		user, _, _ = strings.Cut(user, "\n    ]\n")
		_, user, _ = strings.Cut(user, "\n")
		conf = strings.Replace(conf, user, "", 1)
		return usersOf.ReplaceAllStringFunc(conf, func(block string) string {
			if strings.Contains(block, "\"MESHLOG\"") {
				return block + user + "\n"
			}
			return block
		})
	})
	before := b.state()
	attacker := b.raw(b.key(bus.Watcher(files)), 0)
	hub := b.observe("MESHLOG", 0)
	attacker.publish("$JS.API.STREAM.INFO.MESHLOG_EVENTS", "meshlog.ver.mesh", "")
	b.await("meshlog.ver.mesh", hub)
	must(t, hub.nc.Flush())
	if now := b.state(); now == before {
		t.Errorf("the attack changed nothing:\n%s", now)
	}
	attacker.publish("$JS.API.DIRECT.GET.MESHLOG_EVENTS.meshlog.ev.mesh.file.default.Gateway.none", "$JS.API.STREAM.DELETE.MESHLOG_VERSIONS", "")
	b.await("$JS.API.STREAM.DELETE.MESHLOG_VERSIONS", hub)
	for strings.Contains(b.state(), "MESHLOG_VERSIONS") {
		if t.Context().Err() != nil {
			t.Fatal("the attack deleted no stream")
		}
	}
}

// No role, and not the administrator by mistake, makes a seventh stream.
func TestStreamsAreSix(t *testing.T) {
	b := underAttack(t, one, nil)
	_, err := b.admin.CreateStream(t.Context(), natsStream("X", "x"))
	if err == nil || !strings.Contains(err.Error(), "10027") {
		t.Errorf("a seventh stream: %v", err)
	}
}
