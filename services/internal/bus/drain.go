package bus

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/nats-io/nats.go"
	"google.golang.org/protobuf/proto"

	"meshlog.dev/events"
	reportv1 "meshlog.dev/proto/meshlog/report/v1"
)

const (
	// drainWait is how long a frontend waits for the agents of a proxy.
	drainWait = 3 * time.Second
	// drainQuiet is how long Drain waits for another frontend.
	drainQuiet = drainWait + 2*time.Second
	drainBytes = 4 << 20
)

// Drain has the agents of the proxy with this id end the connections of its clients
// (KEY-12). It returns the replies of the frontends with these ids that answer within 5
// s, sorted by frontend.
func (f *Fleet) Drain(ctx context.Context, id string, frontends []string) ([]*reportv1.DrainReply, error) {
	var replies []*reportv1.DrainReply
	waiting := slices.Clone(frontends)
	l := limits{quiet: drainQuiet, most: askMost, bytes: drainBytes}
	lost, err := f.ask(ctx, map[roleKind]string{frontendRole: drainSubject}, &reportv1.DrainRequest{Id: id}, l, func(_ string, answer []byte) (bool, error) {
		r := new(reportv1.DrainReply)
		if err := proto.Unmarshal(answer, r); err != nil {
			return false, err
		}
		replies = append(replies, r)
		waiting = slices.DeleteFunc(waiting, func(name string) bool { return name == r.GetFrontend() })
		return len(waiting) == 0, nil
	})
	if err == nil {
		err = lost.left()
	}
	if err != nil {
		return nil, fmt.Errorf("drain proxy %s: %w", id, err)
	}
	slices.SortStableFunc(replies, func(a, b *reportv1.DrainReply) int { return strings.Compare(a.GetFrontend(), b.GetFrontend()) })
	return replies, nil
}

// ServeDrains answers Drain until ctx is done. It calls drain for one request after the
// other, which returns what the agents have answered when its context ends.
func (f *Fleet) ServeDrains(ctx context.Context, frontend string, drain func(ctx context.Context, id string) []*reportv1.DrainingAgent) error {
	return listen(ctx, f, drainSubject, func(m *nats.Msg, q *reportv1.DrainRequest) {
		if err := checkReply(m); err != nil { // nobody would hear what it does
			f.unanswerable.Add(1)
			f.log.Warn("cannot drain a proxy", "proxy", q.GetId(), "error", err)
			return
		}
		within, cancel := context.WithTimeout(ctx, drainWait)
		defer cancel()
		r := &reportv1.DrainReply{Frontend: frontend, Agents: drain(within, q.GetId())}
		if err := f.answer(m, frontendName(events.Token(frontend)), r); err != nil {
			f.log.Warn("cannot answer a request to drain a proxy", "proxy", q.GetId(), "error", err)
		}
	})
}
