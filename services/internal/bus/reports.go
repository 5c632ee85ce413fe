package bus

import (
	"cmp"
	"context"
	"fmt"
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
	// maxAsked is how many questions may wait; others get no answer.
	maxAsked = 64
)

// Headers of reports and answers.
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
	name    string // after "report."
	report  func(summary bool) proto.Message
	changed chan struct{}
	urgent  chan struct{}
}

// FrontendReporter reports for a frontend; Run calls report.
func (f *Fleet) FrontendReporter(id string, report func(summary bool) *reportv1.FrontendReport) *Reporter {
	return f.reporter(frontendName(events.Token(id)), func(summary bool) proto.Message { return report(summary) })
}

// WatcherReporter reports for a watcher of a shard; several watchers of a shard
// differ in their holder.
func (f *Fleet) WatcherReporter(holder string, s ident.Shard, report func() *reportv1.WatcherReport) *Reporter {
	return f.reporter(watcherName(events.Token(holder), shardTokens(s)), func(bool) proto.Message { return report() })
}

// BuilderReporter reports for a builder, with the peers that it knows.
func (f *Fleet) BuilderReporter(id string, peers *Peers, report func() *reportv1.BuilderReport) *Reporter {
	return f.reporter(builderName(events.Token(id)), func(summary bool) proto.Message {
		r := new(reportv1.BuilderReport) // a shallow copy, because the builder may share its report
		report().ProtoReflect().Range(func(field protoreflect.FieldDescriptor, v protoreflect.Value) bool {
			r.ProtoReflect().Set(field, v)
			return true
		})
		r.Peers = peers.List()
		if summary {
			r.Timings, r.Diagnostics = nil, nil
		}
		return r
	})
}

func (f *Fleet) reporter(name string, report func(summary bool) proto.Message) *Reporter {
	return &Reporter{
		fleet: f, name: name, report: report,
		changed: make(chan struct{}, 1), urgent: make(chan struct{}, 1),
	}
}

// Changed makes Run report a change. It never blocks.
func (r *Reporter) Changed() {
	select {
	case r.changed <- struct{}{}:
	default: // already signalled
	}
}

// Urgent makes Run report at once. It never blocks.
func (r *Reporter) Urgent() {
	select {
	case r.urgent <- struct{}{}:
	default: // already signalled
	}
}

// Run reports until ctx is done, and then once more.
func (r *Reporter) Run(ctx context.Context) error {
	asked := make(chan *nats.Msg, maxAsked)
	sub, err := r.fleet.nc.ChanSubscribe(r.fleet.prefix+askSubject+r.role(), asked)
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
		r.publish(nil)
		pending, pause = false, time.After(reportPause)
	}
	for {
		if pending && pause == nil {
			say()
		}
		select {
		case <-ctx.Done():
			r.publish(nats.Header{lastHeader: {"1"}})
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

// publish publishes the summary.
func (r *Reporter) publish(h nats.Header) {
	r.lost(r.sendReport(r.report(true), func(b []byte) error {
		return r.fleet.nc.PublishMsg(&nats.Msg{Subject: r.fleet.prefix + reportSubject + r.name, Header: h, Data: b})
	}))
}

// answer sends the report to the inbox of a question. The question names the role
// whose processes send more than a summary.
func (r *Reporter) answer(question *nats.Msg) {
	var q reportv1.ReportRequest
	if err := cmp.Or(proto.Unmarshal(question.Data, &q), checkReply(question)); err != nil {
		r.fleet.unanswerable.Add(1)
		r.fleet.log.Warn("cannot answer a question for reports", "error", err)
		return
	}
	r.lost(r.fleet.answer(question, r.name, r.report(q.GetWhole() != r.role())))
}

// role returns the role of the process, which its name begins with.
func (r *Reporter) role() string {
	role, _, _ := strings.Cut(r.name, ".")
	return role
}

// FrontendReports calls handle for the reports of all frontends until ctx is done.
func (f *Fleet) FrontendReports(ctx context.Context, handle func(*reportv1.FrontendReport)) error {
	return listen(ctx, f, reportSubject+frontendName(anyToken), func(_ *nats.Msg, r *reportv1.FrontendReport) { handle(r) })
}
