package authz_test

import (
	"bufio"
	"io"
	"net"
	"net/http"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	listenerv3 "github.com/envoyproxy/go-control-plane/envoy/config/listener/v3"
	routev3 "github.com/envoyproxy/go-control-plane/envoy/config/route/v3"
	routerv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/http/router/v3"
	hcmv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/network/http_connection_manager/v3"
	"google.golang.org/protobuf/types/known/wrapperspb"

	"meshlog.dev/services/suite/envoytest"
)

// attack is a policy and requests that pass it, or do not. A request is written in one
// line, with | between the lines of HTTP; its default host is shop.example.
type attack struct {
	name, spec string
	// base is Istio's default normalization; decode also decodes %2f. The default is
	// merged slashes (POL-6).
	base, decode bool
	passes       []string
	denied       []string
}

var attacks = []attack{
	{
		name: "POL-6: forbidden paths", spec: `{action: DENY, rules: [{to: [{operation: {paths: [/admin, /admin/*]}}]}]}`,
		passes: []string{"GET /", "GET /Admin", "GET /admin;x", "GET /admin%20", "GET /admin.", "GET /%2561dmin", "GET /%2fadmin"},
		denied: []string{"GET /admin", "GET //admin", "GET /./admin", "GET /x/../admin", "GET /%61dmin", "GET /admin?x", "GET /admin/x", "GET http://shop.example/admin"},
	},
	{
		name: "POL-6: Istio's normalization", spec: `{action: DENY, rules: [{to: [{operation: {paths: [/admin]}}]}]}`,
		base: true, passes: []string{"GET //admin"}, denied: []string{"GET /admin"},
	},
	{
		name: "POL-6: decoded slashes", spec: `{action: DENY, rules: [{to: [{operation: {paths: [/admin, /a/b]}}]}]}`,
		decode: true, denied: []string{"GET /%2fadmin", "GET /a%2fb", "GET /a%2Fb"},
	},
	{
		name: "POL-6: allowed paths", spec: `{rules: [{to: [{operation: {paths: [/public/*]}}]}]}`,
		passes: []string{"GET /public/a", "GET //public//a", "GET http://shop.example/public/a"},
		denied: []string{"GET /", "GET /Public/a", "GET /public", "GET /public/../admin", "GET /public/%2e%2e/admin", "GET /x?/public/a"},
	},
	{
		name: "POL-7: an allowed host", spec: `{rules: [{to: [{operation: {hosts: [shop.example, "*.shop.example"]}}]}]}`,
		passes: []string{
			"GET /", "GET /|Host: SHOP.Example", "GET /|Host: shop.example:80", "GET /|Host: shop.example.", "GET /|Host: shop.example.:80",
			"GET /|Host: a.shop.example:80", "GET http://shop.example/|Host: evil.example",
		},
		denied: []string{
			"GET /|Host: evil.example", "GET /|Host: xshop.example", "GET /|Host: shop.example.evil", "GET /|Host: shopxexample",
			"GET /|Host: shop.example:80.evil", "GET http://evil.example/|Host: shop.example",
		},
	},
	{
		name: "POL-7: a forbidden host", spec: `{action: DENY, rules: [{to: [{operation: {hosts: [shop.example]}}]}]}`,
		passes: []string{"GET /|Host: other.example"},
		denied: []string{"GET /", "GET /|Host: SHOP.Example:80", "GET /|Host: shop.example.", "GET http://shop.example./|Host: other.example"},
	},
	{
		name: "POL-7: path templates", spec: `{rules: [{to: [{operation: {paths: ["/a/{*}/b", "/c/{**}"]}}]}]}`,
		passes: []string{"GET /a/x/b", "GET /a/x%2fy/b", "GET /c/x/y"},
		denied: []string{"GET /a/x/y/b", "GET /a/b", "GET /d/x"},
	},
	{
		name: "POL-8: an allowed header", spec: `{rules: [{when: [{key: "request.headers[x-role]", values: [admin]}]}]}`,
		passes: []string{"GET /|X-Role: admin", "GET /|x-role: user|x-role: admin"},
		denied: []string{"GET /", "GET /|x-role: Admin", "GET /|x-role: user"},
	},
	{
		name: "POL-8: a forbidden header", spec: `{action: DENY, rules: [{when: [{key: "request.headers[X-Role]", values: [user]}]}]}`,
		passes: []string{"GET /", "GET /|x-role: admin"},
		denied: []string{"GET /|X-ROLE: user", "GET /|x-role: user|x-role: admin", "GET /|x-role: admin|x-role: user"},
	},
	{
		name: "POL-8: lines that Envoy joins", spec: `{action: DENY, rules: [{when: [{key: "request.headers[user-agent]", values: [bot, "x,bot"]}]}]}`,
		passes: []string{"GET /", "GET /|User-Agent: bot|User-Agent: a", "GET /|User-Agent: bot,a"},
		denied: []string{"GET /|User-Agent: bot", "GET /|User-Agent: x|User-Agent: bot"},
	},
	{name: "POL-9: no rules", spec: `{}`, denied: []string{"GET /"}},
	{name: "AZ-2: an empty rule", spec: `{rules: [{}]}`, passes: []string{"GET /"}},
	{name: "AZ-1: audited", spec: `{action: AUDIT, rules: [{}]}`, passes: []string{"GET /"}},
	{
		name: "AZ-5: methods and addresses", spec: `{action: DENY, rules: [{to: [{operation: {notMethods: [GET]}}]}, {when: [{key: "request.headers[a]", notValues: ["*"]}, {key: source.ip, values: [192.0.2.1]}]}]}`,
		passes: []string{"GET /"}, denied: []string{"HEAD /", "POST /"},
	},
	{
		name: "POL-4: no certificate", spec: `{rules: [{from: [{source: {principals: ["*"]}}, {source: {namespaces: [a]}}, {source: {requestPrincipals: ["*"]}}]}]}`,
		denied: []string{"GET /"},
	},
}

// A real Envoy denies the requests of attackers that a policy forbids.
func TestAttacks(t *testing.T) {
	dir := t.TempDir()
	var listeners []*listenerv3.Listener
	sockets := make([]dial, len(attacks)+1)
	for i, a := range append(attacks, attack{name: "POL-15: never good"}) {
		policy := "metadata: {name: p, namespace: shop}\nspec: " + a.spec
		if a.spec == "" {
			policy = "metadata: {name: p, namespace: shop}\nclosed: true"
		}
		path := filepath.Join(dir, strconv.Itoa(i))
		sockets[i] = func() (net.Conn, error) { return net.Dial("unix", path) }
		listeners = append(listeners, listenerOf(t, a, policy, path))
	}
	envoytest.Run(t, dir, listeners)
	for i, a := range attacks {
		t.Run(a.name, func(t *testing.T) {
			expect(t, sockets[i], http.StatusOK, a.passes)
			expect(t, sockets[i], http.StatusForbidden, a.denied)
		})
	}
	status, details, err := ask(sockets[len(attacks)], "GET /")
	if err != nil || status != http.StatusForbidden || !strings.Contains(details, "invalid:shop/p") {
		t.Errorf("a policy that was never good: %d, %q, %v; want 403 with its name (POL-15)", status, details, err)
	}
}

// dial connects to a listener.
type dial func() (net.Conn, error)

func expect(t *testing.T, socket dial, want int, requests []string) {
	t.Helper()
	for _, r := range requests {
		if is, details, err := ask(socket, r); err != nil || is != want {
			t.Errorf("%s: %d (%s), %v; want %d", r, is, details, err, want)
		}
	}
}

// ask sends a request and returns its status and the response's body.
func ask(connect dial, request string) (status int, body string, err error) {
	c, err := connect()
	if err != nil {
		return 0, "", err
	}
	defer func() { _ = c.Close() }() // the response is read
	first, rest, _ := strings.Cut(request, "|")
	headers := []string{first + " HTTP/1.1"}
	if rest != "" {
		headers = append(headers, strings.Split(rest, "|")...)
	}
	if !strings.Contains(rest, "Host: ") {
		headers = append(headers, "Host: shop.example")
	}
	method, _, _ := strings.Cut(first, " ")
	if _, err := io.WriteString(c, strings.Join(headers, "\r\n")+"\r\nConnection: close\r\nContent-Length: 0\r\n\r\n"); err != nil {
		return 0, "", err
	}
	response, err := http.ReadResponse(bufio.NewReader(c), &http.Request{Method: method})
	if err != nil {
		return 0, "", err
	}
	defer func() { _ = response.Body.Close() }() // it is read
	text, err := io.ReadAll(response.Body)
	return response.StatusCode, string(text), err
}

// listenerOf returns a listener that answers 200 if a policy lets a request pass. The
// body of a refusal has the details.
func listenerOf(t testing.TB, a attack, policy, socket string) *listenerv3.Listener {
	m := &hcmv3.HttpConnectionManager{
		StatPrefix: "http", NormalizePath: wrapperspb.Bool(true), MergeSlashes: !a.base,
		RouteSpecifier: &hcmv3.HttpConnectionManager_RouteConfig{RouteConfig: &routev3.RouteConfiguration{
			Name: "r", VirtualHosts: []*routev3.VirtualHost{{Name: "all", Domains: []string{"*"}, Routes: []*routev3.Route{{
				Match:  &routev3.RouteMatch{PathSpecifier: &routev3.RouteMatch_Prefix{Prefix: "/"}},
				Action: &routev3.Route_DirectResponse{DirectResponse: &routev3.DirectResponseAction{Status: http.StatusOK}},
			}}}},
		}},
		LocalReplyConfig: &hcmv3.LocalReplyConfig{BodyFormat: &corev3.SubstitutionFormatString{
			Format: &corev3.SubstitutionFormatString_TextFormatSource{TextFormatSource: &corev3.DataSource{
				Specifier: &corev3.DataSource_InlineString{InlineString: "%RESPONSE_CODE_DETAILS%"},
			}},
		}},
	}
	if a.decode {
		m.PathWithEscapedSlashesAction = hcmv3.HttpConnectionManager_UNESCAPE_AND_FORWARD
	}
	for i, f := range translate(t, []byte(policy)) {
		if f != nil {
			m.HttpFilters = append(m.HttpFilters, httpFilter(t, slots[i], f))
		}
	}
	m.HttpFilters = append(m.HttpFilters, httpFilter(t, "router", &routerv3.Router{}))
	l := envoytest.Listener(t, a.name, 0, m)
	l.Address = &corev3.Address{Address: &corev3.Address_Pipe{Pipe: &corev3.Pipe{Path: socket}}}
	return l
}
