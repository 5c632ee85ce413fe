package bus

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/nats-io/nats.go"
	"google.golang.org/protobuf/proto"

	"meshlog.dev/events"
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
	// askQuiet is how long Reports waits for one more report.
	askQuiet = 300 * time.Millisecond
)

// Reporter publishes the report of one process: whole every time.
type Reporter struct {
	fleet   *Fleet
	subject string
	report  func() proto.Message
	changed chan struct{}
	urgent  chan struct{}
}

// FrontendReporter reports what report returns; Run calls it.
func (f *Fleet) FrontendReporter(id string, report func() *reportv1.FrontendReport) *Reporter {
	return f.reporter("report.frontend."+events.Token(id), func() proto.Message { return report() })
}

// WatcherReporter reports for the watcher of a shard; twins differ in their
// holder.
func (f *Fleet) WatcherReporter(holder string, s events.Shard, report func() *reportv1.WatcherReport) *Reporter {
	return f.reporter("report.watcher."+events.Token(holder)+"."+events.Token(s.Source)+"."+events.Token(s.Instance),
		func() proto.Message { return report() })
}

// BuilderReporter reports for a builder.
func (f *Fleet) BuilderReporter(id string, report func() *reportv1.BuilderReport) *Reporter {
	return f.reporter("report.builder."+events.Token(id), func() proto.Message { return report() })
}

func (f *Fleet) reporter(subject string, report func() proto.Message) *Reporter {
	return &Reporter{
		fleet: f, subject: subject, report: report,
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

// Urgent is Changed by something that must not wait for its turn.
func (r *Reporter) Urgent() {
	select {
	case r.urgent <- struct{}{}:
	default: // said already
	}
}

// Run reports until ctx is done, and then once more.
func (r *Reporter) Run(ctx context.Context) error {
	asked := make(chan *nats.Msg, 1)
	sub, err := r.fleet.nc.ChanSubscribe(r.fleet.prefix+"ask", asked)
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
		r.publish(r.report())
		pending, pause = false, time.After(reportPause)
	}
	for {
		if pending && pause == nil {
			say()
		}
		select {
		case <-ctx.Done():
			r.publish(r.report())
			return ctx.Err()
		case <-r.changed:
			pending = true
		case <-pause:
			pause = nil
		case <-r.urgent:
			say()
		case <-interval.C:
			say()
		case <-asked:
			say()
		}
	}
}

// publish says m. What cannot be said now is said with the next report; why it
// could not is logged where the connection is.
func (r *Reporter) publish(m proto.Message) {
	var err error
	if f, ok := m.(*reportv1.FrontendReport); ok {
		err = r.publishParts(f)
	} else {
		err = r.fleet.publish(r.subject, m)
	}
	if err != nil {
		r.fleet.log.Debug("report not published", "error", err)
	}
}

// more is in the subject of those messages of a report that hold nothing but
// the proxies for which there was no room in the first.
const more = ".more."

func (r *Reporter) publishParts(m *reportv1.FrontendReport) error {
	var errs []error
	for i, part := range split(m, maxReport) {
		subject := r.subject
		if i > 0 {
			subject += more + strconv.Itoa(i)
		}
		errs = append(errs, r.fleet.publish(subject, part))
	}
	return errors.Join(errs...)
}

// split is a report in messages of that size. The first is m.
func split(m *reportv1.FrontendReport, size int) []*reportv1.FrontendReport {
	parts := []*reportv1.FrontendReport{m}
	proxies, room, begin := m.GetProxies(), size, 0
	for i, p := range proxies {
		n := proto.Size(p)
		if n > room && i > begin {
			parts[len(parts)-1].Proxies = proxies[begin:i:i]
			parts = append(parts, &reportv1.FrontendReport{Frontend: m.GetFrontend()})
			begin, room = i, size
		}
		room -= n
	}
	parts[len(parts)-1].Proxies = proxies[begin:]
	return parts
}

// FrontendReports hands on the reports of all frontends until ctx is done.
func (f *Fleet) FrontendReports(ctx context.Context, handle func(*reportv1.FrontendReport)) error {
	return listen(ctx, f, "report.frontend.*", func(_ *nats.Msg, r *reportv1.FrontendReport) { handle(r) })
}

// Reports are the reports of a fleet, sorted by name.
type Reports struct {
	Frontends []*reportv1.FrontendReport
	Watchers  []*reportv1.WatcherReport
	Builders  []*reportv1.BuilderReport
}

// Reports asks everybody to report and gathers the answers, until none has
// come for 300 ms.
func (f *Fleet) Reports(ctx context.Context) (*Reports, error) {
	sub, err := f.nc.SubscribeSync(f.prefix + "report.>")
	if err != nil {
		return nil, fmt.Errorf("listen to reports: %w", err)
	}
	defer sub.Unsubscribe()
	if err := f.nc.Publish(f.prefix+"ask", nil); err != nil {
		return nil, fmt.Errorf("ask for reports: %w", err)
	}
	latest := map[string]*nats.Msg{}
	for {
		m, err := nextWithin(ctx, sub, askQuiet)
		if err != nil {
			return nil, fmt.Errorf("gather reports: %w", err)
		}
		if m == nil {
			return f.decodeReports(latest)
		}
		latest[m.Subject] = m
	}
}

// nextWithin is the next message; nil if none comes within d.
func nextWithin(ctx context.Context, sub *nats.Subscription, d time.Duration) (*nats.Msg, error) {
	quiet, cancel := context.WithTimeout(ctx, d)
	defer cancel()
	m, err := sub.NextMsgWithContext(quiet)
	if errors.Is(err, context.DeadlineExceeded) && ctx.Err() == nil {
		return nil, nil
	}
	return m, err
}

func (f *Fleet) decodeReports(latest map[string]*nats.Msg) (*Reports, error) {
	var r Reports
	var rest []*reportv1.FrontendReport // of reports in several messages
	for _, subject := range slices.Sorted(maps.Keys(latest)) {
		var m proto.Message
		switch name := strings.TrimPrefix(subject, f.prefix+"report."); {
		case strings.HasPrefix(name, "frontend.") && strings.Contains(name, more):
			p := new(reportv1.FrontendReport)
			rest, m = append(rest, p), p
		case strings.HasPrefix(name, "frontend."):
			p := new(reportv1.FrontendReport)
			r.Frontends, m = append(r.Frontends, p), p
		case strings.HasPrefix(name, "watcher."):
			p := new(reportv1.WatcherReport)
			r.Watchers, m = append(r.Watchers, p), p
		case strings.HasPrefix(name, "builder."):
			p := new(reportv1.BuilderReport)
			r.Builders, m = append(r.Builders, p), p
		default:
			continue // of a later version of meshlog
		}
		if err := proto.Unmarshal(latest[subject].Data, m); err != nil {
			return nil, fmt.Errorf("report under %s: %w", subject, err)
		}
	}
	for _, p := range rest {
		i := slices.IndexFunc(r.Frontends, func(f *reportv1.FrontendReport) bool { return f.GetFrontend() == p.GetFrontend() })
		if i >= 0 {
			r.Frontends[i].Proxies = append(r.Frontends[i].Proxies, p.GetProxies()...)
		}
	}
	return &r, nil
}
