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

// proxyQuiet is how long Proxy waits for another answer.
const proxyQuiet = 2 * time.Second

// Proxy asks the frontends with these ids for their state of a proxy. It returns
// one reply for each stream, sorted by frontend, without the frontends that do not
// answer within 2 s and without answers that are incomplete or unreadable. It
// returns an error if the answers are too many or too large (see Reports).
func (f *Fleet) Proxy(ctx context.Context, id string, frontends []string) ([]*reportv1.ProxyReply, error) {
	if len(frontends) == 0 {
		return nil, nil
	}
	var replies []*reportv1.ProxyReply
	waiting := slices.Clone(frontends)
	q := &reportv1.ProxyRequest{Id: id}
	l := limits{quiet: proxyQuiet, most: askMost, bytes: askBytes}
	lost, err := f.ask(ctx, map[roleKind]string{frontendRole: proxySubject}, q, l, func(_ string, answer []byte) (bool, error) {
		r := new(reportv1.ProxyReply)
		if err := proto.Unmarshal(answer, r); err != nil {
			return false, err
		}
		if !r.GetMore() {
			waiting = slices.DeleteFunc(waiting, func(name string) bool { return name == r.GetFrontend() })
		}
		r.More = false
		if r.GetStream() > 0 {
			replies = append(replies, r)
		}
		return len(waiting) == 0, nil
	})
	if err == nil {
		err = lost.left()
	}
	if err != nil {
		return nil, fmt.Errorf("ask for proxy %s: %w", id, err)
	}
	slices.SortStableFunc(replies, func(a, b *reportv1.ProxyReply) int { return strings.Compare(a.GetFrontend(), b.GetFrontend()) })
	return replies, nil
}

// ServeProxies answers Proxy until ctx is done. lookup returns one reply for each
// stream, which ServeProxies may change.
func (f *Fleet) ServeProxies(ctx context.Context, frontend string, lookup func(id string) []*reportv1.ProxyReply) error {
	return listen(ctx, f, proxySubject, func(m *nats.Msg, q *reportv1.ProxyRequest) {
		replies := lookup(q.GetId())
		for i, r := range replies {
			r.Frontend, r.Stream, r.More = frontend, uint32(i+1), i+1 < len(replies)
		}
		if len(replies) == 0 {
			replies = []*reportv1.ProxyReply{{Frontend: frontend}}
		}
		for _, r := range replies {
			if err := f.answer(m, frontendName(events.Token(frontend)), r); err != nil {
				f.log.Warn("cannot answer a question for a proxy", "proxy", q.GetId(), "error", err)
				return
			}
		}
	})
}
