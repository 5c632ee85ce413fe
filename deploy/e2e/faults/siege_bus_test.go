//go:build faults && linux

package faults

import (
	"context"
	"fmt"
	"math"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
)

// busAttack is one attack with a role's key: the subject, the reply and the bytes
// are the attacker's choice.
type busAttack struct {
	what string
	make func(a *attacker) *nats.Msg
}

// targets are subjects of other roles, and of the server.
var targets = []string{
	"meshlog.ver.mesh",
	"meshlog.ev.mesh._builder.segment",
	"meshlog.ev.mesh._builder.overlay",
	"meshlog.ev.mesh._operator.overlay",
	"meshlog.ev.mesh.file.default._ctl",
	"meshlog.ev.mesh.file.default.VirtualService.demo",
	"$KV.meshlog_lease.builder.mesh",
	"meshlog.fleet.mesh.tick",
	"meshlog.fleet.mesh.report.builder.builder-1",
	"meshlog.fleet.mesh.report.frontend.frontend-1",
	"meshlog.fleet.mesh.listing.file.default",
	"_R_.forged.x",
	"$JS.API.STREAM.DELETE.MESHLOG_VERSIONS",
	"$JS.API.STREAM.DELETE.MESHLOG_EVENTS",
	"$JS.API.STREAM.PURGE.MESHLOG_EVENTS",
	"$JS.API.STREAM.UPDATE.MESHLOG_EVENTS",
	"$JS.ACK.MESHLOG_EVENTS.c.1.1.1.1.0",
	"$SYS.REQ.SERVER.PING",
}

func (a *attacker) target() string { return targets[a.dice.IntN(len(targets))] }

// asks returns an attack that has the server answer to a target.
func asks(requests ...nats.Msg) busAttack {
	return busAttack{"a request with another role's subject as the reply", func(a *attacker) *nats.Msg {
		r := requests[a.dice.IntN(len(requests))]
		return &nats.Msg{Subject: r.Subject, Data: r.Data, Reply: a.target()}
	}}
}

var publishes = busAttack{"a message to another role's subject", func(a *attacker) *nats.Msg {
	return &nats.Msg{Subject: a.target(), Data: a.bytes(), Reply: a.target()}
}}

var frontendAttacks = []busAttack{
	publishes,
	asks(
		nats.Msg{Subject: "$JS.API.STREAM.INFO.MESHLOG_VERSIONS"},
		nats.Msg{Subject: "$JS.API.STREAM.MSG.GET.MESHLOG_VERSIONS", Data: []byte(`{"last_by_subj":"meshlog.ver.mesh"}`)},
		nats.Msg{Subject: "$JS.API.DIRECT.GET.MESHLOG_VERSIONS", Data: []byte(`{"seq":1,"next_by_subj":"meshlog.ver.mesh","batch":10}`)},
		nats.Msg{Subject: "$JS.API.DIRECT.GET.MESHLOG_VERSIONS.meshlog.ver.none"},
	),
	{"a report of a version of the far future", func(a *attacker) *nats.Msg {
		future := fmt.Sprintf("{epoch: %d seq: %d}", math.MaxUint64-a.dice.Uint64N(2), a.dice.Uint64())
		b := forge("meshlog.report.v1.FrontendReport", fmt.Sprintf(
			`frontend: "frontend-1" build: "forged" serving: %[1]s bus_connected: true chain_mismatch: {own: %[1]s}`, future))
		return &nats.Msg{Subject: "meshlog.fleet.mesh.report.frontend." + a.word(), Data: b}
	}},
	{"a report of random bytes", func(a *attacker) *nats.Msg {
		return &nats.Msg{Subject: "meshlog.fleet.mesh.report.frontend." + a.word(), Data: a.bytes()}
	}},
}

// Subjects of the shard of the attacker's key.
const (
	ownControl = "meshlog.ev.mesh.file.attacker._ctl"
	ownObjects = "meshlog.ev.mesh.file.attacker.ServiceEntry.demo"
)

var watcherAttacks = []busAttack{
	publishes,
	asks(
		nats.Msg{Subject: "$JS.API.INFO"},
		nats.Msg{Subject: "$JS.API.STREAM.INFO.MESHLOG_EVENTS"},
		nats.Msg{Subject: "$JS.API.DIRECT.GET.MESHLOG_EVENTS." + ownObjects},
		nats.Msg{Subject: "meshlog.fleet.mesh.digests"},
	),
	{"a record that does not belong to its subject", func(a *attacker) *nats.Msg {
		key := `key: {source: "file" instance: "default" kind: "VirtualService" namespace: "demo" name: "shop"}`
		forged := []string{
			fmt.Sprintf(`segment: {epoch: %d build: "forged"}`, uint64(math.MaxUint64)),
			fmt.Sprintf(`segment: {epoch: %d build: "forged"}`, time.Now().Unix()+60),
			fmt.Sprintf(`begin: {shard: {source: "file" instance: "default"} session: %q holder: "forged"}`, a.word()),
			fmt.Sprintf(`alive: {shard: {source: "file" instance: "default"} session: %q}`, a.word()),
			fmt.Sprintf(`object: {%s op: OP_DELETE session: %q pseq: 1 low: 1}`, key, a.word()),
			fmt.Sprintf(`overlay: {id: %q kind: OVERLAY_KIND_ROLLBACK reason: "forged" values: {%s}}`, a.word(), key),
		}
		b := forge("meshlog.event.v1.Event", fmt.Sprintf(`id: %q observed_time: {seconds: %d} %s`, a.word(), time.Now().Unix(), forged[a.dice.IntN(len(forged))]))
		subject := ownControl
		if a.dice.IntN(2) == 0 {
			subject = ownObjects
		}
		return &nats.Msg{Subject: subject, Data: b, Header: a.header()}
	}},
	{"random bytes on its own subject", func(a *attacker) *nats.Msg {
		return &nats.Msg{Subject: ownControl, Data: a.bytes(), Header: a.header()}
	}},
	{"the answer of the server as a record", func(a *attacker) *nats.Msg {
		return &nats.Msg{
			Subject: "$JS.API.DIRECT.GET.MESHLOG_EVENTS." + ownObjects,
			Reply:   ownControl,
		}
	}},
	{"a report in another shard's name", func(a *attacker) *nats.Msg {
		return &nats.Msg{Subject: "meshlog.fleet.mesh.report.watcher.w.file.default", Data: a.bytes()}
	}},
}

// header returns headers as publishers set them, or none.
func (a *attacker) header() nats.Header {
	if a.dice.IntN(2) == 0 {
		return nil
	}
	return nats.Header{"Nats-Msg-Id": {a.word()}, "Nats-Expected-Stream": {"MESHLOG_EVENTS"}}
}

func (a *attacker) bytes() []byte {
	b := make([]byte, a.dice.IntN(4096))
	for i := range b {
		b[i] = byte(a.dice.Uint32())
	}
	return b
}

// connect opens a connection to each server with the key of a role: what an attack
// does can depend on the server that it begins at.
func (m *mesh) connect(t *testing.T, role string) (all []*nats.Conn) {
	t.Helper()
	key, err := m.bus().Key(role)
	must(t, err)
	for _, s := range m.servers() {
		conn, err := nats.Connect(s.URL(), key, nats.Name("attacker"), nats.MaxReconnects(-1), nats.ReconnectWait(50*time.Millisecond),
			nats.ErrorHandler(func(*nats.Conn, *nats.Subscription, error) {})) // permission violations
		must(t, err)
		t.Cleanup(conn.Close)
		all = append(all, conn)
	}
	return all
}

// attackBus returns attacks with the key of a role. A connection that the server
// ends is opened again.
func (m *mesh) attackBus(t *testing.T, role string, attacks []busAttack) func(context.Context, *attacker) string {
	t.Helper()
	conns := m.connect(t, role)
	return func(_ context.Context, a *attacker) string {
		attack := attacks[a.dice.IntN(len(attacks))]
		if err := conns[a.dice.IntN(len(conns))].PublishMsg(attack.make(a)); err != nil {
			return fmt.Sprintf("%s (%v)", attack.what, err)
		}
		return attack.what
	}
}
