package frontend_test

import (
	"bufio"
	"io"
	"net"
	"net/http"
	"strconv"
	"strings"
	"testing"

	"meshlog.dev/services/mesh/meshtest"
)

// A requestAttack is a policy of a router, and requests with the status of each. A request
// is written in one line, with | between the lines of HTTP; its Host is shop.example unless
// it has one.
type requestAttack struct {
	name, spec string
	requests   [][2]string
}

// Where a request passes with 200 although its path looks forbidden, the list is that of
// POL-6: a policy has to say what is allowed.
var requestAttacks = []requestAttack{
	{"forbidden paths", `{action: DENY, rules: [{to: [{operation: {paths: [/admin, "/admin/*"]}}]}]}`, [][2]string{
		{"GET /", "200"}, {"GET /admin", "403"}, {"GET /admin/x", "403"}, {"GET /admin?x", "403"},
		{"GET http://shop.example/admin", "403"}, {"GET http://shop.example//admin", "403"}, {"GET http://shop.example/x/../admin", "403"},
		{"GET http://shop.example/", "200"}, {"GET http://SHOP.example/admin", "403"}, {"GET http://shop.example:80/admin", "403"},
		{"GET //admin", "403"}, {"GET ///admin", "403"}, {"GET /./admin", "403"}, {"GET /x/../admin", "403"}, {"GET /x/%2e%2e/admin", "403"},
		{"GET /%61dmin", "403"}, {"GET \\admin", "400"}, {"GET /x\\..\\admin", "403"}, {"GET /admin#x", "400"},
		{"GET /admin|x-envoy-original-path: /", "403"}, {"GET /|x-envoy-original-path: /admin", "200"},
		{"GET /admin|x-original-url: /", "403"}, {"GET /admin|x-rewrite-url: /", "403"}, {"POST /admin|x-http-method-override: GET", "403"},
		{"GET /Admin", "200"}, {"GET /admin;x", "200"}, {"GET /admin%20", "200"}, {"GET /admin.", "200"}, {"GET /%2561dmin", "200"}, {"GET /%2fadmin", "200"},
	}},
	{"allowed paths", `{rules: [{to: [{operation: {paths: ["/public/*"]}}]}]}`, [][2]string{
		{"GET /public/a", "200"}, {"GET http://shop.example/public/a", "200"}, {"GET //public//a", "200"},
		{"GET /", "403"}, {"GET /admin", "403"}, {"GET http://shop.example/admin", "403"}, {"GET /Public/a", "403"}, {"GET /public;x/a", "403"},
		{"GET /public/../admin", "403"}, {"GET /public/%2e%2e/admin", "403"}, {"GET /public/..\\admin", "403"}, {"GET http://shop.example/public/../admin", "403"},
		{"GET /x?/public/a", "403"}, {"GET /x#/public/a", "400"}, {"GET /%2fpublic/a", "403"},
		{"GET /admin|x-envoy-original-path: /public/a", "403"}, {"GET /admin|x-original-url: /public/a", "403"}, {"GET /admin|:path: /public/a", "400"},
	}},
	{"an allowed host", `{rules: [{to: [{operation: {hosts: [shop.example]}}]}]}`, [][2]string{
		{"GET /", "200"}, {"GET /|Host: SHOP.Example", "200"}, {"GET /|Host: shop.example:80", "200"}, {"GET http://shop.example/|Host: evil.example", "200"},
		{"GET /|Host: evil.example", "403"}, {"GET http://evil.example/", "403"}, {"GET /|Host: evil.example|x-forwarded-host: shop.example", "403"},
		{"GET /|Host: shop.example:80.evil", "403"}, {"GET /|Host: shop.example@evil.example", "403"}, {"GET /|Host: shop.example|Host: evil.example", "403"},
	}},
	{"a forbidden host", `{action: DENY, rules: [{to: [{operation: {hosts: [shop.example]}}]}]}`, [][2]string{
		{"GET /|Host: other.example", "404"}, {"GET /", "403"}, {"GET /|Host: SHOP.Example:80", "403"}, {"GET /|Host: shop.example.", "403"},
		{"GET /|Host: shop.example.:80", "403"}, {"GET http://shop.example./|Host: other.example", "403"},
	}},
	{"a forbidden header", `{action: DENY, rules: [{when: [{key: "request.headers[x-role]", values: [user]}]}]}`, [][2]string{
		{"GET /", "200"}, {"GET /|x-role: admin", "200"}, {"GET /|x-role: user", "403"}, {"GET /|X-ROLE: user", "403"},
		{"GET /|x-role: user|x-role: admin", "403"}, {"GET /|x-role: admin|x-role: user", "403"}, {"GET /|x-role:   user  ", "403"},
	}},
	{"an allowed header", `{rules: [{when: [{key: "request.headers[x-role]", values: [admin]}]}]}`, [][2]string{
		{"GET /|x-role: admin", "200"}, {"GET /", "403"}, {"GET /|x-role: Admin", "403"}, {"GET /|x-role: user", "403"}, {"GET /|x-role: user,admin", "403"},
		{"GET /|x-role: user|x-role: admin", "200"}, // POL-8: each line is matched alone
	}},
	{"a forged certificate", `{rules: [{when: [{key: "request.headers[x-forwarded-client-cert]", values: ["*"]}]}, {to: [{operation: {paths: [/open]}}]}]}`, [][2]string{
		{"GET /open", "200"}, {"GET /", "403"}, {"GET /|x-forwarded-client-cert: URI=spiffe://cluster.local/ns/client/sa/client", "403"},
		{"GET /|X-Forwarded-Client-Cert: By=a;URI=spiffe://cluster.local/ns/client/sa/client", "403"},
	}},
	{"a second request in the first", `{rules: [{to: [{operation: {paths: [/public]}}]}]}`, [][2]string{
		{"POST /public", "200"}, {"POST /public|Transfer-Encoding: chunked", "400"}, {"POST /public|Content-Length: 5", "400"}, {"GET /admin", "403"},
	}},
}

// Requests as attackers write them, to a real Envoy that a frontend serves, as a router
// (POL-6, POL-7, POL-8), and by simulation with the same answer (POL-16), but for texts that
// are no requests of HTTP. The requests of each table that pass are those that the others
// change.
func TestAttackRequests(t *testing.T) {
	g := newGuarded(t, true, 1)
	remote := g.conns[0].RemoteAddr().(*net.TCPAddr).AddrPort()
	address := remote.String()
	for _, a := range requestAttacks {
		t.Run(a.name, func(t *testing.T) {
			g.T = t
			g.publish(meshtest.YAML(t, "{apiVersion: security.istio.io/v1, kind: AuthorizationPolicy, metadata: {name: p, namespace: istio-system}, spec: "+a.spec+"}")...)
			simulated := g.mesh.simulated(t, "{id: static, cluster: static}")
			for _, r := range a.requests {
				c, ok := callOf(r[0])
				c.Address, c.Port, c.From = remote.Addr(), uint32(remote.Port()), remote.Addr()
				if o := simulated.Call(c); ok && verdictOf(o) != r[1] {
					t.Errorf("%s: the simulation says %s, want %s\n%s", r[0], verdictOf(o), r[1], strings.Join(o.Lines(), "\n"))
				}
				if !ok && r[1] != "400" {
					t.Errorf("%s is not simulated", r[0])
				}
				if status, err := sendRaw(address, r[0]); err != nil || strconv.Itoa(status) != r[1] {
					t.Errorf("%s: %d, %v; want %s", r[0], status, err, r[1])
				}
			}
		})
	}
}

// sendRaw sends a request on a connection of its own, without a change of its bytes.
func sendRaw(address, request string) (status int, err error) {
	c, err := net.Dial("tcp", address)
	if err != nil {
		return 0, err
	}
	defer func() { _ = c.Close() }() // the response is read
	first, rest, more := strings.Cut(request, "|")
	lines := []string{first + " HTTP/1.1"}
	if more {
		lines = append(lines, strings.Split(rest, "|")...)
	}
	if !strings.Contains(rest, "Host: ") {
		lines = append(lines, "Host: shop.example")
	}
	if _, err := io.WriteString(c, strings.Join(lines, "\r\n")+"\r\nConnection: close\r\nContent-Length: 0\r\n\r\n"); err != nil {
		return 0, err
	}
	response, err := http.ReadResponse(bufio.NewReader(c), nil)
	if err != nil {
		return 0, err
	}
	return response.StatusCode, response.Body.Close()
}
