package frontend_test

import (
	"context"
	"errors"
	"io"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/timestamppb"

	agentv1 "meshlog.dev/proto/meshlog/agent/v1"
	auditv1 "meshlog.dev/proto/meshlog/audit/v1"
	"meshlog.dev/services/frontend"
)

const (
	drainMethod = "/meshlog.agent.v1.DrainService/Follow"
	cartID      = "sidecar~10.0.0.1~cart-1.shop~shop.svc.cluster.local"
)

// follower is an agent that follows a frontend.
type follower = grpc.BidiStreamingClient[agentv1.FollowRequest, agentv1.FollowResponse]

func follow(t *testing.T, conn *grpc.ClientConn, proxy string) follower {
	t.Helper()
	s := open[agentv1.FollowRequest, agentv1.FollowResponse](t.Context(), t, conn, drainMethod)
	if err := s.Send(&agentv1.FollowRequest{Proxy: proxy}); err != nil {
		t.Fatal(err)
	}
	return s
}

// KEY-12: the agents of the proxy get the order, and no others. The frontend believes only
// an answer to it. An agent that does not answer, or leaves, has refused, and the audit has
// a record of each.
func TestDrains(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var records []*auditv1.Record
		f := start(t, "f1", shop(t), func(c *frontend.Config) {
			c.Audit = func(r *auditv1.Record) { records = append(records, r) }
		})
		defer f.end()
		conn := f.dial(nil)
		defer conn.Close()
		other := follow(t, conn, "sidecar~10.0.0.2~web-1.shop~shop.svc.cluster.local")
		good, silent := follow(t, conn, cartID), follow(t, conn, cartID)
		leaves, leave := f.dial(nil), make(chan struct{})
		gone := follow(t, leaves, cartID)
		synctest.Wait()
		until := time.Now().Add(time.Minute)
		go func() {
			order, err := good.Recv()
			for _, r := range []*agentv1.FollowRequest{
				{Order: order.GetOrder() + 1, Refused: "an order that nobody gave"},
				{Order: order.GetOrder(), Until: timestamppb.New(until)},
				{Order: order.GetOrder(), Refused: "a second answer"},
			} {
				err = errors.Join(err, good.Send(r))
			}
			if err != nil {
				t.Error(err)
			}
		}()
		go func() {
			defer close(leave)
			_, _ = gone.Recv()
			_ = leaves.Close()
		}()
		ctx, cancel := context.WithTimeout(t.Context(), 3*time.Second)
		defer cancel()
		var drained, refused []string
		for _, r := range f.server.Drain(ctx, cartID) {
			if r.GetRefused() == "" && r.GetUntil().AsTime().Equal(until) {
				drained = append(drained, r.GetAddress())
			} else {
				refused = append(refused, r.GetRefused())
			}
		}
		<-leave
		said := strings.Join(refused, "; ")
		if len(drained) != 1 || len(refused) != 2 || !strings.Contains(said, "has not answered within 3s") || !strings.Contains(said, "its stream has ended") {
			t.Errorf("drained %q, refused %q", drained, refused)
		}
		if len(records) != 3 || records[0].GetAction() != auditv1.Action_ACTION_PROXY_DRAINED || records[0].GetProxy() != cartID {
			t.Errorf("the audit has %v", records)
		}
		if order, err := silent.Recv(); err != nil || order.GetOrder() != 1 {
			t.Errorf("the agent that does not answer got %v, %v", order, err)
		}
		if all := f.server.Drain(t.Context(), "edge-1"); len(all) != 0 {
			t.Errorf("of a proxy without an agent: %v", all)
		}
		if err := other.CloseSend(); err != nil {
			t.Fatal(err)
		}
		if order, err := other.Recv(); !errors.Is(err, io.EOF) {
			t.Errorf("the agent of another proxy got %v, %v", order, err)
		}
	})
}

// XDS-2: a stream of an agent that names no proxy ends after 5 s, and one whose node id is
// longer than any is refused.
func TestDrainLimits(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := start(t, "f1", shop(t))
		defer f.end()
		conn := f.dial(nil)
		defer conn.Close()
		began := time.Now()
		s := open[agentv1.FollowRequest, agentv1.FollowResponse](t.Context(), t, conn, drainMethod)
		if _, err := s.Recv(); status.Code(err) != codes.Unavailable || time.Since(began) != 5*time.Second {
			t.Errorf("a silent stream: %v after %s", err, time.Since(began))
		}
		for _, id := range []string{"", strings.Repeat("x", 2<<10)} {
			if _, err := follow(t, conn, id).Recv(); status.Code(err) != codes.InvalidArgument {
				t.Errorf("a node id of %d bytes: %v", len(id), err)
			}
		}
	})
}

// I34: an agent follows for proxies of the namespace that its certificate proves.
func TestDrainIdentities(t *testing.T) {
	p := startTLS(t, true)
	const cart = "spiffe://cluster.local/ns/shop/sa/cart"
	try := func(proxy string) error {
		conn, err := grpc.NewClient("passthrough:///"+p.tls.String(), grpc.WithTransportCredentials(p.client(t, p.clientCA.Client("cart", cart))))
		if err != nil {
			t.Fatal(err)
		}
		defer conn.Close()
		s := follow(t, conn, proxy)
		if err := s.CloseSend(); err != nil {
			t.Fatal(err)
		}
		_, err = s.Recv()
		return err
	}
	if err := try(cartID); !errors.Is(err, io.EOF) {
		t.Errorf("of its namespace: %v", err)
	}
	if err := try(strings.ReplaceAll(cartID, "shop", "bank")); status.Code(err) != codes.PermissionDenied {
		t.Errorf("of another namespace: %v", err)
	}
}
