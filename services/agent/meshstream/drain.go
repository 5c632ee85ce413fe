package meshstream

import (
	"context"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/timestamppb"

	agentv1 "meshlog.dev/proto/meshlog/agent/v1"
)

// follow does what operators want of the agent through the frontend, until ctx is done or
// the frontend knows of no such thing.
func (s *Stream) follow(ctx context.Context, conn *grpc.ClientConn) {
	for pause := firstRetry; ctx.Err() == nil; pause = min(2*pause, lastRetry) {
		err := s.orders(ctx, conn)
		if status.Code(err) == codes.Unimplemented { // an earlier build
			return
		}
		if ctx.Err() == nil {
			s.Log.Warn("operators cannot end the connections of this Envoy with `meshlog drain`", "error", err, "again", pause)
		}
		select {
		case <-ctx.Done():
		case <-time.After(pause):
		}
	}
}

// orders answers the orders of one stream, until it ends.
func (s *Stream) orders(ctx context.Context, conn *grpc.ClientConn) error {
	service := agentv1.File_meshlog_agent_v1_agent_proto.Services().ByName("DrainService")
	stream, err := conn.NewStream(ctx, &grpc.StreamDesc{ServerStreams: true, ClientStreams: true}, "/"+string(service.FullName())+"/Follow")
	if err != nil {
		return err
	}
	for answer := (&agentv1.FollowRequest{Proxy: s.Proxy}); ; {
		if err := stream.SendMsg(answer); err != nil {
			return stream.RecvMsg(new(agentv1.FollowResponse)) // says why
		}
		order := new(agentv1.FollowResponse)
		if err := stream.RecvMsg(order); err != nil {
			return err
		}
		answer = &agentv1.FollowRequest{Order: order.GetOrder()}
		until, err := s.EndConnections()
		if err != nil {
			answer.Refused = err.Error()
		} else {
			answer.Until = timestamppb.New(until)
		}
		s.Log.Warn("an operator ends the connections of this Envoy", "until", until, "error", err)
	}
}
