package bus

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/testing/protocmp"

	"meshlog.dev/events"
	"meshlog.dev/proto/ident"
	reportv1 "meshlog.dev/proto/meshlog/report/v1"
	snapshotv1 "meshlog.dev/proto/meshlog/snapshot/v1"
)

// knownPeers returns Peers that have run long enough to know these processes.
func knownPeers(f *Fleet, names ...string) *Peers {
	p := NewPeers(f)
	now := time.Now()
	p.since, p.last = now.Add(-peersKnown), now
	for _, name := range names {
		p.hear(name, false, now)
	}
	return p
}

func TestReports(t *testing.T) {
	s := startServer(t, t.TempDir())
	known := subscribe(t, s)
	f := NewFleet(connect(t, s), "mesh", quiet)
	for _, id := range []string{"f2", "f1"} {
		run(t, NewFleet(connect(t, s), "mesh", quiet).FrontendReporter(id, func(summary bool) *reportv1.FrontendReport {
			return &reportv1.FrontendReport{Frontend: id, Summary: summary}
		}).Run)
	}
	shard := ident.Shard{Source: "file", Instance: "demo"}
	run(t, f.WatcherReporter("w", shard, func() *reportv1.WatcherReport {
		return &reportv1.WatcherReport{Source: shard.Source, Instance: shard.Instance, Holder: "w"}
	}).Run)
	run(t, f.BuilderReporter("b", NewPeers(f), func() *reportv1.BuilderReport {
		return &reportv1.BuilderReport{Builder: "b", Timings: []*reportv1.StageTiming{{}}}
	}).Run)
	for range 4 {
		<-known // each process has sent its first report, and listens
	}
	got, err := f.Reports(t.Context(), Summary)
	if err != nil {
		t.Fatal(err)
	}
	want := &Reports{
		Frontends: []*reportv1.FrontendReport{{Frontend: "f1", Summary: true}, {Frontend: "f2", Summary: true}},
		Watchers:  []*reportv1.WatcherReport{{Source: "file", Instance: "demo", Holder: "w"}},
		Builders:  []*reportv1.BuilderReport{{Builder: "b"}},
	}
	if diff := cmp.Diff(want, got, protocmp.Transform()); diff != "" {
		t.Error(diff)
	}
}

// If the builder's Peers knows the processes, Reports waits only for these, and names
// the ones that did not answer.
func TestReportsOfKnownPeers(t *testing.T) {
	s := startServer(t, t.TempDir())
	known := subscribe(t, s)
	f := NewFleet(connect(t, s), "mesh", quiet)
	report := func() *reportv1.BuilderReport { return &reportv1.BuilderReport{Builder: "b"} }
	run(t, f.BuilderReporter("b", knownPeers(f, "builder.b", "frontend.f1"), report).Run)
	<-known
	start := time.Now()
	got, err := f.Reports(t.Context(), Proxies)
	if err != nil {
		t.Fatal(err)
	}
	if d := time.Since(start); d < askQuiet {
		t.Errorf("answered after %v, though a frontend is silent", d)
	}
	if len(got.Silent) != 1 || got.Silent[0].GetName() != "frontend.f1" {
		t.Errorf("silent: %v, want f1", got.Silent)
	}

	run(t, NewFleet(connect(t, s), "mesh", quiet).FrontendReporter("f1", func(bool) *reportv1.FrontendReport {
		return &reportv1.FrontendReport{Frontend: "f1"}
	}).Run)
	<-known
	quick := func() time.Duration {
		start := time.Now()
		if got, err = f.Reports(t.Context(), Proxies); err != nil {
			t.Fatal(err)
		}
		return time.Since(start)
	}
	if d := min(quick(), quick(), quick()); d >= askQuiet || len(got.Silent) != 0 || len(got.Frontends) != 1 {
		t.Errorf("answered after %v, silent: %v", d, got.Silent)
	}
}

func TestReportsWithoutProcesses(t *testing.T) {
	f := NewFleet(connect(t, startServer(t, t.TempDir())), "mesh", quiet)
	got, err := f.Reports(t.Context(), Proxies)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(&Reports{}, got); diff != "" {
		t.Error(diff)
	}
}

// A report that does not fit into a message is sent in several messages.
func TestLargeReports(t *testing.T) {
	s := startServer(t, t.TempDir())
	known := subscribe(t, s)
	f := NewFleet(connect(t, s), "mesh", quiet)
	frontend := &reportv1.FrontendReport{Frontend: "f1", Persisted: true}
	builder := &reportv1.BuilderReport{Builder: "b"}
	long := strings.Repeat("g", 1000)
	for i := range 3000 {
		frontend.Proxies = append(frontend.Proxies, &reportv1.ProxyReport{Id: fmt.Sprint(i), Group: long})
		builder.Diagnostics = append(builder.Diagnostics, &snapshotv1.Diagnostic{Origin: fmt.Sprint(i), Reason: long})
	}
	run(t, f.FrontendReporter("f1", func(summary bool) *reportv1.FrontendReport {
		if summary {
			return &reportv1.FrontendReport{Frontend: "f1", Summary: true}
		}
		return frontend
	}).Run)
	run(t, f.BuilderReporter("b", NewPeers(f), func() *reportv1.BuilderReport { return builder }).Run)
	for range 2 {
		if m := <-known; len(m.Data) > 100 {
			t.Errorf("%d bytes on %s without a question", len(m.Data), m.Subject)
		}
	}
	got, err := f.Reports(t.Context(), Proxies)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff([]*reportv1.FrontendReport{frontend}, got.Frontends, protocmp.Transform()); diff != "" {
		t.Error(diff)
	}
	if n := len(got.Builders[0].GetDiagnostics()); n > 0 {
		t.Errorf("%d diagnostics without a question", n)
	}
	got, err = f.Reports(t.Context(), Diagnostics)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff([]*reportv1.BuilderReport{builder}, got.Builders, protocmp.Transform()); diff != "" {
		t.Error(diff)
	}
}

// reported returns one message of an answer. part is its number; empty: the answer has
// only this message.
func reported(name, part string, data []byte) *nats.Msg {
	m := &nats.Msg{Header: nats.Header{}, Data: data}
	m.Header.Set(nameHeader, name)
	if part != "" {
		m.Header.Set(partHeader, part)
	}
	return m
}

// If parts of a process's answer are lost or mixed up, only that answer is lost.
func TestPartsOfAnswers(t *testing.T) {
	report, err := proto.Marshal(&reportv1.FrontendReport{Frontend: "f1", Build: "one"})
	if err != nil {
		t.Fatal(err)
	}
	other, err := proto.Marshal(&reportv1.FrontendReport{Frontend: "f1", Build: "two"})
	if err != nil {
		t.Fatal(err)
	}
	a, b, c := report[:2], report[2:5], report[5:]
	f1 := func(part string, data []byte) *nats.Msg { return reported("frontend.f1", part, data) }
	for name, test := range map[string]struct {
		parts  []*nats.Msg
		silent bool
	}{
		"in order":     {[]*nats.Msg{f1("1/3", a), f1("2/3", b), f1("3/3", c)}, false},
		"out of order": {[]*nats.Msg{f1("3/3", c), f1("1/3", a), f1("2/3", b)}, false},
		"first lost":   {[]*nats.Msg{f1("2/3", b), f1("3/3", c)}, true},
		"last lost":    {[]*nats.Msg{f1("1/3", a), f1("2/3", b)}, true},
		"unreadable":   {[]*nats.Msg{f1("", []byte("no report"))}, true},
		"no number":    {[]*nats.Msg{f1("last", report)}, true},
		"beyond":       {[]*nats.Msg{f1("4/3", report)}, true},
		"two processes": {[]*nats.Msg{
			f1("1/2", report[:4]), f1("1/2", other[:4]), f1("2/2", report[4:]), f1("2/2", other[4:]),
		}, true},
		"two processes, other sizes": {[]*nats.Msg{
			f1("1/3", a), f1("1/2", other[:4]), f1("2/3", b), f1("2/2", other[4:]), f1("3/3", c),
		}, true},
		"two processes, one after the other": {[]*nats.Msg{
			f1("1/2", other[:4]), f1("2/2", other[4:]), f1("1/3", a), f1("2/3", b), f1("3/3", c),
		}, false},
	} {
		t.Run(name, func(t *testing.T) {
			s := startServer(t, t.TempDir())
			nc := connect(t, s)
			_, err := nc.Subscribe("meshlog.fleet.mesh.ask.frontend", func(question *nats.Msg) {
				rest := []*nats.Msg{reported("frontend.f2", "", nil)}
				for _, m := range append(test.parts, rest...) {
					m.Subject = question.Reply
					if err := nc.PublishMsg(m); err != nil {
						t.Error(err)
					}
				}
			})
			if err != nil {
				t.Fatal(err)
			}
			if err := nc.Flush(); err != nil {
				t.Fatal(err)
			}
			got, err := NewFleet(connect(t, s), "mesh", quiet).Reports(t.Context(), Proxies)
			if err != nil {
				t.Fatal(err)
			}
			want := []*reportv1.FrontendReport{{Frontend: "f1", Build: "one"}, {}}
			if test.silent {
				want = want[1:]
			}
			if diff := cmp.Diff(want, got.Frontends, protocmp.Transform()); diff != "" {
				t.Errorf("reports (-want +got):\n%s", diff)
			}
			if silent := len(got.Silent) == 1 && got.Silent[0].GetName() == "frontend.f1"; silent != test.silent {
				t.Errorf("silent: %v", got.Silent)
			}
		})
	}
}

func TestPeers(t *testing.T) {
	at := func(seconds int) time.Time { return time.Unix(1000+int64(seconds), 0) }
	p := NewPeers(nil)
	p.since, p.last = at(0), at(0)
	list := func(now time.Time) (names []string) {
		for _, peer := range p.list(now) {
			names = append(names, fmt.Sprint(peer.GetName(), " ", peer.GetHeard().AsTime().Unix()-1000))
		}
		return names
	}
	p.hear("frontend.f1", false, at(1))
	p.hear("watcher.w", false, at(2))
	if got := list(at(5)); got != nil {
		t.Errorf("knows %v before every process had time to report", got)
	}
	p.hear("frontend.f1", false, at(11))
	p.hear("watcher.w", true, at(12))
	if diff := cmp.Diff([]string{"frontend.f1 11"}, list(at(13))); diff != "" {
		t.Errorf("a process reports, another one has ended (-want +got):\n%s", diff)
	}
	p.hear("builder.b", false, at(20))
	p.hear("builder.b", false, at(30))
	p.hear("builder.b", false, at(40))
	if diff := cmp.Diff([]string{"builder.b 40"}, list(at(40))); diff != "" {
		t.Errorf("a process is silent (-want +got):\n%s", diff)
	}
	p.hear("builder.b", false, at(100))
	if got := list(at(101)); got != nil {
		t.Errorf("knows %v right after the bus was down", got)
	}
}

func TestProxy(t *testing.T) {
	s := startServer(t, t.TempDir())
	f := NewFleet(connect(t, s), "mesh", quiet)
	types := func(n int) []*reportv1.TypeContent {
		content := []*reportv1.TypeContent{{TypeUrl: "cds", Wildcard: true}, {TypeUrl: "none"}}
		for i := range n {
			content[0].Resources = append(content[0].Resources, &reportv1.ResourceContent{
				Name: fmt.Sprintf("outbound|80||service-%d.default.svc.cluster.local", i), Sum: make([]byte, 16), Sent: true,
			})
		}
		return content
	}
	ready := make(chan string, 100)
	serve := func(frontend string, streams ...int) {
		fleet := NewFleet(connect(t, s), "mesh", quiet)
		run(t, func(ctx context.Context) error {
			return fleet.ServeProxies(ctx, frontend, func(id string) (replies []*reportv1.ProxyReply) {
				if id == "ready?" {
					ready <- frontend
					return nil
				}
				for _, n := range streams {
					replies = append(replies, &reportv1.ProxyReply{Report: &reportv1.ProxyReport{Id: id}, Types: types(n)})
				}
				return replies
			})
		})
	}
	serve("f2", 20_000)
	serve("f1", 1, 2)
	serve("f3")
	again := time.NewTicker(10 * time.Millisecond)
	defer again.Stop()
	for listens := map[string]bool{}; len(listens) < 3; {
		select {
		case frontend := <-ready:
			listens[frontend] = true
		case <-again.C:
			if err := f.publish("proxy", &reportv1.ProxyRequest{Id: "ready?"}); err != nil {
				t.Fatal(err)
			}
		}
	}
	got, err := f.Proxy(t.Context(), "p", []string{"f1", "f2", "f3"})
	if err != nil {
		t.Fatal(err)
	}
	want := []*reportv1.ProxyReply{
		{Frontend: "f1", Stream: 1, Report: &reportv1.ProxyReport{Id: "p"}, Types: types(1)},
		{Frontend: "f1", Stream: 2, Report: &reportv1.ProxyReport{Id: "p"}, Types: types(2)},
		{Frontend: "f2", Stream: 1, Report: &reportv1.ProxyReport{Id: "p"}, Types: types(20_000)},
	}
	if len(got) != len(want) {
		t.Fatalf("%d replies, want %d", len(got), len(want))
	}
	for i := range want {
		if !proto.Equal(want[i], got[i]) {
			t.Errorf("reply %d of %s differs from the answer", i, got[i].GetFrontend())
		}
	}
}

// BUS-2: a process answers inboxes only. With its rights, any other answer could become
// a record, here of a stream that has all subjects but inboxes.
func TestAnswersOnlyInboxes(t *testing.T) {
	s := startServer(t, t.TempDir())
	nc := connect(t, s)
	js, err := jetstream.New(nc)
	if err != nil {
		t.Fatal(err)
	}
	stream, err := js.CreateStream(t.Context(), jetstream.StreamConfig{Name: "T", Subjects: []string{"meshlog.ver.>", "meshlog.ev.>", "$KV.>"}})
	if err != nil {
		t.Fatal(err)
	}
	var log lines
	known := subscribe(t, s)
	f := NewFleet(connect(t, s), "mesh", slog.New(slog.NewTextHandler(&log, nil)))
	shard := ident.Shard{Source: "file", Instance: "demo"}
	run(t, f.BuilderReporter("b", NewPeers(f), func() *reportv1.BuilderReport { return &reportv1.BuilderReport{Builder: "b"} }).Run)
	run(t, f.FrontendReporter("f", func(bool) *reportv1.FrontendReport { return &reportv1.FrontendReport{Frontend: "f"} }).Run)
	run(t, f.WatcherReporter("w", shard, func() *reportv1.WatcherReport { return &reportv1.WatcherReport{Holder: "w"} }).Run)
	run(t, func(ctx context.Context) error {
		return f.ServeDigests(ctx, func(context.Context, ident.Shard, string, events.Kinds) (*events.ShardDigests, bool) {
			return new(events.ShardDigests), true
		})
	})
	run(t, func(ctx context.Context) error {
		return f.ServeProxies(ctx, "f", func(string) []*reportv1.ProxyReply { return nil })
	})
	for range 3 {
		<-known
	}
	// Each responder is asked until it has answered an inbox, and so has seen the
	// question before it on its subscription.
	for _, subject := range []string{"ask.builder", "ask.frontend", "ask.watcher", "digests", "proxy"} {
		subject = "meshlog.fleet.mesh." + subject
		for _, reply := range []string{"meshlog.ver.mesh", "meshlog.ev.mesh._builder.segment", "$KV.meshlog_lease.builder.mesh", "_IN", "_R_", "_INX.y"} {
			if err := nc.PublishRequest(subject, reply, nil); err != nil {
				t.Fatal(err)
			}
		}
		for answered := false; !answered; {
			_, err := nc.RequestWithContext(t.Context(), subject, nil)
			if err != nil && !errors.Is(err, nats.ErrNoResponders) {
				t.Fatalf("%s: %v", subject, err)
			}
			answered = err == nil
		}
	}
	if info, err := stream.Info(t.Context()); err != nil || info.State.Msgs != 0 {
		t.Errorf("answers became %d records: %v", info.State.Msgs, err)
	}
	if !strings.Contains(log.String(), "meshlog.ver.mesh") || !strings.Contains(log.String(), "no inbox") {
		t.Errorf("the log does not name the refused reply:\n%s", log.String())
	}
}

// An answer under the name of a process of another role is dropped: a frontend cannot
// answer for a builder.
func TestAnswersOfTheRole(t *testing.T) {
	s := startServer(t, t.TempDir())
	known := subscribe(t, s)
	f := NewFleet(connect(t, s), "mesh", quiet)
	run(t, f.FrontendReporter("f", func(bool) *reportv1.FrontendReport { return &reportv1.FrontendReport{Frontend: "f"} }).Run)
	<-known
	nc := connect(t, s)
	if _, err := nc.Subscribe("meshlog.fleet.mesh.ask.frontend", func(m *nats.Msg) {
		for _, name := range []string{"builder.b", "watcher.w.file.default", ""} {
			answer := nats.NewMsg(m.Reply)
			answer.Header.Set(nameHeader, name)
			if err := nc.PublishMsg(answer); err != nil {
				t.Error(err)
			}
		}
	}); err != nil {
		t.Fatal(err)
	}
	if err := nc.Flush(); err != nil {
		t.Fatal(err)
	}
	got, err := f.Reports(t.Context(), Summary)
	if err != nil {
		t.Fatal(err)
	}
	want := &Reports{Frontends: []*reportv1.FrontendReport{{Frontend: "f"}}}
	if diff := cmp.Diff(want, got, protocmp.Transform()); diff != "" {
		t.Error(diff)
	}
}

// A frontend that says in the server's words that a role has no process hides nobody
// (BUS-2): the server would say so once for each role.
func TestForgedNoResponders(t *testing.T) {
	s := startServer(t, t.TempDir())
	forged := make(chan struct{})
	answerer(t, s, "ask.frontend", func(nc *nats.Conn, question *nats.Msg) {
		for range 2 * len(reporting) {
			publish(t, nc, &nats.Msg{Subject: question.Reply, Header: nats.Header{"Status": {"503"}}})
		}
		if err := nc.Flush(); err != nil {
			t.Error(err)
		}
		close(forged)
	})
	answerer(t, s, "ask.builder", func(nc *nats.Conn, question *nats.Msg) {
		<-forged
		report, err := proto.Marshal(&reportv1.BuilderReport{Builder: "b", Peers: []*reportv1.Peer{{Name: "builder.b"}, {Name: "frontend.f1"}}})
		if err != nil {
			t.Error(err)
		}
		m := reported("builder.b", "", report)
		m.Subject = question.Reply
		publish(t, nc, m)
	})
	got, err := NewFleet(connect(t, s), "mesh", quiet).Reports(t.Context(), Summary)
	if err != nil {
		t.Fatal(err)
	}
	if len(got.Builders) != 1 || len(got.Silent) != 1 || got.Silent[0].GetName() != "frontend.f1" {
		t.Errorf("builders: %v, silent: %v; want b, and f1 silent", got.Builders, got.Silent)
	}
}

// A process that sends answers without end costs a question a bounded time and a
// bounded memory; the answers of other roles are complete, and the process is named.
func TestEndlessAnswers(t *testing.T) {
	for name, test := range map[string]struct {
		limits
		part string // of each message
		data int    // bytes of each message
		cut  string
	}{
		"parts":   {limits{askQuiet, askMost, 4 << 20}, "%d/2000000000", 100 << 10, `the answers of all frontends have more than 4096 KiB, and the rest is left out; "frontend.f1" sent the most`},
		"names":   {limits{askQuiet, askMost, 1 << 20}, "", 0, `the answers of all frontends have more than 1024 KiB, and the rest is left out; "frontend.f`},
		"time":    {limits{askQuiet, askQuiet, askBytes}, "%d/2000000000", 10, `answers still come after 300ms, and are left out; "frontend.f1" sent the most`},
		"nothing": {limits{askQuiet, askMost, askBytes}, "503", 0, ""},
	} {
		t.Run(name, func(t *testing.T) {
			s := startServer(t, t.TempDir())
			answerer(t, s, "ask.frontend", func(nc *nats.Conn, question *nats.Msg) {
				for i := 1; t.Context().Err() == nil; i++ {
					m := reported("frontend.f1", "", make([]byte, test.data))
					switch test.part {
					case "":
						m.Header.Set(nameHeader, fmt.Sprint("frontend.f", i))
					case "503":
						m.Header = nats.Header{"Status": {"503"}}
					default:
						m.Header.Set(partHeader, fmt.Sprintf(test.part, i))
					}
					m.Subject = question.Reply
					if err := errors.Join(nc.PublishMsg(m), nc.Flush()); err != nil {
						return // the test has ended
					}
				}
			})
			answerer(t, s, "ask.builder", func(nc *nats.Conn, question *nats.Msg) {
				m := reported("builder.b", "", nil)
				m.Subject = question.Reply
				publish(t, nc, m)
			})
			subjects := map[roleKind]string{builderRole: askSubject + "builder", frontendRole: askSubject + "frontend"}
			taken := map[string]int{}
			f := NewFleet(connect(t, s), "mesh", quiet)
			lost, err := f.ask(t.Context(), subjects, &reportv1.ReportRequest{}, test.limits, func(name string, _ []byte) (bool, error) {
				taken[name]++
				return false, nil
			})
			if err != nil {
				t.Fatal(err)
			}
			if cut := strings.Join(lost.cut, "\n"); !strings.HasPrefix(cut, test.cut) || (cut == "") != (test.cut == "") {
				t.Errorf("cut: %q, want %q", lost.cut, test.cut)
			}
			if taken["builder.b"] != 1 || len(taken) > 1+test.bytes/messageBytes {
				t.Errorf("%d answers, %d of the builder", len(taken), taken["builder.b"])
			}
		})
	}
}

// answerer calls answer for each question on a subject, on a connection of its own.
func answerer(t *testing.T, s *Server, subject string, answer func(nc *nats.Conn, question *nats.Msg)) {
	t.Helper()
	nc := connect(t, s)
	if _, err := nc.Subscribe("meshlog.fleet.mesh."+subject, func(m *nats.Msg) { answer(nc, m) }); err != nil {
		t.Fatal(err)
	}
	if err := nc.Flush(); err != nil {
		t.Fatal(err)
	}
}

func publish(t *testing.T, nc *nats.Conn, m *nats.Msg) {
	t.Helper()
	if err := nc.PublishMsg(m); err != nil {
		t.Error(err)
	}
}

// lines is a log that several goroutines write.
type lines struct {
	mu  sync.Mutex
	all strings.Builder
}

func (l *lines) Write(b []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.all.Write(b)
}

func (l *lines) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.all.String()
}
