package busauth

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats.go/jetstream"
	"github.com/prometheus/client_golang/prometheus"

	"meshlog.dev/events/natslog"
	"meshlog.dev/proto/ident"
	"meshlog.dev/proto/jsapi"
	auditv1 "meshlog.dev/proto/meshlog/audit/v1"
	"meshlog.dev/services/internal/audit"
	"meshlog.dev/services/internal/bus"
	"meshlog.dev/services/internal/cakv"
	"meshlog.dev/store/natsfeed"
)

// requestKey asks for a key, as a frontend, until the watcher that serves keys of a
// shard listens.
func (b *target) requestKey(shard ident.Shard, node int) {
	b.Helper()
	fleet := bus.NewFleet(b.connect(bus.Frontend(), node), "mesh", quiet)
	for {
		got, err := fleet.RequestKey(b.Context(), shard, []byte("x"))
		if errors.Is(err, bus.ErrNoKeeper) {
			continue
		}
		if err != nil || string(got) != "the key for x" {
			b.Fatalf("a request for a key, on server %d: %q, %v", node, got, err)
		}
		return
	}
}

// KEY-3, KEY-4, KEY-13: with the keys that bus-auth writes, frontends get keys of all
// shards from their watchers, frontends and watchers write the audit, and operators
// read it, with clients of every server. Nothing of a request for a key is stored.
func TestKeysAndAudit(t *testing.T) {
	for name, a := range arrangements {
		t.Run(name, func(t *testing.T) {
			b := underAttack(t, a, nil)
			b.serveKeys(eu)
			before := b.state()
			observed := map[string]heard{}
			for account := range b.observers {
				if account != "FRONTEND" && account != "W-kubernetes-eu" {
					observed[account] = b.observe(account, 0)
				}
			}
			for node := range b.addrs {
				b.requestKey(eu, node)
			}
			for account, h := range observed {
				must(t, h.nc.Flush())
				if n := h.under("meshlog.key.mesh.kubernetes.eu"); n > 0 {
					t.Errorf("%d requests for keys reach %s", n, account)
				}
			}
			if now := b.state(); now != before {
				t.Errorf("requests for keys are stored:\n%swas\n%s", now, before)
			}
			// The ca and the jwks watcher keep no keys of objects (CA-2).
			frontend := bus.NewFleet(b.connect(bus.Frontend(), 0), "mesh", quiet)
			for _, shard := range []ident.Shard{ca, jwks} {
				if _, err := frontend.RequestKey(t.Context(), shard, nil); !errors.Is(err, bus.ErrNoKeeper) {
					t.Errorf("a frontend asks %s for a key: %v", shard, err)
				}
			}
			want := []string{}
			for node, r := range []bus.Role{bus.Frontend(), bus.Watcher(files), bus.Watcher(ca)} {
				writeAudit(t, b.connect(r, node), r)
				want = append(want, r.String())
			}
			for node := range b.addrs {
				reader, err := audit.NewReader(b.connect(bus.Operator(), node), "mesh")
				must(t, err)
				var got []string
				for deadline := time.Now().Add(time.Minute); len(got) < len(want) && time.Now().Before(deadline); { // a replica may lag
					all, _, err := reader.Newest(t.Context(), len(want))
					must(t, err)
					got = nil
					for _, e := range all {
						if e.Err == nil {
							got = append(got, e.Record.GetProcess())
						}
					}
				}
				if !slices.Equal(got, want) {
					t.Errorf("the operator reads %q on server %d, want %q", got, node, want)
				}
			}
		})
	}
}

// attack is a request about keys, the audit or the ca, and the roles that may send it.
type attack struct {
	request
	allowed []bus.Role
}

func auditAttacks() map[string]attack {
	operator := []bus.Role{bus.Operator()}
	return map[string]attack{
		"a key of another shard":       {request{"meshlog.key.mesh.kubernetes.eu", "x"}, []bus.Role{bus.Frontend()}},
		"a key of the ca":              {request{"meshlog.key.mesh.ca.default", "x"}, []bus.Role{bus.Frontend()}},
		"a record of the frontends":    {request{"meshlog.audit.mesh.frontend", "x"}, []bus.Role{bus.Frontend()}},
		"a record of an operator":      {request{"meshlog.audit.mesh.operator", "x"}, operator},
		"a record of another shard":    {request{"meshlog.audit.mesh.watcher.kubernetes.eu", "x"}, nil},
		"a record of the ca":           {request{"meshlog.audit.mesh.watcher.ca.default", "x"}, nil},
		"a record of an invented role": {request{"meshlog.audit.mesh.builder", "x"}, nil},
		"the issuers":                  {request{"meshlog.fleet.mesh.issuers", "x"}, []bus.Role{bus.Builder()}},
		"a word to the ca":             {request{authoritySubject, "x"}, operator},
		"a question about a pod":       {request{podsSubject, "x"}, []bus.Role{bus.Watcher(ca)}},
		"read by sequence":             {request{"$JS.API.STREAM.MSG.GET.MESHLOG_AUDIT", `{"seq":1}`}, operator},
		"read by Direct Get":           {request{"$JS.API.DIRECT.GET.MESHLOG_AUDIT", `{"seq":1}`}, operator},
		"read the last of a subject":   {request{"$JS.API.DIRECT.GET.MESHLOG_AUDIT.meshlog.audit.mesh.frontend", ""}, nil},
		"read by a consumer": {request{
			"$JS.API.CONSUMER.CREATE.MESHLOG_AUDIT.c", `{"stream_name":"MESHLOG_AUDIT","config":{"name":"c","deliver_subject":"x","ack_policy":"none"}}`,
		}, nil},
		"purge":            {request{"$JS.API.STREAM.PURGE.MESHLOG_AUDIT", ""}, nil},
		"delete a message": {request{"$JS.API.STREAM.MSG.DELETE.MESHLOG_AUDIT", `{"seq":1}`}, nil},
		"delete":           {request{"$JS.API.STREAM.DELETE.MESHLOG_AUDIT", ""}, nil},
		"change":           {request{"$JS.API.STREAM.UPDATE.MESHLOG_AUDIT", `{"name":"MESHLOG_AUDIT","subjects":["x"]}`}, nil},
		"restore":          {request{"$JS.API.STREAM.RESTORE.MESHLOG_AUDIT", `{"config":{"name":"MESHLOG_AUDIT"}}`}, nil},
		"snapshot":         {request{"$JS.API.STREAM.SNAPSHOT.MESHLOG_AUDIT", `{"deliver_subject":"x"}`}, nil},
	}
}

// KEY-4, KEY-13, CA-10: no role asks for keys that is no frontend, writes the audit under the
// subject of another one, or changes it, and only operators read it; no role hears the
// requests of another shard, or records. Only operators speak to the ca, only the ca asks the
// leader about pods, and no other role hears either. The user's list refuses each request; a user
// without a list, which only the account holds, gets no answer, changes no stream and
// reaches no other account.
func TestKeyAndAuditAttacks(t *testing.T) {
	for name, a := range arrangements {
		t.Run(name, func(t *testing.T) {
			b := underAttack(t, a, nil)
			b.serveKeys(eu)
			b.requestKey(eu, 0)
			before := b.state()
			observed := map[string]heard{}
			for account := range b.observers {
				observed[account] = b.observe(account, 0)
			}
			roles := []bus.Role{bus.Watcher(files), bus.Watcher(ca), bus.Watcher(jwks), bus.Frontend(), bus.Builder(), bus.Operator(), bus.Observer(), bus.Console()}
			answers := map[string]string{} // what the reply subjects of each account's own requests begin with
			for _, role := range roles {
				answers[accountName(role)] = fmt.Sprintf("answer.%s.", role)
			}
			for _, role := range roles {
				own := accountName(role)
				limited, unlimited := b.raw(b.key(role), len(b.addrs)-1), b.raw(b.observers[own], len(b.addrs)-1)
				for subject, allowed := range map[string]bus.Role{
					"meshlog.key.mesh.file.other": bus.Admin(), "meshlog.key.>": bus.Admin(), "meshlog.audit.>": bus.Admin(), "meshlog.audit.mesh.frontend": bus.Admin(),
					authoritySubject: bus.Watcher(ca), podsSubject: bus.Builder(),
				} {
					if said := limited.subscribe(subject); role != allowed && !strings.Contains(said, "Permissions Violation") {
						t.Errorf("%s may subscribe to %s: %s", role, subject, said)
					}
				}
				for what, q := range auditAttacks() {
					if slices.Contains(q.allowed, role) || q.subject == "meshlog.audit.mesh."+strings.ReplaceAll(role.String(), "-", ".") {
						continue
					}
					if said := limited.publish(q.subject, "", q.data); !strings.Contains(said, "Permissions Violation") {
						t.Errorf("%s: %s may publish to %s: %s", what, role, q.subject, said)
					}
					reply := answers[own] + strings.ReplaceAll(what, " ", "-")
					unlimited.publish(q.subject, reply, q.data)
					if now := b.state(); now != before {
						t.Fatalf("%s by %s changed the streams:\n%swas\n%s", what, role, now, before)
					}
					for account, h := range observed {
						must(t, h.nc.Flush())
						if n := h.any(q.subject, reply, answers[account]); n > 0 {
							t.Errorf("%s by %s: %d messages in %s", what, role, n, account)
						}
					}
				}
			}
		})
	}
}

// any returns how many messages under a subject of a request or of its reply have
// arrived, and forgets the rest. The account's own requests, whose reply subjects begin
// with own, do not count; they may come late from another server.
func (h heard) any(subject, reply, own string) (n int) {
	for {
		select {
		case m := <-h.all:
			if m.Subject == subject && (own == "" || !strings.HasPrefix(m.Reply, own)) || m.Subject == reply {
				n++
			}
		default:
			return n
		}
	}
}

// A role can have the server publish to its own subject of the audit, as it can itself:
// the answer is stored there and nowhere else, and a reader says what it is. A frontend
// can send an answer to a watcher as a request for a key: the watcher answers none.
func TestAnswersToOwnSubjects(t *testing.T) {
	b := underAttack(t, one, nil)
	b.serveKeys(eu)
	b.requestKey(eu, 0)
	reader, err := audit.NewReader(b.connect(bus.Operator(), 0), "mesh")
	must(t, err)
	newest := func() audit.Entry {
		t.Helper()
		all, _, err := reader.Newest(t.Context(), 1)
		must(t, err)
		return all[0]
	}
	last := newest().Seq
	for role, q := range map[bus.Role]request{
		bus.Watcher(files): {"$JS.API.DIRECT.GET.MESHLOG_EVENTS.meshlog.ev.mesh.file.default.Gateway.x", ""},
		bus.Frontend():     {"$JS.API.DIRECT.GET.MESHLOG_VERSIONS", `{"last_by_subj":"meshlog.ver.mesh"}`},
	} {
		own := audit.WriterPermissions(role, "mesh")[0]
		b.raw(b.key(role), 0).publish(q.subject, own, q.data)
		e := newest()
		for e.Seq == last {
			e = newest()
		}
		writer := "frontend"
		if s, ok := role.Shard(); ok {
			writer = s.String()
		}
		if e.Seq != last+1 || e.Writer != writer || e.Err == nil || !strings.Contains(e.Err.Error(), "an answer of the server") {
			t.Errorf("%s stored %+v", role, e)
		}
		last = e.Seq
	}
	before := b.state()
	h := b.observe("W-kubernetes-eu", 0)
	b.raw(b.key(bus.Frontend()), 0).publish("$JS.API.DIRECT.GET.MESHLOG_VERSIONS", "meshlog.key.mesh.kubernetes.eu", `{"last_by_subj":"meshlog.ver.mesh"}`)
	b.await("meshlog.key.mesh.kubernetes.eu", h)
	if now := b.state(); now != before {
		t.Errorf("the request is stored:\n%swas\n%s", now, before)
	}
	b.requestKey(eu, 0) // it still answers inboxes
}

// POL-12: what a builder says of issuers reaches the watcher of jwks, and no other.
func TestIssuersReachJWKS(t *testing.T) {
	b := underAttack(t, one, nil)
	const subject = "meshlog.fleet.mesh.issuers"
	js := b.observe("W-jwks-default", 0)
	others := map[string]heard{}
	for account := range b.observers {
		if account != "W-jwks-default" && account != "BUILDER" {
			others[account] = b.observe(account, 0)
		}
	}
	if said := b.raw(b.key(bus.Builder()), 0).publish(subject, "", "x"); said != "" {
		t.Fatal(said)
	}
	b.await(subject, js)
	for account, h := range others {
		must(t, h.nc.Flush())
		if n := h.under(subject); n > 0 {
			t.Errorf("the issuers reach %s", account)
		}
	}
}

// A builder's key makes the stream of the audit once, and cannot replace it.
func TestBuilderKeepsAudit(t *testing.T) {
	b := underAttack(t, one, nil)
	before := b.state()
	js, err := jetstream.New(b.connect(bus.Builder(), 0))
	must(t, err)
	c := audit.StreamOptions{}.Config()
	c.DenyPurge, c.AllowRollup = false, true
	if _, err := js.CreateStream(t.Context(), c); !errors.Is(err, jetstream.ErrStreamNameAlreadyInUse) {
		t.Errorf("the stream is made again: %v", err)
	}
	if now := b.state(); now != before {
		t.Errorf("the streams changed:\n%swas\n%s", now, before)
	}
	if err := b.admin.DeleteStream(t.Context(), audit.Stream); err != nil {
		t.Errorf("the administrator deletes the audit: %v", err)
	}
}

// Servers that run with the accounts of an older build, without keys, audit and join tokens, load
// those of this one once: no account is new. Then a builder makes the other streams.
func TestReloadAddsKeysAndAudit(t *testing.T) {
	s := start(t)
	port := s.stop()
	conf, err := os.ReadFile(s.in(ConfigName))
	must(t, err)
	var old strings.Builder
	for line := range strings.Lines(string(conf)) {
		if !strings.Contains(line, "meshlog.audit.") && !strings.Contains(line, "MESHLOG_AUDIT") && !strings.Contains(line, "meshlog.key.") && !strings.Contains(line, "meshlog_ca") {
			old.WriteString(strings.Replace(line, "max_streams: 6", "max_streams: 4", 1))
		}
	}
	must(t, os.WriteFile(s.in(ConfigName), []byte(old.String()), 0o600))
	s.run(port)
	builder := s.connect(bus.Builder())
	_, err = natslog.EnsureStream(t.Context(), builder, natslog.StreamOptions{})
	must(t, err)
	_, err = natsfeed.EnsureStreams(t.Context(), builder, natsfeed.StreamOptions{})
	must(t, err, bus.EnsureLeases(t.Context(), builder, 1))
	if err := audit.EnsureStream(t.Context(), builder, audit.StreamOptions{}); !errors.As(err, new(*jsapi.DeniedError)) {
		t.Errorf("before the reload: %v", err)
	}

	must(t, os.WriteFile(s.in(ConfigName), conf, 0o600), s.server.Reload())
	must(t, audit.EnsureStream(t.Context(), s.connect(bus.Builder()), audit.StreamOptions{}), cakv.EnsureStream(t.Context(), s.connect(bus.Builder()), 1))
	watcher := s.connect(bus.Watcher(files))
	b := &target{TB: t, dir: s.dir}
	b.serve(bus.NewFleet(watcher, "mesh", quiet), files)
	frontend := bus.NewFleet(s.connect(bus.Frontend()), "mesh", quiet)
	for {
		_, err := frontend.RequestKey(t.Context(), files, nil)
		if !errors.Is(err, bus.ErrNoKeeper) {
			must(t, err)
			break
		}
	}
	for _, r := range []bus.Role{bus.Frontend(), bus.Watcher(files)} {
		writeAudit(t, s.connect(r), r)
	}
	reader, err := audit.NewReader(s.connect(bus.Operator()), "mesh")
	must(t, err)
	if all, _, err := reader.Newest(t.Context(), -1); err != nil || len(all) != 2 {
		t.Errorf("the operator reads %d records, %v", len(all), err)
	}
}

// writeAudit writes a record of the audit.
func writeAudit(t *testing.T, nc *bus.Conn, r bus.Role) {
	t.Helper()
	w, err := audit.NewWriter(nc, audit.WriterOptions{Domain: "mesh", Role: r, Process: r.String(), Log: quiet})
	must(t, err)
	w.Write(&auditv1.Record{Action: auditv1.Action_ACTION_KEY_GIVEN})
	ctx, stop := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- w.Run(ctx) }()
	registry := prometheus.NewRegistry()
	registry.MustRegister(w)
	for written := 0.0; written == 0; {
		families, err := registry.Gather()
		must(t, err)
		for _, f := range families {
			if f.GetName() == "meshlog_audit_written_total" {
				written = f.GetMetric()[0].GetCounter().GetValue()
			}
		}
		select {
		case <-time.After(10 * time.Millisecond):
		case <-t.Context().Done():
			t.Fatal("the record is never written")
		}
	}
	stop()
	if err := <-ended; !errors.Is(err, context.Canceled) {
		t.Error(err)
	}
}
