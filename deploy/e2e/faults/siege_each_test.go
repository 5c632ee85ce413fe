//go:build faults && linux

package faults

import (
	"context"
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"
	"time"

	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"github.com/nats-io/nats.go"
	statusv3 "google.golang.org/genproto/googleapis/rpc/status"

	"meshlog.dev/deploy/e2e/rig"
	"meshlog.dev/deploy/testkit/program"
)

// scripted is one attack, and where it is reported: in a metric, or in one value of
// its label.
type scripted struct {
	what          string
	metric, label string
	does          func(ctx context.Context, a *attacker, port int)
}

// The attacks at the xDS port, each with the metric of the frontend that it hits.
// What is no fault of the client by itself is counted as a stream.
var scriptedXDS = []scripted{
	{"bytes that are no HTTP/2", "meshlog_frontend_connections_unused_total", "", func(ctx context.Context, a *attacker, port int) {
		ctx, cancel := context.WithTimeout(ctx, brief)
		defer cancel()
		a.randomBytes(ctx, port)
	}},
	{"streams without a request", "meshlog_frontend_streams_silent_total", "", func(ctx context.Context, a *attacker, port int) { a.silentStreams(ctx, port) }},
	{"more names than a request may have", "meshlog_frontend_requests_refused_total", "reason=malformed", func(ctx context.Context, a *attacker, port int) {
		a.exchange(ctx, port, sotwADS, a.request(nil, rig.ClusterLoadAssignment, absent()))
	}},
	{"200,000 names that do not exist", "meshlog_frontend_requests_refused_total", "reason=names", func(ctx context.Context, a *attacker, port int) {
		a.exchange(ctx, port, sotwADS, a.request(nil, rig.ClusterLoadAssignment, absent()[:200_000]))
	}},
	{"a node of 1 MiB", "meshlog_frontend_requests_refused_total", "reason=node", func(ctx context.Context, a *attacker, port int) {
		a.exchange(ctx, port, sotwADS, a.request(map[string]any{"NOISE": strings.Repeat("x", 1<<20)}, rig.Cluster, nil))
	}},
	{"a request above 64 MiB", "meshlog_frontend_requests_refused_total", "reason=size", func(ctx context.Context, a *attacker, port int) {
		a.exchange(ctx, port, sotwADS, make([]byte, 65<<20))
	}},
	{"an invented type", "meshlog_frontend_unsupported_requests_total", "", func(ctx context.Context, a *attacker, port int) {
		a.exchange(ctx, port, sotwADS, a.request(nil, "invented", nil))
	}},
	{"an invented network view", "meshlog_frontend_stream_age_seconds", "", func(ctx context.Context, a *attacker, port int) {
		ctx, cancel := context.WithTimeout(ctx, brief)
		defer cancel()
		a.exchange(ctx, port, sotwADS, a.request(map[string]any{"REQUESTED_NETWORK_VIEW": a.word()}, rig.Cluster, nil))
	}},
	{"a claim to resume", "meshlog_frontend_unmatched_resumes_total", "", func(ctx context.Context, a *attacker, port int) {
		a.conversation(ctx, port, func(s stream) error {
			if err := s.Send(&discoveryv3.DiscoveryRequest{Node: a.node(nil), TypeUrl: rig.Cluster, VersionInfo: "00000000000000000000000000000abc"}); err != nil {
				return err
			}
			_, err := s.Recv()
			return err
		})
	}},
	{"a rejection of 2 MiB", "pilot_total_xds_rejects", "type=CDS", func(ctx context.Context, a *attacker, port int) {
		a.conversation(ctx, port, func(s stream) error {
			if err := s.Send(&discoveryv3.DiscoveryRequest{Node: a.node(nil), TypeUrl: rig.Cluster}); err != nil {
				return err
			}
			r, err := s.Recv()
			if err != nil {
				return err
			}
			err = s.Send(&discoveryv3.DiscoveryRequest{
				TypeUrl: rig.Cluster, ResponseNonce: r.GetNonce(), ErrorDetail: &statusv3.Status{Message: strings.Repeat("x", 2<<20)},
			})
			if err != nil {
				return err
			}
			<-ctx.Done()
			return nil
		})
	}},
}

// scriptedBus is one attack with a role's key, and where it is reported: in a metric
// of the processes that it hits, or in the log of the NATS servers.
type scriptedBus struct {
	what, role    string
	of            func(*mesh) []*rig.Server
	metric, label string
	does          func(a *attacker, conn *nats.Conn) error
}

func builders(m *mesh) []*rig.Server  { return m.Builders }
func frontends(m *mesh) []*rig.Server { return m.Frontends }

// attackerShard is the role of the attacker that has a watcher's key.
const attackerShard = "watcher-file-attacker"

// The attacks with a key. What the server refuses it logs itself. An answer of the
// server that is to become a record is not among them: it reaches no stream, so there
// is nothing to report.
var scriptedOnBus = []scriptedBus{
	{"a version on the chain", "frontend", nil, "", "", publish("meshlog.ver.mesh")},
	{"the deletion of a stream", "frontend", nil, "", "", publish("$JS.API.STREAM.DELETE.MESHLOG_VERSIONS")},
	{"the answer of a stream as a tick", "frontend", frontends, "meshlog_bus_messages_refused_total", "reason=unreadable", func(_ *attacker, conn *nats.Conn) error {
		return conn.PublishRequest("$JS.API.STREAM.INFO.MESHLOG_VERSIONS", "meshlog.fleet.mesh.tick", nil)
	}},
	{"a report of the far future", "frontend", builders, "meshlog_builder_refused_claims_total", "", made(frontendAttacks, "a report of a version of the far future")},
	{"a report of random bytes", "frontend", builders, "meshlog_bus_messages_refused_total", "reason=unreadable", func(_ *attacker, conn *nats.Conn) error {
		return conn.Publish("meshlog.fleet.mesh.report.frontend.forged", []byte{0xff})
	}},
	{"reports of 1100 processes", "frontend", builders, "meshlog_bus_messages_refused_total", "reason=crowded", func(_ *attacker, conn *nats.Conn) error {
		for i := range 1100 {
			if err := conn.Publish(fmt.Sprint("meshlog.fleet.mesh.report.frontend.crowd-", i), nil); err != nil {
				return err
			}
		}
		return conn.Flush()
	}},
	{"a record of another shard", attackerShard, nil, "", "", publish("meshlog.ev.mesh.file.default._ctl")},
	{"a report in another shard's name", attackerShard, nil, "", "", publish("meshlog.fleet.mesh.report.watcher.w.file.default")},
	{"a record that does not belong to its subject", attackerShard, builders, "meshlog_builder_refused_records_total", "", made(watcherAttacks, "a record that does not belong to its subject")},
	{"random bytes as a record", attackerShard, builders, "meshlog_builder_unreadable_records_total", "", func(a *attacker, conn *nats.Conn) error {
		m := nats.NewMsg("meshlog.ev.mesh.file.attacker._ctl")
		m.Data, m.Header = []byte{0xff}, nats.Header{"Nats-Msg-Id": {a.word()}, "Nats-Expected-Stream": {"MESHLOG_EVENTS"}}
		return conn.PublishMsg(m)
	}},
}

func publish(subject string) func(*attacker, *nats.Conn) error {
	return func(_ *attacker, conn *nats.Conn) error { return conn.Publish(subject, []byte("forged")) }
}

// made makes the random attack of that name.
func made(attacks []busAttack, what string) func(*attacker, *nats.Conn) error {
	return func(a *attacker, conn *nats.Conn) error {
		for _, b := range attacks {
			if b.what == what {
				return conn.PublishMsg(b.make(a))
			}
		}
		return fmt.Errorf("there is no attack %q", what)
	}
}

// eachAttack makes each attack, at each frontend that it may hit, until it is reported.
// It returns the peak memory of each process.
func (m *mesh) eachAttack(t *testing.T) map[string]int64 {
	t.Helper()
	ctx, cancel := context.WithCancel(m.ctx)
	peaks := make(chan map[string]int64)
	go func() { peaks <- m.peak(ctx, t) }()
	a := &attacker{dice: rand.New(rand.NewPCG(*seed, 99))}
	for _, s := range m.Frontends {
		for _, attack := range scriptedXDS {
			m.isReported(t, attack.what, m.counter([]*rig.Server{s}, attack.metric, attack.label), func(ctx context.Context) { attack.does(ctx, a, s.XDS) })
		}
	}
	conns := map[string][]*nats.Conn{}
	for _, attack := range scriptedOnBus {
		if conns[attack.role] == nil {
			conns[attack.role] = m.connect(t, attack.role)
		}
		count := m.violations
		if attack.of != nil {
			count = m.counter(attack.of(m), attack.metric, attack.label)
		}
		m.isReported(t, attack.what, count, func(ctx context.Context) {
			all := conns[attack.role]
			err := every(ctx, brief, func(i int) error { return attack.does(a, all[i%len(all)]) })
			if ctx.Err() == nil {
				t.Errorf("%s: %v", attack.what, err)
			}
		})
	}
	cancel()
	return <-peaks
}

// reportWithin is how long an attack may take until it is reported: streams without a
// request end after 5 s.
const reportWithin = 20 * time.Second

// isReported makes an attack, and demands that a count grows by it.
func (m *mesh) isReported(t *testing.T, what string, count func(context.Context) (float64, error), does func(context.Context)) {
	t.Helper()
	before, err := count(m.ctx)
	must(t, err)
	ctx, cancel := context.WithTimeout(m.ctx, reportWithin)
	defer cancel()
	done := make(chan struct{})
	go func() {
		defer close(done)
		does(ctx)
	}()
	must(t, program.Until(ctx, "a report of "+what, func(ctx context.Context) error {
		now, err := count(ctx)
		if err == nil && now <= before {
			err = fmt.Errorf("the count is still %v", now)
		}
		return err
	}))
	cancel()
	<-done
}

// counter returns what reads the sum of a metric over processes.
func (m *mesh) counter(of []*rig.Server, metric, label string) func(context.Context) (float64, error) {
	return func(ctx context.Context) (total float64, err error) {
		for _, s := range of {
			all, err := s.Metrics(ctx)
			if err != nil {
				return 0, err
			}
			one, known := all[metric]
			if _, labelled := one.By[label]; !known || label != "" && !labelled {
				return 0, fmt.Errorf("%s has no metric %s %s", s.Name, metric, label)
			}
			if label == "" {
				total += one.Sum
			}
			total += one.By[label]
		}
		return total, nil
	}
}

// violations returns how many messages the NATS servers have refused, by their logs.
func (m *mesh) violations(context.Context) (n float64, err error) {
	for _, s := range m.servers() {
		n += float64(strings.Count(s.Tail(1<<20), "Violation"))
	}
	return n, nil
}

// conversation opens a stream to a frontend, until ctx ends or does returns.
func (a *attacker) conversation(ctx context.Context, port int, does func(stream) error) {
	_ = converse(ctx, port, func(_ context.Context, s stream) error { return does(s) }) // whatever the frontend answers is its right
}
