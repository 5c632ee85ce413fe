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

// A report is said on change, at most once per reportPause, and every
// reportInterval: whoever starts to listen knows everybody after that.
const (
	reportPause    = time.Second
	reportInterval = 10 * time.Second
	// maxReport is how large a message of a report becomes; a server takes 1 MB
	// unless it is told otherwise, which is a thousand proxies.
	maxReport = 512 << 10
	// maxAsked is how many may ask at once; who finds no room is not answered.
	maxAsked = 64
)

// Headers of reports.
const (
	// nameHeader says in an answer whose it is: the end of the subject under
	// which the process reports.
	nameHeader = "Meshlog-Name"
	// lastHeader says that the process ends.
	lastHeader = "Meshlog-Last"
)

// Reporter publishes the reports of one process: a summary on change and from
// time to time, and all there is to whoever asks.
type Reporter struct {
	fleet   *Fleet
	name    string // behind "report."
	report  func(summary bool) []proto.Message
	changed chan struct{}
	urgent  chan struct{}
}

// FrontendReporter reports what report returns; Run calls it.
func (f *Fleet) FrontendReporter(id string, report func(summary bool) *reportv1.FrontendReport) *Reporter {
	return f.reporter(frontendName(events.Token(id)), func(summary bool) []proto.Message {
		return frontendParts(report(summary), maxReport)
	})
}

// WatcherReporter reports for the watcher of a shard; twins differ in their
// holder.
func (f *Fleet) WatcherReporter(holder string, s ident.Shard, report func() *reportv1.WatcherReport) *Reporter {
	return f.reporter(watcherName(events.Token(holder), shardTokens(s)),
		func(bool) []proto.Message { return []proto.Message{report()} })
}

// BuilderReporter reports for a builder, with what it knows of its peers.
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

// Changed says that the report is not what it was. It never blocks.
func (r *Reporter) Changed() {
	select {
	case r.changed <- struct{}{}:
	default: // said already
	}
}

// Urgent returns Changed by something that must not wait for its turn.
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
		pending = true           // something is to be said
		pause   <-chan time.Time // nil: it may be said now
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

// say publishes the summary. What cannot be said now is said with the next
// report; why it could not is logged where the connection is.
func (r *Reporter) say(h nats.Header) {
	for _, m := range r.report(true) {
		r.publish(r.fleet.prefix+reportSubject+r.name, h, m)
	}
}

// role returns what the process is.
func (r *Reporter) role() string {
	role, _, _ := strings.Cut(r.name, ".")
	return role
}

// answer tells who asks.
func (r *Reporter) answer(ask *nats.Msg) {
	var q reportv1.ReportRequest
	if err := proto.Unmarshal(ask.Data, &q); err != nil || ask.Reply == "" {
		r.fleet.log.Warn("a question for reports that cannot be answered", "subject", ask.Subject, "error", err)
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

// frontendParts is a report in messages of that size, more or less.
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

// builderParts is a report in messages of that size, more or less.
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

// without returns m less some fields; what is in the others is shared with m.
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

// fitting returns how many of ms, at least one, fit into a message of that size.
func fitting[M proto.Message](ms []M, size int) int {
	room := size
	for i, m := range ms {
		if room -= proto.Size(m); room < 0 && i > 0 {
			return i
		}
	}
	return len(ms)
}

// FrontendReports hands on the reports of all frontends until ctx is done.
func (f *Fleet) FrontendReports(ctx context.Context, handle func(*reportv1.FrontendReport)) error {
	return listen(ctx, f, reportSubject+frontendName(anyToken), func(_ *nats.Msg, r *reportv1.FrontendReport) { handle(r) })
}
