// Package xdsclient runs a gRPC client that gets its configuration by xDS, without a
// proxy, and servers that it can call. It is separate from rig because it links all of
// grpc-go's xDS client, which the demo does not need.
package xdsclient

import (
	"context"
	"fmt"
	"net"
	"net/http"
	"strconv"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/health"
	healthv1 "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/resolver"
	"google.golang.org/grpc/resolver/manual"
	"google.golang.org/grpc/xds"

	"meshlog.dev/deploy/e2e/rig"
)

// Backend is a gRPC server in this process with the service grpc.health.v1. Every
// answer carries its name.
type Backend struct {
	Name   string
	Port   int
	server *grpc.Server
	ended  chan struct{}
}

// StartBackend listens on a free loopback port and serves.
func StartBackend(name string) (*Backend, error) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, err
	}
	b := &Backend{Name: name, Port: l.Addr().(*net.TCPAddr).Port, ended: make(chan struct{})}
	b.server = grpc.NewServer(grpc.UnaryInterceptor(
		func(ctx context.Context, req any, _ *grpc.UnaryServerInfo, handle grpc.UnaryHandler) (any, error) {
			if err := grpc.SetHeader(ctx, metadata.Pairs(nameHeader, name)); err != nil {
				return nil, err
			}
			return handle(ctx, req)
		}))
	healthv1.RegisterHealthServer(b.server, health.NewServer())
	go func() { // ends with Stop
		defer close(b.ended)
		_ = b.server.Serve(l)
	}()
	return b, nil
}

// nameHeader is the metadata that names the backend.
const nameHeader = "backend"

// Stop closes the server and its connections.
func (b *Backend) Stop() {
	b.server.Stop()
	<-b.ended
}

// Client is a channel that gets its configuration by xDS.
type Client struct{ conn *grpc.ClientConn }

// Dial creates a channel to xds:///target that knows the frontends on these
// ports. node is its node id.
func Dial(node, target string, ports []int) (*Client, error) {
	// One name for all frontends, as with DNS: if one address fails, grpc-go tries
	// the next.
	frontends := manual.NewBuilderWithScheme("frontends-of-" + node)
	var state resolver.State
	for _, port := range ports {
		state.Endpoints = append(state.Endpoints, resolver.Endpoint{Addresses: []resolver.Address{{Addr: net.JoinHostPort("127.0.0.1", strconv.Itoa(port))}}})
	}
	frontends.InitialState(state)
	resolver.Register(frontends)
	mesh, err := xds.NewXDSResolverWithConfigForTesting(fmt.Appendf(nil, `{
		"xds_servers": [{"server_uri": "%s:///all", "channel_creds": [{"type": "insecure"}], "server_features": ["xds_v3"]}],
		"node": {"id": %q}
	}`, frontends.Scheme(), node))
	if err != nil {
		return nil, err
	}
	conn, err := grpc.NewClient("xds:///"+target, grpc.WithResolvers(mesh), grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		return nil, err
	}
	return &Client{conn}, nil
}

// Close ends the channel.
func (c *Client) Close() error { return c.conn.Close() }

// Send makes n calls, one after the other.
func (c *Client) Send(ctx context.Context, n int) rig.Tally { return rig.SendCalls(ctx, n, c.call) }

// StartLoad makes calls from conns goroutines until Stop, or until ctx ends. ctx
// must have a deadline.
func (c *Client) StartLoad(ctx context.Context, conns int) (*rig.Load, error) {
	return rig.StartCalls(ctx, "gRPC", conns, c.call, func() {})
}

// call fails at once if no backend is reachable.
func (c *Client) call(ctx context.Context) (backend string, status int, err error) {
	ctx, cancel := context.WithTimeout(ctx, rig.RequestTimeout)
	defer cancel()
	var header metadata.MD
	if _, err := healthv1.NewHealthClient(c.conn).Check(ctx, &healthv1.HealthCheckRequest{}, grpc.Header(&header)); err != nil {
		return "", 0, err
	}
	if names := header.Get(nameHeader); len(names) == 1 {
		backend = names[0]
	}
	return backend, http.StatusOK, nil
}
