package frontend_test

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"testing"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	listenerv3 "github.com/envoyproxy/go-control-plane/envoy/config/listener/v3"
	routerv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/http/router/v3"
	hcmv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/network/http_connection_manager/v3"
	authv3 "github.com/envoyproxy/go-control-plane/envoy/service/auth/v3"
	typev3 "github.com/envoyproxy/go-control-plane/envoy/type/v3"
	"google.golang.org/genproto/googleapis/rpc/status"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/anypb"

	reportv1 "meshlog.dev/proto/meshlog/report/v1"
	"meshlog.dev/services/mesh/meshtest"
	"meshlog.dev/services/mesh/xds/piece"
	"meshlog.dev/services/mesh/xds/policy"
	"meshlog.dev/services/suite/envoytest"
	"meshlog.dev/store"
)

// authorizer decides about requests, by HTTP and by gRPC, and keeps what it was asked. It
// allows users, and fails for the user error.
type authorizer struct {
	mu    sync.Mutex
	asked []question
}

type question struct {
	by, path, body string
	headers        http.Header
}

// decide returns the status of a request, 200 if it may pass.
func (a *authorizer) decide(q question) int {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.asked = append(a.asked, q)
	switch {
	case q.headers.Get("x-user") == "error":
		return http.StatusInternalServerError
	case q.headers.Get("x-user") != "" || q.body == "please":
		return http.StatusOK
	}
	return http.StatusUnauthorized
}

// questions returns what was asked since the last call.
func (a *authorizer) questions() []question {
	a.mu.Lock()
	defer a.mu.Unlock()
	all := a.asked
	a.asked = nil
	return all
}

// ServeHTTP implements http.Handler.
func (a *authorizer) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	body, err := io.ReadAll(r.Body)
	if err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	for _, name := range []string{"x-who", "x-why", "x-cookie", "x-inside"} {
		w.Header().Set(name, "authorizer")
	}
	w.WriteHeader(a.decide(question{"HTTP", r.URL.Path, string(body), r.Header}))
	_, _ = io.WriteString(w, "so it was decided") // Envoy may have gone
}

// Check implements authv3.AuthorizationServer.
func (a *authorizer) Check(_ context.Context, r *authv3.CheckRequest) (*authv3.CheckResponse, error) {
	from := r.GetAttributes().GetRequest().GetHttp()
	q := question{"gRPC", from.GetPath(), from.GetBody() + string(from.GetRawBody()), http.Header{}}
	for name, value := range from.GetHeaders() {
		q.headers.Set(name, value)
	}
	header := func(name string) []*corev3.HeaderValueOption {
		return []*corev3.HeaderValueOption{{Header: &corev3.HeaderValue{Key: name, Value: "authorizer"}, AppendAction: corev3.HeaderValueOption_OVERWRITE_IF_EXISTS_OR_ADD}}
	}
	switch code := a.decide(q); code {
	case http.StatusOK:
		return &authv3.CheckResponse{Status: &status.Status{Code: int32(codes.OK)}, HttpResponse: &authv3.CheckResponse_OkResponse{
			OkResponse: &authv3.OkHttpResponse{Headers: header("x-who"), ResponseHeadersToAdd: header("x-cookie")},
		}}, nil
	case http.StatusUnauthorized:
		return &authv3.CheckResponse{Status: &status.Status{Code: int32(codes.PermissionDenied)}, HttpResponse: &authv3.CheckResponse_DeniedResponse{
			DeniedResponse: &authv3.DeniedHttpResponse{Status: &typev3.HttpStatus{Code: typev3.StatusCode(code)}, Headers: header("x-why"), Body: "so it was decided"},
		}}, nil
	}
	return nil, fmt.Errorf("the authorizer fails")
}

// authorizers are the documents of a mesh with four authorizers: one that is asked by
// HTTP, one by gRPC, one on whose port no process listens, and one whose service has no
// endpoints. A router has policies only if it has Gateways.
const authorizers = `
apiVersion: networking.istio.io/v1
kind: ServiceEntry
metadata: {name: auth, namespace: istio-system}
spec:
  hosts: [auth.example]
  resolution: STATIC
  ports: [{number: 80, name: http, protocol: HTTP}, {number: 81, name: grpc, protocol: GRPC}, {number: 82, name: away, protocol: HTTP}, {number: 83, name: any}]
  endpoints: [{address: 127.0.0.1, ports: {http: %[1]d, grpc: %[2]d, away: %[3]d, any: %[1]d}}]
---
apiVersion: mesh.istio.io/v1alpha1
kind: MeshConfig
metadata: {name: default}
spec:
  extensionProviders:
  - name: http
    envoyExtAuthzHttp:
      service: auth.example
      port: 80
      pathPrefix: /check
      includeRequestHeadersInCheck: [X-User, "x-a-*"]
      includeAdditionalHeadersInCheck: {x-from: mesh}
      headersToUpstreamOnAllow: [x-who]
      headersToDownstreamOnDeny: [x-why]
      headersToDownstreamOnAllow: [x-cookie]
  - {name: http-open, envoyExtAuthzHttp: {service: auth.example, port: 80, failOpen: true, includeHeadersInCheck: [x-user]}}
  - {name: detected, envoyExtAuthzHttp: {service: istio-system/auth.example, port: 83, includeHeadersInCheck: ["*user"]}}
  - {name: body, envoyExtAuthzHttp: {service: auth.example, port: 80, includeRequestBodyInCheck: {maxRequestBytes: 8}}}
  - {name: partial, envoyExtAuthzGrpc: {service: auth.example, port: 81, includeRequestBodyInCheck: {maxRequestBytes: 6, allowPartialMessage: true, packAsBytes: true}}}
  - {name: grpc, envoyExtAuthzGrpc: {service: auth.example, port: 81}}
  - {name: grpc-open, envoyExtAuthzGrpc: {service: auth.example, port: 81, failOpen: true}}
  - {name: grpc-by-http, envoyExtAuthzGrpc: {service: auth.example, port: 80, failOpen: true}}
  - {name: away, envoyExtAuthzHttp: {service: auth.example, port: 82}}
  - {name: away-503, envoyExtAuthzHttp: {service: auth.example, port: 82, statusOnError: "503"}}
  - {name: away-open, envoyExtAuthzHttp: {service: auth.example, port: 82, failOpen: true}}
  - {name: empty, envoyExtAuthzHttp: {service: empty.example, port: 80}}
  - {name: empty-open, envoyExtAuthzHttp: {service: empty.example, port: 80, failOpen: true}}
  - {name: empty-grpc-open, envoyExtAuthzGrpc: {service: empty.example, port: 81, failOpen: true}}
  - {name: nowhere, envoyExtAuthzHttp: {service: nowhere.example, port: 80, failOpen: true}}
---
apiVersion: networking.istio.io/v1
kind: Gateway
metadata: {name: gw, namespace: istio-system}
spec: {servers: [{port: {number: %[4]d, name: http, protocol: HTTP}, hosts: ["*"]}]}
---
apiVersion: networking.istio.io/v1
kind: ServiceEntry
metadata: {name: empty, namespace: istio-system}
spec: {hosts: [empty.example], resolution: STATIC, ports: [{number: 80, name: http, protocol: HTTP}, {number: 81, name: grpc, protocol: GRPC}]}
`

// custom is a policy whose provider decides about /admin.
const custom = `
apiVersion: security.istio.io/v1
kind: AuthorizationPolicy
metadata: {name: %s, namespace: istio-system}
spec: {action: CUSTOM, provider: {name: %s}, rules: [{to: [{operation: {paths: [/admin]}}]}]}
`

// call is a request on the standing connection and what happens to it.
type call struct {
	request string // METHOD PATH|HEADER...|
	body    string
	status  int
	by      string // how the authorizer was asked; empty: it was not
}

var (
	asksNobody = call{request: "GET /", status: 200}
	noUser     = "GET /admin"
	user       = "GET /admin|x-user: alice|x-a-b: c|x-secret: d|x-who: mallory"
	fails      = "GET /admin|x-user: error"
)

// customSteps change the provider of the policies, one after the other, while a
// connection stands.
var customSteps = []struct {
	provider string
	away     bool // the service of the authorizers is gone
	calls    []call
}{
	{"", false, []call{{noUser, "", 200, ""}}},
	{"http", false, []call{asksNobody, {noUser, "", 401, "HTTP"}, {user, "", 200, "HTTP"}, {fails, "", 403, "HTTP"}}},
	{"grpc", false, []call{asksNobody, {noUser, "", 401, "gRPC"}, {user, "", 200, "gRPC"}, {fails, "", 403, "gRPC"}}},
	{"http-open", false, []call{{noUser, "", 401, "HTTP"}, {fails, "", 200, "HTTP"}}},
	{"grpc-open", false, []call{{noUser, "", 401, "gRPC"}, {fails, "", 200, "gRPC"}}},
	{"detected", false, []call{{noUser, "", 401, "HTTP"}, {user, "", 200, "HTTP"}}},
	{"body", false, []call{{"POST /admin", "please", 200, "HTTP"}, {"POST /admin", "hello", 401, "HTTP"}, {"POST /admin", "nine byte", 413, ""}}},
	{"partial", false, []call{{"POST /admin", "please, do", 200, "gRPC"}, {"POST /admin", "do, please", 401, "gRPC"}}},
	{"away", false, []call{asksNobody, {user, "", 403, ""}}},
	{"away-503", false, []call{asksNobody, {user, "", 503, ""}}},
	{"away-open", false, []call{{noUser, "", 200, ""}}},
	{"empty", false, []call{asksNobody, {user, "", 403, ""}}}, // a service without endpoints is away
	{"empty-open", false, []call{{noUser, "", 200, ""}}},
	{"empty-grpc-open", false, []call{{noUser, "", 200, ""}}},
	{"nowhere", false, []call{asksNobody, {user, "", 403, ""}}},      // failOpen is for authorizers that are away
	{"grpc-by-http", false, []call{asksNobody, {user, "", 403, ""}}}, // the same
	{"missing", false, []call{asksNobody, {user, "", 403, ""}}},
	{"http grpc-open", false, []call{asksNobody, {user, "", 403, ""}}}, // two policies that disagree
	{"http http", false, []call{asksNobody, {noUser, "", 401, "HTTP"}, {user, "", 200, "HTTP"}}},
	{"http-open", true, []call{asksNobody, {user, "", 403, ""}}},
	{"http", false, []call{asksNobody, {noUser, "", 401, "HTTP"}, {user, "", 200, "HTTP"}}},
	{"grpc-open", true, []call{asksNobody, {user, "", 403, ""}}},
	{"grpc", false, []call{asksNobody, {noUser, "", 401, "gRPC"}, {user, "", 200, "gRPC"}}},
	{"", false, []call{{noUser, "", 200, ""}}},
}

// TestAuthorizers runs a real Envoy that asks real authorizers what the providers of
// CUSTOM policies say, and answers 403 to what they match if they cannot be asked
// (AZ-9). Every provider holds for the next request on a connection that stands, when a
// slot goes from RBAC to ext_authz and back, too (POL-1, S38).
func TestAuthorizers(t *testing.T) {
	for _, delta := range []bool{false, true} {
		t.Run(fmt.Sprintf("delta=%v", delta), func(t *testing.T) {
			a := &authorizer{}
			byHTTP, byGRPC := httptest.NewServer(a), serveGRPC(t, a)
			defer byHTTP.Close()
			backend := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				if err := json.NewEncoder(w).Encode(r.Header); err != nil {
					t.Error(err)
				}
			}))
			defer backend.Close()
			mesh, xds, port := newMesh(t), freePort(t), freePort(t)
			settings := meshtest.YAML(t, fmt.Sprintf(authorizers, portOf(t, byHTTP.Listener), byGRPC, freePort(t), freePort(t)))
			mesh.Publish(append(settings,
				meshtest.Put("c", meshtest.Cluster("c", 1)), meshtest.Put("e", meshtest.Endpoints("c", uint32(portOf(t, backend.Listener)))),
				meshtest.Put("l", withSlots(t, port)), meshtest.Put("r", meshtest.Routes("routes", meshtest.To("c", 1))),
			)...)
			rig := start(t, "one", mesh, onPort(t, xds))
			envoy := runEnvoy(t, fmt.Sprintf(staticClusters, apiTypes[delta], "  cds_config: {ads: {}, resource_api_version: V3}\n", xds))
			connect := func() *standing {
				var c net.Conn
				if err := envoy.UntilAlive(t.Context(), "the listener's port", func(ctx context.Context) (err error) {
					c, err = new(net.Dialer).DialContext(ctx, "tcp", fmt.Sprintf("127.0.0.1:%d", port))
					return err
				}); err != nil {
					t.Fatal(err)
				}
				t.Cleanup(func() { _ = c.Close() }) // all is read
				return &standing{c, bufio.NewReader(c)}
			}
			c := connect()
			var before []meshtest.Change
			for _, step := range customSteps {
				changes := []meshtest.Change{settings[0]}
				if step.away {
					changes[0] = settings[0].Gone()
				}
				for _, b := range before {
					changes = append(changes, b.Gone())
				}
				before = nil
				for i, provider := range strings.Fields(step.provider) {
					p := meshtest.YAML(t, fmt.Sprintf(custom, fmt.Sprint("p", i), provider))
					changes = slices.DeleteFunc(changes, func(c meshtest.Change) bool { return c.Key() == p[0].Key() })
					before, changes = append(before, p...), append(changes, p...)
				}
				v := mesh.Publish(changes...)
				rig.eventually("the provider "+step.provider, func(r *reportv1.FrontendReport) bool {
					return alone(r) != nil && len(r.GetApplied()) == 1 && store.VersionOf(r.GetApplied()[0].GetVersion()) == v
				})
				for _, call := range step.calls {
					on := c
					if call.status == http.StatusRequestEntityTooLarge { // Envoy closes the connection
						on = connect()
					}
					got := call.send(t, on)
					call.check(t, step.provider, got, a.questions())
				}
			}
		})
	}
}

// standing is a connection with what was read of it.
type standing struct {
	net.Conn
	responses *bufio.Reader
}

// answer is a response, with the headers that came to the backend.
type answer struct {
	status            int
	headers, upstream http.Header
}

// send sends a request on a connection.
func (c call) send(t *testing.T, on *standing) answer {
	t.Helper()
	parts := strings.Split(c.request, "|")
	lines := append([]string{parts[0] + " HTTP/1.1", "Host: shop.example", fmt.Sprintf("Content-Length: %d", len(c.body))}, parts[1:]...)
	if _, err := io.WriteString(on, strings.Join(lines, "\r\n")+"\r\n\r\n"+c.body); err != nil {
		t.Fatal(err)
	}
	response, err := http.ReadResponse(on.responses, nil)
	if err != nil {
		t.Fatalf("%s: the connection does not stand: %v", c.request, err)
	}
	body, err := io.ReadAll(response.Body)
	if err != nil || response.Body.Close() != nil {
		t.Fatal(err)
	}
	if response.StatusCode == http.StatusUnauthorized && string(body) != "so it was decided" {
		t.Errorf("%s: the authorizer's answer is %q", c.request, body)
	}
	got := answer{status: response.StatusCode, headers: response.Header}
	if got.status == http.StatusOK {
		if err := json.Unmarshal(body, &got.upstream); err != nil {
			t.Fatalf("%s: %q: %v", c.request, body, err)
		}
	}
	return got
}

// check compares what happened to a call with what should.
func (c call) check(t *testing.T, provider string, got answer, asked []question) {
	t.Helper()
	by := ""
	if len(asked) == 1 {
		by = asked[0].by
	}
	if got.status != c.status || by != c.by || len(asked) > 1 {
		t.Errorf("%s: %s: %d, asked %v; want %d, asked by %q", provider, c.request, got.status, asked, c.status, c.by)
		return
	}
	expect := func(what, is, want string) {
		if is != want {
			t.Errorf("%s: %s: %s is %q, want %q", provider, c.request, what, is, want)
		}
	}
	if c.request == user && c.status == http.StatusOK && (provider == "http" || provider == "grpc") {
		expect("x-who at the backend", strings.Join(got.upstream["X-Who"], ","), "authorizer")
		expect("x-inside at the backend", got.upstream.Get("x-inside"), "")
		expect("x-cookie of the response", got.headers.Get("x-cookie"), "authorizer")
		expect("x-user of the question", asked[0].headers.Get("x-user"), "alice")
		expect("x-a-b of the question", asked[0].headers.Get("x-a-b"), "c")
	}
	if c.status == http.StatusUnauthorized && (provider == "http" || provider == "grpc") {
		expect("x-why of the response", got.headers.Get("x-why"), "authorizer")
		expect("x-inside of the response", got.headers.Get("x-inside"), "")
	}
	if provider == "http" && c.by != "" {
		expect("the path of the question", asked[0].path, "/check/admin")
		expect("x-from of the question", asked[0].headers.Get("x-from"), "mesh")
		expect("x-secret of the question", asked[0].headers.Get("x-secret"), "")
	}
}

// serveGRPC serves the authorizer by gRPC until the test ends, and returns its port.
func serveGRPC(t *testing.T, a *authorizer) int {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	s := grpc.NewServer()
	authv3.RegisterAuthorizationServer(s, a)
	go func() { _ = s.Serve(l) }() // Stop ends it
	t.Cleanup(s.Stop)
	return portOf(t, l)
}

func portOf(t *testing.T, l net.Listener) int {
	t.Helper()
	a, ok := l.Addr().(*net.TCPAddr)
	if !ok {
		t.Fatalf("%s is no TCP address", l.Addr())
	}
	return a.Port
}

// withSlots returns a listener whose requests pass the slots of policies.
func withSlots(t *testing.T, port int) *listenerv3.Listener {
	t.Helper()
	pack := func(m proto.Message) *anypb.Any {
		a, err := anypb.New(m)
		if err != nil {
			t.Fatal(err)
		}
		return a
	}
	return envoytest.Listener(t, "l", uint32(port), &hcmv3.HttpConnectionManager{
		StatPrefix:     "l",
		RouteSpecifier: &hcmv3.HttpConnectionManager_Rds{Rds: &hcmv3.Rds{RouteConfigName: "routes", ConfigSource: piece.FromADS()}},
		HttpFilters:    append(policy.Slots(), &hcmv3.HttpFilter{Name: "router", ConfigType: &hcmv3.HttpFilter_TypedConfig{TypedConfig: pack(&routerv3.Router{})}}),
	})
}
