package nacos

import (
	"context"
	"encoding/json"
	"fmt"
	"net"
	"net/http"
	"slices"
	"strings"
	"sync"
	"testing"

	"google.golang.org/grpc"
	"google.golang.org/grpc/peer"

	"meshlog.dev/deploy/testkit/testport"
)

// scripted is a server whose answers are those of Nacos' own server, where it differs from
// r-nacos: it confirms the setup of a connection, puts the group before names, and sends
// unhealthy instances (NAC-3).
type scripted struct {
	t    testing.TB
	port int
	// script answers a request in place of the server; nil: the server does.
	script func(kind string, body map[string]any) any
	// web serves the HTTP API; nil: nothing is there.
	web http.Handler
	// options are of the gRPC server: its certificate.
	options []grpc.ServerOption
	// silent: the stream opens, and the server confirms nothing.
	silent bool

	mu          sync.Mutex
	grpc        *grpc.Server
	http        *http.Server
	services    map[serviceID]serviceInfo
	connections map[string]*connected // by the client's address
	requests    []string              // their types
	tokens      []string              // of requests
	replies     []payload             // of the client, on the stream
	running     int                   // requests about services
	most        int
	sent        int // requests to clients
}

type connected struct {
	stream     grpc.ServerStream
	subscribed map[serviceID]bool
}

func newScripted(t testing.TB) *scripted { return newScriptedWeb(t, nil) }

// newScriptedWeb is newScripted with an HTTP API.
func newScriptedWeb(t testing.TB, web http.Handler, options ...grpc.ServerOption) *scripted {
	port, err := testport.Pair(grpcOffset)
	if err != nil {
		t.Fatal(err)
	}
	s := &scripted{t: t, port: port, web: web, options: options, services: map[serviceID]serviceInfo{}}
	s.start()
	t.Cleanup(s.stop)
	return s
}

func (s *scripted) address() string { return fmt.Sprint("127.0.0.1:", s.port) }

func (s *scripted) start() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.connections = map[string]*connected{}
	s.grpc = grpc.NewServer(append(s.options, grpc.ForceServerCodecV2(codec{}))...)
	s.grpc.RegisterService(&grpc.ServiceDesc{ServiceName: "Request", Methods: []grpc.MethodDesc{{MethodName: "request", Handler: func(_ any, ctx context.Context, decode func(any) error, _ grpc.UnaryServerInterceptor) (any, error) {
		var p payload
		if err := decode(&p); err != nil {
			return nil, err
		}
		return s.answer(ctx, &p)
	}}}}, nil)
	s.grpc.RegisterService(&grpc.ServiceDesc{ServiceName: "BiRequestStream", Streams: []grpc.StreamDesc{{
		StreamName: "requestBiStream", ServerStreams: true, ClientStreams: true,
		Handler: func(_ any, stream grpc.ServerStream) error { return s.serve(stream) },
	}}}, nil)
	listen := func(port int) net.Listener {
		l, err := net.Listen("tcp4", fmt.Sprint("127.0.0.1:", port))
		if err != nil {
			s.t.Fatal(err)
		}
		return l
	}
	l, server := listen(s.port+grpcOffset), s.grpc
	go func() { _ = server.Serve(l) }() // ends with stop
	if s.web != nil {
		s.http = &http.Server{Handler: s.web}
		l, server := listen(s.port), s.http
		go func() { _ = server.Serve(l) }()
	}
}

func (s *scripted) stop() {
	s.grpc.Stop()
	if s.http != nil {
		_ = s.http.Close()
	}
}

func client(ctx context.Context) string {
	p, _ := peer.FromContext(ctx)
	return p.Addr.String()
}

func failure(code int, message string) any {
	return map[string]any{"resultCode": 500, "errorCode": code, "message": message}
}

func (s *scripted) answer(ctx context.Context, p *payload) (*payload, error) {
	var body map[string]any
	if err := json.Unmarshal(p.body, &body); err != nil {
		return nil, err
	}
	s.mu.Lock()
	s.requests = append(s.requests, p.kind)
	s.tokens = append(s.tokens, p.headers["accessToken"])
	connection := s.connections[client(ctx)]
	about := p.kind == subscribe || p.kind == serviceQuery
	if about {
		s.running++
		s.most = max(s.most, s.running)
	}
	s.mu.Unlock()
	var a any
	if s.script != nil {
		a = s.script(p.kind, body)
	}
	if a == nil {
		a = s.byDefault(connection, p.kind, body)
	}
	s.mu.Lock()
	if about {
		s.running--
	}
	s.mu.Unlock()
	b, err := json.Marshal(a)
	return &payload{kind: strings.TrimSuffix(p.kind, "Request") + "Response", body: b}, err
}

func (s *scripted) byDefault(c *connected, kind string, body map[string]any) any {
	s.mu.Lock()
	defer s.mu.Unlock()
	if kind == serverCheck {
		return map[string]any{"resultCode": 200, "connectionId": "1", "supportAbilityNegotiation": true}
	}
	if c == nil {
		return failure(codeUnregistered, "Connection is unregistered.")
	}
	group, _ := body["groupName"].(string)
	name, _ := body["serviceName"].(string)
	id := serviceID{group, name}
	switch kind {
	case healthCheck:
		return map[string]any{"resultCode": 200}
	case serviceList:
		names := []string{}
		for id := range s.services {
			if id.group == group {
				names = append(names, group+"@@"+id.name)
			}
		}
		return map[string]any{"resultCode": 200, "count": len(names), "serviceNames": names}
	case subscribe:
		c.subscribed[id] = body["subscribe"] == true
		fallthrough
	case serviceQuery:
		return map[string]any{"resultCode": 200, "serviceInfo": s.info(id)}
	}
	return failure(302, "RequestHandler Not Found")
}

func (s *scripted) info(id serviceID) serviceInfo {
	i := s.services[id]
	i.Name, i.Group = id.name, id.group
	if i.Hosts == nil {
		i.Hosts = json.RawMessage("[]")
	}
	return i
}

func (s *scripted) serve(stream grpc.ServerStream) error {
	var setup payload
	if err := stream.RecvMsg(&setup); err != nil {
		return err
	}
	at := client(stream.Context())
	s.mu.Lock()
	if !s.silent {
		s.connections[at] = &connected{stream, map[serviceID]bool{}}
		s.send(stream, setupAck, map[string]any{"abilityTable": map[string]bool{"fuzzyWatch": true}})
	}
	s.mu.Unlock()
	defer func() {
		s.mu.Lock()
		delete(s.connections, at)
		s.mu.Unlock()
	}()
	for {
		var p payload
		if err := stream.RecvMsg(&p); err != nil {
			return err
		}
		s.mu.Lock()
		s.replies = append(s.replies, p)
		s.mu.Unlock()
	}
}

// send sends a request to a client. Callers hold mu.
func (s *scripted) send(stream grpc.ServerStream, kind string, body map[string]any) {
	s.sent++
	body["requestId"] = fmt.Sprint(s.sent)
	b, err := json.Marshal(body)
	if err != nil {
		s.t.Error(err)
	}
	_ = stream.SendMsg(&payload{kind: kind, body: b}) // fails only if the client is gone
}

// request sends a request to all clients.
func (s *scripted) request(kind string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, c := range s.connections {
		s.send(c.stream, kind, map[string]any{})
	}
}

// set changes a service and pushes it to its subscribers.
func (s *scripted) set(id serviceID, hosts ...any) {
	s.lose(id, hosts...)
	s.push(id, nil)
}

// lose is set whose push gets lost.
func (s *scripted) lose(id serviceID, hosts ...any) {
	b, err := json.Marshal(append([]any{}, hosts...))
	if err != nil {
		s.t.Error(err)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.services[id] = serviceInfo{Hosts: b}
}

// push pushes a service, with further fields.
func (s *scripted) push(id serviceID, more map[string]any) {
	s.mu.Lock()
	defer s.mu.Unlock()
	i := map[string]any{"name": id.name, "groupName": id.group, "hosts": s.info(id).Hosts}
	for k, v := range more {
		i[k] = v
	}
	for _, c := range s.connections {
		if c.subscribed[id] {
			s.send(c.stream, notifySubscriber, map[string]any{"serviceInfo": i})
		}
	}
}

// remove removes a service; clients see it in their next list.
func (s *scripted) remove(id serviceID) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.services, id)
}

// count returns how many requests of a type have come.
func (s *scripted) count(kind string) int {
	s.mu.Lock()
	defer s.mu.Unlock()
	n := 0
	for _, k := range s.requests {
		if k == kind {
			n++
		}
	}
	return n
}

// replied returns the types of what clients have answered on the stream, with the
// numbers of the requests.
func (s *scripted) replied() []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	var all []string
	for _, p := range s.replies {
		var r reply
		if err := json.Unmarshal(p.body, &r); err != nil {
			s.t.Error(err)
		}
		all = append(all, p.kind+" "+r.RequestID)
	}
	slices.Sort(all)
	return all
}

func id(name string) serviceID { return serviceID{DefaultGroup, name} }

// at is an instance as a server sends it; more are further fields, by name.
func at(ip string, more ...any) map[string]any {
	m := map[string]any{
		"instanceId": ip + "#8080#DEFAULT", "ip": ip, "port": 8080, "weight": 1.0, "healthy": true, "enabled": true, "ephemeral": true, "clusterName": "DEFAULT",
		"serviceName": "DEFAULT_GROUP@@web", "metadata": map[string]string{},
	}
	for i := 0; i < len(more); i += 2 {
		m[more[i].(string)] = more[i+1]
	}
	return m
}
