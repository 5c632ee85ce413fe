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
	"google.golang.org/protobuf/types/known/timestamppb"

	"meshlog.dev/proto/jsapi"
	reportv1 "meshlog.dev/proto/meshlog/report/v1"
)

// askQuiet is how long Reports waits for another answer while no builder has
// answered with the list of processes.
const askQuiet = 300 * time.Millisecond

// limits bound what a question costs, whatever its answerers send.
type limits struct {
	quiet time.Duration // until the end, after the last message that counts
	most  time.Duration // for all answers
	bytes int           // of the answers of a role; the rest of them is dropped
}

const (
	askMost  = 10 * time.Second
	askBytes = 128 << 20
	// messageBytes counts for each message beside its own size, and bounds how many
	// names and parts a role can make the process that asks remember.
	messageBytes = 4 << 10
)

// Reports are the reports of a fleet, sorted by name.
type Reports struct {
	Frontends []*reportv1.FrontendReport
	Watchers  []*reportv1.WatcherReport
	Builders  []*reportv1.BuilderReport
	// Silent are the processes that reported lately and did not answer, or whose
	// answer is incomplete or unreadable.
	Silent []*reportv1.Peer
	// Cut says in a sentence each why answers are left out; it names the process
	// that sent the most. Empty: none are.
	Cut []string
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
// process in the builders' lists has answered, no answer came for 300 ms, or 10 s
// are over. It takes at most 128 MiB of the answers of a role.
func (f *Fleet) Reports(ctx context.Context, with Detail) (*Reports, error) {
	g := gathered{answers: map[string]proto.Message{}}
	subjects := map[roleKind]string{}
	for _, asked := range reporting {
		subjects[asked] = askSubject + string(asked)
	}
	l := limits{quiet: askQuiet, most: askMost, bytes: askBytes}
	missing, err := f.ask(ctx, subjects, &reportv1.ReportRequest{Whole: string(with)}, l, g.take)
	if err != nil {
		return nil, fmt.Errorf("gather reports: %w", err)
	}
	return g.reports(missing), nil
}

// missing is what a question has not got.
type missing struct {
	unread []string // processes whose answer is incomplete, or gave an error of take
	cut    []string // why answers were left out
}

// left returns an error if answers were left out.
func (m missing) left() error {
	if len(m.cut) == 0 {
		return nil
	}
	return errors.New(strings.Join(m.cut, "; "))
}

// ask publishes a question to roles, on a subject for each, and calls take for each
// answer with the name of the process, until take is done or a limit is reached. An
// unreadable answer does not keep other processes from answering.
//
// Each role answers to an inbox of its own, and an answer under the name of another
// role is dropped. A message that says that a role has no process is ignored: any
// process that is asked can send one.
func (f *Fleet) ask(
	ctx context.Context, subjects map[roleKind]string, q proto.Message, l limits,
	take func(name string, answer []byte) (done bool, err error),
) (lost missing, err error) {
	b, err := proto.Marshal(q)
	if err != nil {
		return lost, err
	}
	inbox := f.nc.NewInbox() + "."
	sub, err := f.nc.SubscribeSync(inbox + anyToken)
	if err != nil {
		return lost, err
	}
	defer sub.Unsubscribe()
	var full []string
	for role, subject := range subjects {
		full = append(full, f.prefix+subject)
		if err := f.nc.PublishRequest(f.prefix+subject, inbox+string(role), b); err != nil {
			return lost, err
		}
	}
	drop := func(name string, why error) {
		f.log.Warn("an answer cannot be read", "process", name, "error", why)
		lost.unread = append(lost.unread, name)
	}
	begun, sizes := begunAnswers{}, received{}
	end := time.Now().Add(l.most)
	quiet := time.Now().Add(l.quiet)
	for {
		if end.Before(quiet) {
			quiet = end
		}
		m, err := nextWithin(ctx, sub, time.Until(quiet))
		switch {
		case errors.Is(err, nats.ErrNoResponders):
			continue
		case errors.Is(err, nats.ErrSlowConsumer):
			continue // messages are lost; onError has logged it
		case err != nil:
			return lost, err
		case m == nil:
			for name, b := range begun {
				drop(name, b.failure())
			}
			if quiet.Equal(end) {
				lost.cut = append(lost.cut, fmt.Sprintf("answers still come after %s, and are left out%s", l.most, sizes.from("")))
			}
			return lost, jsapi.Denied(f.nc, full...)
		}
		name := m.Header.Get(nameHeader)
		role := strings.TrimPrefix(m.Subject, inbox)
		if !strings.HasPrefix(name, role+".") {
			f.log.Warn("an answer is dropped: it has the name of a process of another role", "process", name, "role", role)
			continue
		}
		if before, now := sizes.add(role, name, m.Size()+messageBytes, l.bytes); now > l.bytes {
			if before <= l.bytes {
				lost.cut = append(lost.cut, fmt.Sprintf("the answers of all %ss have more than %d KiB, and the rest is left out%s", role, l.bytes>>10, sizes.from(role)))
			}
			continue
		}
		quiet = time.Now().Add(l.quiet)
		answer, whole := begun.join(name, m)
		if !whole {
			continue
		}
		done, err := take(name, answer)
		if err != nil {
			drop(name, err)
		}
		if done && len(begun) == 0 {
			return lost, nil
		}
	}
}

// received are the sizes of messages, by role and by the name of the process, which
// begins with its role and a dot.
type received map[string]int

// add counts a message, unless the role had more than that many bytes before. It
// returns what the role has then.
func (r received) add(role, name string, size, most int) (before, now int) {
	if before = r[role]; before <= most {
		r[role] += size
		r[name] += size
	}
	return before, r[role]
}

// from names the process that sent the most, of a role or, if that is empty, of all.
func (r received) from(role string) string {
	largest := ""
	for name, size := range r {
		if strings.HasPrefix(name, role+".") || role == "" && strings.Contains(name, ".") {
			if size > r[largest] || size == r[largest] && name < largest {
				largest = name
			}
		}
	}
	return fmt.Sprintf("; %q sent the most, %d KiB", largest, r[largest]>>10)
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

// gathered are the reports that have arrived.
type gathered struct {
	answers map[string]proto.Message  // by the name of the process
	peers   map[string]*reportv1.Peer // processes in the builders' lists; nil: no builder has answered
}

// take adds an answer; it is done when all known processes have answered.
func (g *gathered) take(name string, answer []byte) (done bool, err error) {
	var report proto.Message
	switch role, _, _ := strings.Cut(name, "."); role {
	case "frontend":
		report = new(reportv1.FrontendReport)
	case "watcher":
		report = new(reportv1.WatcherReport)
	case "builder":
		report = new(reportv1.BuilderReport)
	default:
		return false, nil // a role of a later build
	}
	if err := proto.Unmarshal(answer, report); err != nil {
		return false, err
	}
	g.answers[name] = report
	if b, ok := report.(*reportv1.BuilderReport); ok {
		for _, p := range b.GetPeers() {
			if g.peers == nil {
				g.peers = map[string]*reportv1.Peer{}
			}
			g.peers[p.GetName()] = p
		}
	}
	return g.peers != nil && len(g.silent()) == 0, nil
}

// silent returns the known processes that have not answered, sorted by name.
func (g *gathered) silent() (peers []*reportv1.Peer) {
	for _, name := range slices.Sorted(maps.Keys(g.peers)) {
		if g.answers[name] == nil {
			peers = append(peers, g.peers[name])
		}
	}
	return peers
}

// reports returns the reports. Builders may not know the processes with unread
// answers.
func (g *gathered) reports(lost missing) *Reports {
	for _, name := range lost.unread {
		if g.peers == nil {
			g.peers = map[string]*reportv1.Peer{}
		}
		g.peers[name] = &reportv1.Peer{Name: name, Heard: timestamppb.Now()}
	}
	r := Reports{Silent: g.silent(), Cut: lost.cut}
	for _, name := range slices.Sorted(maps.Keys(g.answers)) {
		switch report := g.answers[name].(type) {
		case *reportv1.FrontendReport:
			r.Frontends = append(r.Frontends, report)
		case *reportv1.WatcherReport:
			r.Watchers = append(r.Watchers, report)
		case *reportv1.BuilderReport:
			r.Builders = append(r.Builders, report)
		}
	}
	return &r
}
