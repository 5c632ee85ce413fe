package frontend

import (
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	agentv1 "meshlog.dev/proto/meshlog/agent/v1"
	auditv1 "meshlog.dev/proto/meshlog/audit/v1"
	reportv1 "meshlog.dev/proto/meshlog/report/v1"
	"meshlog.dev/services/mesh/proxy"
)

// maxRefusal is how many bytes of an agent's reason are kept.
const maxRefusal = 1 << 10

// drains are the agents that follow this frontend, to end the connections of their
// Envoys when an operator asks for it (KEY-12).
type drains struct {
	mu     sync.Mutex
	agents map[*draining]struct{}
}

// draining is the stream of an agent.
type draining struct {
	proxy, address string
	id             identity
	orders         chan *drainOrder
	ended          <-chan struct{}
}

// drainOrder is one order to one agent.
type drainOrder struct {
	over   <-chan struct{}             // closed when nobody waits for the answer
	answer chan *agentv1.FollowRequest // has room
}

func (o *drainOrder) isOver() bool {
	select {
	case <-o.over:
		return true
	default:
		return false
	}
}

func (d *drains) enter(a *draining) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.agents == nil {
		d.agents = make(map[*draining]struct{})
	}
	d.agents[a] = struct{}{}
}

func (d *drains) leave(a *draining) {
	d.mu.Lock()
	defer d.mu.Unlock()
	delete(d.agents, a)
}

// of returns the agents of a proxy, sorted by identity and address.
func (d *drains) of(id string) (agents []*draining) {
	d.mu.Lock()
	defer d.mu.Unlock()
	for a := range d.agents {
		if a.proxy == id {
			agents = append(agents, a)
		}
	}
	slices.SortFunc(agents, func(a, b *draining) int { return strings.Compare(a.id.name+" "+a.address, b.id.name+" "+b.address) })
	return agents
}

// Drain has the agents of a proxy that follow this frontend end the connections of its
// clients, and returns their answers. An agent that has not answered when ctx is done has
// refused. The audit gets a record of each.
func (s *Server) Drain(ctx context.Context, id string) []*reportv1.DrainingAgent {
	agents := s.drains.of(id)
	answers := make([]*reportv1.DrainingAgent, len(agents))
	var g sync.WaitGroup
	for i, a := range agents {
		g.Go(func() { answers[i] = a.drain(ctx) })
	}
	g.Wait()
	for _, r := range answers {
		s.streamLog.Info("an operator has the agent of a proxy end its connections", "proxy", id, "identity", r.GetIdentity(), "address", r.GetAddress(), "refused", r.GetRefused())
		if s.cfg.Audit != nil {
			s.cfg.Audit(&auditv1.Record{Action: auditv1.Action_ACTION_PROXY_DRAINED, Identity: r.GetIdentity(), Proxy: id, Reason: r.GetRefused()})
		}
	}
	return answers
}

// drain gives the agent the order and waits for its answer.
func (a *draining) drain(ctx context.Context) *reportv1.DrainingAgent {
	r := &reportv1.DrainingAgent{Identity: a.id.name, Address: a.address}
	began := time.Now()
	o := &drainOrder{ctx.Done(), make(chan *agentv1.FollowRequest, 1)}
	select {
	case a.orders <- o:
	case <-a.ended:
		r.Refused = "its stream has ended; try again"
		return r
	case <-ctx.Done():
	}
	select {
	case answer := <-o.answer:
		r.Until, r.Refused = answer.GetUntil(), clean([]byte(answer.GetRefused()), maxRefusal)
		if r.Until == nil && r.Refused == "" {
			r.Refused = "its answer says neither until when connections last nor why they go on"
		}
	case <-a.ended:
		r.Refused = "its stream has ended before it answered; try again"
	case <-ctx.Done():
		r.Refused = fmt.Sprintf("it has not answered within %s", time.Since(began).Round(time.Second))
	}
	return r
}

// drainService returns the service that agents call.
func (s *Server) drainService() *grpc.ServiceDesc {
	of := agentv1.File_meshlog_agent_v1_agent_proto.Services().ByName("DrainService")
	return &grpc.ServiceDesc{
		ServiceName: string(of.FullName()),
		Streams: []grpc.StreamDesc{{
			StreamName: "Follow", ServerStreams: true, ClientStreams: true,
			Handler: func(_ any, gs grpc.ServerStream) (err error) {
				defer s.recoverPanic(func(failed error) { err = failed })
				return s.followDrains(gs)
			},
		}},
	}
}

// followDrains serves the stream of an agent. It counts like others.
func (s *Server) followDrains(gs grpc.ServerStream) error {
	c := &conn{server: s, grpc: gs, ended: make(chan error, 1)}
	if err := s.join(c); err != nil {
		return s.refuse(c.address, err)
	}
	defer c.part()
	requests := make(chan *agentv1.FollowRequest)
	go c.agentRequests(requests)
	silence := time.NewTimer(firstRequestWithin)
	defer silence.Stop()
	select {
	case err := <-c.ended:
		return err
	case <-silence.C:
		return status.Errorf(codes.Unavailable, "no request came within %s: the first one names the proxy", firstRequestWithin)
	case first := <-requests:
		a, err := c.agent(first)
		if err != nil {
			return err
		}
		s.drains.enter(a)
		defer s.drains.leave(a)
		return c.orders(a, requests)
	}
}

// agent returns the agent that the first request names. What a certificate proves must
// fit the proxy.
func (c *conn) agent(first *agentv1.FollowRequest) (*draining, error) {
	if len(first.GetProxy()) > maxIdentifier {
		return nil, status.Errorf(codes.InvalidArgument, "the node id has more than %d bytes", maxIdentifier)
	}
	of, err := proxy.New(&corev3.Node{Id: first.GetProxy()})
	if err != nil {
		return nil, status.Error(codes.InvalidArgument, err.Error())
	}
	if err := c.id.check(of); err != nil {
		c.server.identityMismatch(of.ID, c.address, err)
		return nil, status.Error(codes.PermissionDenied, err.Error())
	}
	return &draining{proxy: of.ID, address: c.address, id: c.id, orders: make(chan *drainOrder), ended: c.grpc.Context().Done()}, nil
}

// orders sends the agent its orders, and hands its answers on, until the stream ends.
func (c *conn) orders(a *draining, requests <-chan *agentv1.FollowRequest) error {
	open := map[uint64]*drainOrder{}
	for number := uint64(1); ; {
		select {
		case err := <-c.ended:
			return err
		case o := <-a.orders:
			maps.DeleteFunc(open, func(_ uint64, o *drainOrder) bool { return o.isOver() })
			open[number] = o
			if err := c.grpc.SendMsg(&agentv1.FollowResponse{Order: number}); err != nil {
				return err
			}
			number++
		case r := <-requests:
			if o := open[r.GetOrder()]; o != nil {
				delete(open, r.GetOrder())
				o.answer <- r
			}
		}
	}
}

// agentRequests receives the requests of an agent until the stream ends.
func (c *conn) agentRequests(requests chan<- *agentv1.FollowRequest) {
	for {
		r := new(agentv1.FollowRequest)
		switch err := c.grpc.RecvMsg(r); {
		case errors.Is(err, io.EOF): // the agent is done
			c.end(nil)
			return
		case err != nil:
			c.end(err)
			return
		}
		c.meter.decoded(proto.Size(r) + messageHead)
		select {
		case requests <- r:
		case <-c.grpc.Context().Done():
			return
		}
	}
}
