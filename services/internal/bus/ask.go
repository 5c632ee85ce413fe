package bus

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/nats-io/nats.go"
	"google.golang.org/protobuf/proto"

	"meshlog.dev/proto/jsapi"
	reportv1 "meshlog.dev/proto/meshlog/report/v1"
)

// askQuiet is how long Reports waits for another answer while no builder has told
// which processes report.
const askQuiet = 300 * time.Millisecond

// Reports are the reports of a fleet, sorted by name.
type Reports struct {
	Frontends []*reportv1.FrontendReport
	Watchers  []*reportv1.WatcherReport
	Builders  []*reportv1.BuilderReport
	// Silent are the processes that reported lately and do not answer.
	Silent []*reportv1.Peer
}

// Detail selects the role whose reports have more than a summary.
type Detail string

// Details of reports.
const (
	Summary     Detail = ""
	Proxies     Detail = "frontend"
	Diagnostics Detail = "builder" // with the timings
)

// Reports asks all processes to report and gathers the answers, until every
// process that builders know has answered, or no answer came for 300 ms.
func (f *Fleet) Reports(ctx context.Context, with Detail) (*Reports, error) {
	g := gathered{answers: map[string]*answer{}}
	err := f.ask(ctx, askSubject, &reportv1.ReportRequest{Whole: string(with)}, askQuiet, g.take)
	if err != nil {
		return nil, fmt.Errorf("gather reports: %w", err)
	}
	return g.reports(), nil
}

// ask publishes a question and calls take for each answer, until take is done or
// no answer comes for the time quiet.
func (f *Fleet) ask(ctx context.Context, subject string, q proto.Message, quiet time.Duration, take func(*nats.Msg) (done bool, err error)) error {
	b, err := proto.Marshal(q)
	if err != nil {
		return err
	}
	inbox := f.nc.NewInbox()
	sub, err := f.nc.SubscribeSync(inbox)
	if err != nil {
		return err
	}
	defer sub.Unsubscribe()
	if err := f.nc.PublishRequest(f.prefix+subject, inbox, b); err != nil {
		return err
	}
	for {
		m, err := nextWithin(ctx, sub, quiet)
		switch {
		case errors.Is(err, nats.ErrNoResponders):
			return nil
		case err != nil:
			return err
		case m == nil:
			return jsapi.Denied(f.nc, f.prefix+subject)
		}
		if done, err := take(m); done || err != nil {
			return err
		}
	}
}

// nextWithin returns the next message, nil if none comes within d.
func nextWithin(ctx context.Context, sub *nats.Subscription, d time.Duration) (*nats.Msg, error) {
	quiet, cancel := context.WithTimeout(ctx, d)
	defer cancel()
	m, err := sub.NextMsgWithContext(quiet)
	if errors.Is(err, context.DeadlineExceeded) && ctx.Err() == nil {
		return nil, nil
	}
	return m, err
}

// gathered are the reports that have arrived, by name.
type gathered struct {
	answers map[string]*answer
	peers   map[string]*reportv1.Peer // processes that builders know; nil: no builder has answered
}

// answer is the report of one process, in one or several messages.
type answer struct {
	parts    []proto.Message
	complete bool
}

// take adds an answer; it is done when all known processes have answered.
func (g *gathered) take(m *nats.Msg) (done bool, err error) {
	name := m.Header.Get(nameHeader)
	var part interface {
		proto.Message
		GetMore() bool
	}
	switch role, _, _ := strings.Cut(name, "."); role {
	case "frontend":
		part = new(reportv1.FrontendReport)
	case "watcher":
		part = single{new(reportv1.WatcherReport)}
	case "builder":
		part = new(reportv1.BuilderReport)
	default:
		return false, nil // a role of a later build
	}
	if err := proto.Unmarshal(m.Data, part); err != nil {
		return false, fmt.Errorf("report of %s: %w", name, err)
	}
	a := g.answers[name]
	if a == nil {
		a = &answer{}
		g.answers[name] = a
	}
	a.parts, a.complete = append(a.parts, part), !part.GetMore()
	if b, ok := part.(*reportv1.BuilderReport); ok {
		for _, p := range b.GetPeers() {
			if g.peers == nil {
				g.peers = map[string]*reportv1.Peer{}
			}
			g.peers[p.GetName()] = p
		}
	}
	return g.peers != nil && g.all(), nil
}

// single is a report that always fits into one message.
type single struct{ *reportv1.WatcherReport }

func (single) GetMore() bool { return false }

// all reports whether every known process has sent all messages of its answer.
func (g *gathered) all() bool {
	for name := range g.peers {
		if g.answers[name] == nil {
			return false
		}
	}
	for _, a := range g.answers {
		if !a.complete {
			return false
		}
	}
	return true
}

func (g *gathered) reports() *Reports {
	var r Reports
	for _, name := range slices.Sorted(maps.Keys(g.answers)) {
		parts := g.answers[name].parts
		switch first := parts[0].(type) {
		case *reportv1.FrontendReport:
			for _, p := range parts[1:] {
				first.Proxies = append(first.Proxies, p.(*reportv1.FrontendReport).GetProxies()...)
			}
			first.More = false
			r.Frontends = append(r.Frontends, first)
		case *reportv1.BuilderReport:
			for _, p := range parts[1:] {
				first.Diagnostics = append(first.Diagnostics, p.(*reportv1.BuilderReport).GetDiagnostics()...)
			}
			first.More = false
			r.Builders = append(r.Builders, first)
		case single:
			r.Watchers = append(r.Watchers, first.WatcherReport)
		}
	}
	for _, name := range slices.Sorted(maps.Keys(g.peers)) {
		if g.answers[name] == nil {
			r.Silent = append(r.Silent, g.peers[name])
		}
	}
	return &r
}
