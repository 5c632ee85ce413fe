package nacos

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"strings"
	"sync/atomic"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/credentials/insecure"
)

const (
	requestMethod = "/Request/request"
	streamMethod  = "/BiRequestStream/requestBiStream"

	// maxMessage bounds an answer: a list of all services, or a service with all of its
	// instances.
	maxMessage = 256 << 20
	// registerPause is the time between two tries of a request that came before the server
	// had registered the connection.
	registerPause = 50 * time.Millisecond
	clientVersion = "meshlog:v1"
)

// link is a connection to a server. Requests and pushes share one TCP connection, which
// is the watcher's identity there. Its methods are safe for concurrent use.
type link struct {
	server   server
	access   *access
	deadline time.Duration // of a request

	cc       *grpc.ClientConn
	stream   grpc.ClientStream
	local    atomic.Pointer[string] // the IP of this end
	answered atomic.Int64           // when the server last answered a request, as Unix nanoseconds
}

// dial connects to a server and registers (NAC-5). ctx is that of the link: the caller
// cancels it before close. Somebody must call receive, or the server ends the link.
func dial(ctx context.Context, s server, namespace string, c *Credentials, deadline time.Duration) (*link, error) {
	t, err := c.tls()
	if err != nil {
		return nil, fmt.Errorf("%w: %w", errRefused, err)
	}
	l := &link{server: s, access: newAccess(s.base, c, t), deadline: deadline}
	transport := insecure.NewCredentials()
	if s.tls {
		transport = credentials.NewTLS(t)
	}
	l.cc, err = grpc.NewClient("passthrough:///"+s.grpc,
		grpc.WithTransportCredentials(transport), grpc.WithContextDialer(l.connect), grpc.WithDisableServiceConfig(), grpc.WithDisableRetry(),
		grpc.WithDefaultCallOptions(grpc.ForceCodecV2(codec{}), grpc.MaxCallRecvMsgSize(maxMessage)))
	if err != nil {
		return nil, err
	}
	if err := l.register(ctx, namespace); err != nil {
		l.close()
		return nil, fmt.Errorf("%s: %w", s.grpc, err)
	}
	return l, nil
}

// connect dials without a proxy of the environment.
func (l *link) connect(ctx context.Context, address string) (net.Conn, error) {
	conn, err := (&net.Dialer{}).DialContext(ctx, "tcp", address)
	if err == nil {
		ip, _, _ := net.SplitHostPort(conn.LocalAddr().String())
		l.local.Store(&ip)
	}
	return conn, err
}

func (l *link) close() {
	l.access.close()
	_ = l.cc.Close() // its only error is that it is closed
}

func (l *link) register(ctx context.Context, namespace string) error {
	var check checkAnswer
	if err := l.call(ctx, serverCheck, struct{}{}, &check); err != nil {
		return err
	}
	var err error
	if l.stream, err = l.cc.NewStream(ctx, &grpc.StreamDesc{ServerStreams: true, ClientStreams: true}, streamMethod); err != nil {
		return err
	}
	err = l.send(connectionSetup, setupRequest{
		ClientVersion: clientVersion, Tenant: namespace, Module: "internal",
		Labels: map[string]string{"source": "sdk", "module": "naming", "AppName": "meshlog"}, Abilities: map[string]bool{},
	})
	if err != nil || !check.Negotiates {
		return err
	}
	return l.awaitAck(ctx)
}

// awaitAck waits for the SetupAckRequest: before it, a server that negotiates takes no
// other request.
func (l *link) awaitAck(ctx context.Context) error {
	done := make(chan error, 1)
	go func() { // ends with the stream, whose ctx the caller of dial cancels after an error
		for {
			kind, _, err := l.next()
			if err != nil || kind == setupAck {
				done <- err
				return
			}
		}
	}()
	timer := time.NewTimer(l.deadline)
	defer timer.Stop()
	select {
	case err := <-done:
		return err
	case <-timer.C:
		return fmt.Errorf("the server did not confirm the connection within %s", l.deadline)
	case <-ctx.Done():
		return ctx.Err()
	}
}

// receive calls push with each push, in their order, and answers the server's requests,
// until the link ends. It returns why. After a ConnectResetRequest that is errReset.
func (l *link) receive(push func(*serviceInfo)) error {
	for {
		kind, p, err := l.next()
		switch {
		case err != nil:
			return err
		case kind == connectReset:
			return errReset
		case kind == notifySubscriber && p.Info != nil:
			push(p.Info)
		}
	}
}

// errReset says that the server wants the client to go to another one.
var errReset = errors.New("the server asked to go to another server")

// next reads a request of the server and answers it: a push without an answer comes
// again, and a server whose probe is not answered ends the link.
func (l *link) next() (kind string, p pushed, err error) {
	var m payload
	if err := l.stream.RecvMsg(&m); err != nil {
		return "", p, fmt.Errorf("the connection has ended: %w", err)
	}
	if err := json.Unmarshal(m.body, &p); err != nil {
		return "", p, fmt.Errorf("%s of the server: %w", m.kind, err)
	}
	switch m.kind {
	case notifySubscriber, clientDetection, connectReset, setupAck:
		err = l.send(strings.TrimSuffix(m.kind, "Request")+"Response", reply{ResultCode: codeSuccess, RequestID: p.RequestID, Success: true})
	}
	return m.kind, p, err
}

// send sends a message on the stream. Calls do not overlap: register sends before there is
// a caller of next.
func (l *link) send(kind string, body any) error {
	m, err := l.message(kind, "", body)
	if err != nil {
		return err
	}
	return l.stream.SendMsg(m)
}

func (l *link) message(kind, token string, body any) (*payload, error) {
	b, err := json.Marshal(body)
	if err != nil {
		return nil, err
	}
	m := &payload{kind: kind, body: b}
	if ip := l.local.Load(); ip != nil {
		m.clientIP = *ip
	}
	if token != "" {
		m.headers = map[string]string{"accessToken": token}
	}
	return m, nil
}

// call sends a request and reads its answer into a value. It repeats the request while the
// server registers the link, and once with a new token if the server refuses the token.
func (l *link) call(ctx context.Context, kind string, body any, into result) error {
	ctx, cancel := context.WithTimeout(ctx, l.deadline)
	defer cancel()
	again := false
	for {
		token := ""
		if kind != serverCheck && kind != healthCheck {
			var err error
			if token, err = l.access.get(ctx); err != nil {
				return err
			}
		}
		err := l.try(ctx, kind, token, body, into)
		var e *serverError
		switch {
		case !errors.As(err, &e):
			return err
		case e.code == codeUnregistered:
			timer := time.NewTimer(registerPause)
			select {
			case <-timer.C:
			case <-ctx.Done():
				timer.Stop()
				return err
			}
		case e.code == codeRefused && (again || !l.access.refused(token)):
			return fmt.Errorf("%w: %w", errRefused, err)
		case e.code == codeRefused:
			again = true
		default:
			return err
		}
	}
}

func (l *link) try(ctx context.Context, kind, token string, body any, into result) error {
	m, err := l.message(kind, token, body)
	if err != nil {
		return err
	}
	var got payload
	if err := l.cc.Invoke(ctx, requestMethod, m, &got); err != nil {
		return fmt.Errorf("%s: %w", kind, err)
	}
	if err := json.Unmarshal(got.body, into); err != nil {
		return fmt.Errorf("the answer to %s: %w", kind, err)
	}
	l.answered.Store(time.Now().UnixNano())
	if a := into.outcome(); a.ResultCode != codeSuccess {
		return &serverError{kind, a.ErrorCode, a.Message}
	}
	return nil
}

// server is the address of a server.
type server struct {
	base string // of the HTTP API
	grpc string // HOST:PORT
	tls  bool   // of gRPC
}

// grpcOffset is how far the port of gRPC is from that of HTTP (NAC-1).
const grpcOffset = 1000

// parseServer reads HOST, HOST:PORT or https://HOST:PORT.
func parseServer(address string, tls bool) (server, error) {
	scheme, rest, found := strings.Cut(address, "://")
	if !found {
		scheme, rest = "http", address
	}
	if scheme != "http" && scheme != "https" {
		return server{}, fmt.Errorf("%q: the scheme is not http or https", address)
	}
	host, port, err := net.SplitHostPort(rest)
	if err != nil {
		host, port = strings.Trim(rest, "[]"), "8848"
	}
	n, err := net.LookupPort("tcp", port)
	if err != nil || host == "" || strings.ContainsAny(host, "/@?# ") || n == 0 || n > 65535-grpcOffset {
		return server{}, fmt.Errorf("%q: want HOST:PORT of the HTTP API, with a port below %d", address, 65536-grpcOffset)
	}
	at := func(port int) string { return net.JoinHostPort(host, fmt.Sprint(port)) }
	return server{base: scheme + "://" + at(n), grpc: at(n + grpcOffset), tls: tls}, nil
}
