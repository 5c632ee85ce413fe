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

	"meshlog.dev/proto/ident"
	"meshlog.dev/proto/jsapi"
	reportv1 "meshlog.dev/proto/meshlog/report/v1"
)

const (
	// authorityQuiet is how long Authority waits for another replica.
	authorityQuiet = time.Second
	authorityBytes = 4 << 20
	// podsWait bounds the wait for the leader: the caller waits for a certificate.
	podsWait = 3 * time.Second
)

// Authority asks all replicas of the certificate authority to act, and returns their
// answers, sorted by name: those that come before none came for a second.
func (f *Fleet) Authority(ctx context.Context, do reportv1.AuthorityAction) ([]*reportv1.AuthorityReply, error) {
	replies := map[string]*reportv1.AuthorityReply{}
	l := limits{quiet: authorityQuiet, most: askMost, bytes: authorityBytes}
	lost, err := f.ask(ctx, map[roleKind]string{watcherRole: authoritySubject}, &reportv1.AuthorityRequest{Action: do}, l, func(name string, answer []byte) (bool, error) {
		r := new(reportv1.AuthorityReply)
		if err := proto.Unmarshal(answer, r); err != nil {
			return false, err
		}
		replies[name] = r
		return false, nil
	})
	if err == nil {
		err = lost.left()
	}
	if err != nil {
		return nil, fmt.Errorf("ask the certificate authority: %w", err)
	}
	var all []*reportv1.AuthorityReply
	for _, name := range slices.Sorted(maps.Keys(replies)) {
		all = append(all, replies[name])
	}
	return all, nil
}

// ServeAuthority answers Authority for a replica until ctx is done. It calls act for one
// request after the other.
func (f *Fleet) ServeAuthority(ctx context.Context, holder string, s ident.Shard, act func(reportv1.AuthorityAction) *reportv1.AuthorityReply) error {
	name := watcherName(holder, shardTokens(s))
	return listen(ctx, f, authoritySubject, func(m *nats.Msg, q *reportv1.AuthorityRequest) {
		if err := checkReply(m); err != nil {
			f.unanswerable.Add(1)
			f.log.Warn("cannot answer a question for the authority", "error", err)
			return
		}
		if err := f.answer(m, name, act(q.GetAction())); err != nil {
			f.log.Warn("cannot answer a question for the authority", "error", err)
		}
	})
}

// FrontendSummaries calls handle for the reports of all frontends, with the name of each
// on the bus, until ctx is done. last: the process ends.
func (f *Fleet) FrontendSummaries(ctx context.Context, handle func(name string, r *reportv1.FrontendReport, last bool)) error {
	return listen(ctx, f, reportSubject+frontendName(anyToken), func(m *nats.Msg, r *reportv1.FrontendReport) {
		handle(strings.TrimPrefix(m.Subject, f.prefix+reportSubject+frontendName("")), r, m.Header.Get(lastHeader) != "")
	})
}

// KnowsPod asks the leader whether the mesh has a workload of that name and service
// account. The error is ErrNoAnswer if no builder can tell.
func (f *Fleet) KnowsPod(ctx context.Context, q *reportv1.PodRequest) (bool, error) {
	r := new(reportv1.PodReply)
	if err := f.request(ctx, podsSubject, podsWait, q, r, ErrNoAnswer); err != nil {
		return false, fmt.Errorf("ask whether the mesh knows pod %s/%s: %w", q.GetNamespace(), q.GetName(), err)
	}
	return r.GetKnown(), nil
}

// ServePods answers KnowsPod until ctx is done. can is false if this process does not
// lead: then another builder answers.
func (f *Fleet) ServePods(ctx context.Context, lookup func(ctx context.Context, namespace, name, account string) (known, can bool)) error {
	return listen(ctx, f, podsSubject, func(m *nats.Msg, q *reportv1.PodRequest) {
		known, can := lookup(ctx, q.GetNamespace(), q.GetName(), q.GetServiceAccount())
		if can {
			f.respond(m, &reportv1.PodReply{Known: known})
		}
	})
}

// request asks one process. none is the error if none listens, or none answers in time.
func (f *Fleet) request(ctx context.Context, subject string, wait time.Duration, q, r proto.Message, none error) error {
	b, err := proto.Marshal(q)
	if err != nil {
		return err
	}
	ctx, cancel := jsapi.Bound(ctx, f.nc, wait, f.prefix+subject)
	defer cancel()
	m, err := f.nc.RequestWithContext(ctx, f.prefix+subject, b)
	if errors.Is(err, nats.ErrNoResponders) || errors.Is(err, context.DeadlineExceeded) {
		return fmt.Errorf("%w: %w", none, jsapi.Cause(ctx, err))
	}
	if err != nil {
		return jsapi.Cause(ctx, err)
	}
	return proto.Unmarshal(m.Data, r)
}

// respond answers a request of one message.
func (f *Fleet) respond(m *nats.Msg, answer proto.Message) {
	err := checkReply(m)
	var b []byte
	if err == nil {
		b, err = proto.Marshal(answer)
	}
	if err == nil {
		err = m.Respond(b)
	}
	if err != nil {
		f.unanswerable.Add(1)
		f.log.Warn("cannot answer a request", "subject", m.Subject, "error", err)
	}
}
