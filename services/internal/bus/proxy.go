package bus

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/nats-io/nats.go"
	"google.golang.org/protobuf/proto"

	reportv1 "meshlog.dev/proto/meshlog/report/v1"
)

// proxyQuiet is how long Proxy waits for another answer.
const proxyQuiet = 2 * time.Second

// Proxy asks the frontends with these ids for their state of a proxy. It returns
// one reply for each stream, sorted by frontend, without the frontends that do not
// answer within 2 s.
func (f *Fleet) Proxy(ctx context.Context, id string, frontends []string) ([]*reportv1.ProxyReply, error) {
	if len(frontends) == 0 {
		return nil, nil
	}
	var replies []*reportv1.ProxyReply
	waiting := slices.Clone(frontends)
	err := f.ask(ctx, proxySubject, &reportv1.ProxyRequest{Id: id}, proxyQuiet, func(m *nats.Msg) (bool, error) {
		r := new(reportv1.ProxyReply)
		if err := proto.Unmarshal(m.Data, r); err != nil {
			return false, err
		}
		if r.GetStream() > 0 {
			replies = join(replies, r)
		}
		if !r.GetMore() {
			waiting = slices.DeleteFunc(waiting, func(name string) bool { return name == r.GetFrontend() })
		}
		r.More = false
		return len(waiting) == 0, nil
	})
	if err != nil {
		return nil, fmt.Errorf("ask for proxy %s: %w", id, err)
	}
	slices.SortStableFunc(replies, func(a, b *reportv1.ProxyReply) int { return strings.Compare(a.GetFrontend(), b.GetFrontend()) })
	return replies, nil
}

// join adds a message to the reply of its stream.
func join(replies []*reportv1.ProxyReply, r *reportv1.ProxyReply) []*reportv1.ProxyReply {
	i := slices.IndexFunc(replies, func(o *reportv1.ProxyReply) bool {
		return o.GetFrontend() == r.GetFrontend() && o.GetStream() == r.GetStream()
	})
	if i < 0 {
		return append(replies, r)
	}
	of := replies[i]
	for _, t := range r.GetTypes() {
		k := slices.IndexFunc(of.GetTypes(), func(o *reportv1.TypeContent) bool { return o.GetTypeUrl() == t.GetTypeUrl() })
		if k < 0 {
			of.Types = append(of.Types, t)
			continue
		}
		of.Types[k].Resources = append(of.Types[k].Resources, t.GetResources()...)
	}
	return replies
}

// ServeProxies answers Proxy until ctx is done. lookup returns one reply for each
// stream, which ServeProxies may change.
func (f *Fleet) ServeProxies(ctx context.Context, frontend string, lookup func(id string) []*reportv1.ProxyReply) error {
	return listen(ctx, f, proxySubject, func(m *nats.Msg, q *reportv1.ProxyRequest) {
		for _, r := range replyParts(frontend, lookup(q.GetId()), maxReport) {
			b, err := proto.Marshal(r)
			if err == nil {
				err = m.Respond(b)
			}
			if err != nil {
				f.log.Warn("cannot answer a question for a proxy", "proxy", q.GetId(), "error", err)
				return
			}
		}
	})
}

// replyParts numbers the replies and splits them into messages of about that size.
func replyParts(frontend string, replies []*reportv1.ProxyReply, size int) []*reportv1.ProxyReply {
	var parts []*reportv1.ProxyReply
	for i, r := range replies {
		types := r.GetTypes()
		r.Frontend, r.Stream, r.Types = frontend, uint32(i+1), nil
		parts = append(parts, r)
		room := size
		for _, t := range types {
			for resources, first := t.GetResources(), true; first || len(resources) > 0; first = false {
				if room <= 0 {
					r = &reportv1.ProxyReply{Frontend: frontend, Stream: r.GetStream()}
					parts, room = append(parts, r), size
				}
				n := fitting(resources, room)
				c := &reportv1.TypeContent{TypeUrl: t.GetTypeUrl(), Wildcard: t.GetWildcard(), Resources: resources[:n:n]}
				r.Types, resources = append(r.Types, c), resources[n:]
				room -= proto.Size(c)
			}
		}
	}
	if len(parts) == 0 {
		parts = []*reportv1.ProxyReply{{Frontend: frontend}}
	}
	for _, p := range parts[:len(parts)-1] {
		p.More = true
	}
	return parts
}
