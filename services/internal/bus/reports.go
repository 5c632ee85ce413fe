package bus

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/nats-io/nats.go"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"

	"meshlog.dev/events"
	"meshlog.dev/proto/ident"
	reportv1 "meshlog.dev/proto/meshlog/report/v1"
)

// A process reports on change, at most once per reportPause, and every
// reportInterval: a new listener knows all processes after that.
const (
	reportPause    = time.Second
	reportInterval = 10 * time.Second
	// maxReport is the size of a message of a report. Servers accept 1 MB by
	// default, which is a thousand proxies.
	maxReport = 512 << 10
	// maxAsked is how many questions may wait; others get no answer.
	maxAsked = 64
)

// Headers of reports.
const (
	// nameHeader names the process in an answer, by the end of the subject of
	// its reports.
	nameHeader = "Meshlog-Name"
	// lastHeader marks the last report of a process.
	lastHeader = "Meshlog-Last"
)

// Reporter publishes the reports of one process: a summary on change and at
// intervals, and the whole report as an answer.
type Reporter struct {
	fleet   *Fleet
	name    string // behind "report."
	report  func(summary bool) []proto.Message
	changed chan struct{}
	urgent  chan struct{}
}

// FrontendReporter reports for a frontend; Run calls report.
func (f *Fleet) FrontendReporter(id string, report func(summary bool) *reportv1.FrontendReport) *Reporter {
	return f.reporter(frontendName(events.Token(id)), func(summary bool) []proto.Message {
		return frontendParts(report(summary), maxReport)
	})
}

// WatcherReporter reports for a watcher of a shard; several watchers of a shard
// differ in their holder.
func (f *Fleet) WatcherReporter(holder string, s ident.Shard, report func() *reportv1.WatcherReport) *Reporter {
	return f.reporter(watcherName(events.Token(holder), shardTokens(s)),
		func(bool) []proto.Message { return []proto.Message{report()} })
}

// BuilderReporter reports for a builder, with the peers that it knows.
func (f *Fleet) BuilderReporter(id string, peers *Peers, report func() *reportv1.BuilderReport) *Reporter {
	return f.reporter(builderName(events.Token(id)), func(summary bool) []proto.Message {
		return builderParts(report(), peers.List(), summary, maxReport)
	})
}

func (f *Fleet) reporter(name string, report func(summary bool) []proto.Message) *Reporter {
	return &Reporter{
		fleet: f, name: name, report: report,
		changed: make(chan struct{}, 1), urgent: make(chan struct{}, 1),
	}
}

// Changed makes Run report a change. It never blocks.
func (r *Reporter) Changed() {
	select {
	case r.changed <- struct{}{}:
	default: // said already
	}
}

// Urgent makes Run report at once. It never blocks.
func (r *Reporter) Urgent() {
	select {
	case r.urgent <- struct{}{}:
	default: // said already
	}
}

// Run reports until ctx is done, and then once more.
func (r *Reporter) Run(ctx context.Context) error {
	asked := make(chan *nats.Msg, maxAsked)
	sub, err := r.fleet.nc.ChanSubscribe(r.fleet.prefix+askSubject, asked)
	if err != nil {
		return fmt.Errorf("listen to ask: %w", err)
	}
	defer sub.Unsubscribe()

	interval := time.NewTicker(reportInterval)
	defer interval.Stop()
	var (
		pending = true           // there is a change to report
		pause   <-chan time.Time // nil: Run may report now
	)
	say := func() {
		r.say(nil)
		pending, pause = false, time.After(reportPause)
	}
	for {
		if pending && pause == nil {
			say()
		}
		select {
		case <-ctx.Done():
			r.say(nats.Header{lastHeader: {"1"}})
			return ctx.Err()
		case <-r.changed:
			pending = true
		case <-pause:
			pause = nil
		case <-r.urgent:
			say()
		case <-interval.C:
			say()
		case m := <-asked:
			r.answer(m)
		}
	}
}

// say publishes the summary. If that fails, the next report makes up for it, and
// the connection logs the reason.
func (r *Reporter) say(h nats.Header) {
	for _, m := range r.report(true) {
		r.publish(r.fleet.prefix+reportSubject+r.name, h, m)
	}
}

// role returns the role of the process.
func (r *Reporter) role() string {
	role, _, _ := strings.Cut(r.name, ".")
	return role
}

// answer reports to the inbox of a question.
func (r *Reporter) answer(ask *nats.Msg) {
	var q reportv1.ReportRequest
	if err := proto.Unmarshal(ask.Data, &q); err != nil || ask.Reply == "" {
		r.fleet.log.Warn("cannot answer a question for reports", "subject", ask.Subject, "error", err)
		return
	}
	for _, m := range r.report(q.GetWhole() != r.role()) {
		r.publish(ask.Reply, nats.Header{nameHeader: {r.name}}, m)
	}
}

func (r *Reporter) publish(subject string, h nats.Header, m proto.Message) {
	b, err := proto.Marshal(m)
	if err == nil {
		err = r.fleet.nc.PublishMsg(&nats.Msg{Subject: subject, Header: h, Data: b})
	}
	if err != nil {
		r.fleet.log.Debug("report not published", "error", err)
	}
}

// frontendParts splits a report into messages of about that size.
func frontendParts(m *reportv1.FrontendReport, size int) []proto.Message {
	proxies := m.GetProxies()
	first := without(m, "proxies")
	parts := []proto.Message{first}
	for last := first; len(proxies) > 0; {
		n := fitting(proxies, size)
		last.Proxies, proxies = proxies[:n:n], proxies[n:]
		if last.More = len(proxies) > 0; last.More {
			last = &reportv1.FrontendReport{Frontend: m.GetFrontend()}
			parts = append(parts, last)
		}
	}
	return parts
}

// builderParts splits a report into messages of about that size.
func builderParts(m *reportv1.BuilderReport, peers []*reportv1.Peer, summary bool, size int) []proto.Message {
	ds := m.GetDiagnostics()
	first := without(m, "diagnostics")
	first.Peers = peers
	if summary {
		first.Timings, ds = nil, nil
	}
	parts := []proto.Message{first}
	for last := first; len(ds) > 0; {
		n := fitting(ds, size)
		last.Diagnostics, ds = ds[:n:n], ds[n:]
		if last.More = len(ds) > 0; last.More {
			last = &reportv1.BuilderReport{Builder: m.GetBuilder()}
			parts = append(parts, last)
		}
	}
	return parts
}

// without returns m without some fields; it shares the values of the others.
func without[M proto.Message](m M, fields ...protoreflect.Name) M {
	rest := m.ProtoReflect().New()
	m.ProtoReflect().Range(func(f protoreflect.FieldDescriptor, v protoreflect.Value) bool {
		if !slices.Contains(fields, f.Name()) {
			rest.Set(f, v)
		}
		return true
	})
	return rest.Interface().(M)
}

// fitting returns how many of ms fit into a message of that size, at least one.
func fitting[M proto.Message](ms []M, size int) int {
	room := size
	for i, m := range ms {
		if room -= proto.Size(m); room < 0 && i > 0 {
			return i
		}
	}
	return len(ms)
}

// FrontendReports calls handle for the reports of all frontends until ctx is done.
func (f *Fleet) FrontendReports(ctx context.Context, handle func(*reportv1.FrontendReport)) error {
	return listen(ctx, f, reportSubject+frontendName(anyToken), func(_ *nats.Msg, r *reportv1.FrontendReport) { handle(r) })
}
