package accesslog_test

import (
	"os/exec"
	"strings"
	"testing"

	accesslogv3 "github.com/envoyproxy/go-control-plane/envoy/config/accesslog/v3"
	bootstrapv3 "github.com/envoyproxy/go-control-plane/envoy/config/bootstrap/v3"
	clusterv3 "github.com/envoyproxy/go-control-plane/envoy/config/cluster/v3"
	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	listenerv3 "github.com/envoyproxy/go-control-plane/envoy/config/listener/v3"
	tcpv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/network/tcp_proxy/v3"
	telemetry "istio.io/api/telemetry/v1alpha1"

	"meshlog.dev/services/mesh/index"
	"meshlog.dev/services/mesh/kind/validate"
	"meshlog.dev/services/mesh/meshtest"
	"meshlog.dev/services/mesh/problem"
	"meshlog.dev/services/mesh/xds/accesslog"
	"meshlog.dev/services/mesh/xds/callee"
	"meshlog.dev/services/mesh/xds/piece"
	"meshlog.dev/services/suite/envoytest"
)

// filtered returns the log of a mesh whose Telemetry has an expression.
func filtered(t *testing.T, expression string) *accesslogv3.AccessLog {
	t.Helper()
	pc := meshtest.PushContext(t, meshtest.YAML(t, `
apiVersion: telemetry.istio.io/v1
kind: Telemetry
metadata: {name: mesh, namespace: istio-system}
spec: {accessLogging: [{providers: [{name: envoy}], filter: {expression: "`+strings.ReplaceAll(expression, `"`, `\"`)+`"}}]}
`)...)
	logs := accesslog.Of(pc.Read(), index.SelectorSet(""), true, callee.Caller{})
	if len(logs) != 1 || logs[0].GetFilter() == nil {
		t.Fatalf("%v, want one log with a filter", logs)
	}
	return logs[0]
}

// taken reports whether a real Envoy takes a listener with these logs.
func taken(t *testing.T, logs ...*accesslogv3.AccessLog) (string, bool) {
	t.Helper()
	l := &listenerv3.Listener{
		Name:    "l",
		Address: &corev3.Address{Address: &corev3.Address_Pipe{Pipe: &corev3.Pipe{Path: "/tmp/none"}}},
		FilterChains: []*listenerv3.FilterChain{{Filters: []*listenerv3.Filter{{
			Name: "envoy.filters.network.tcp_proxy",
			ConfigType: &listenerv3.Filter_TypedConfig{TypedConfig: piece.Any(&tcpv3.TcpProxy{
				StatPrefix: "x", ClusterSpecifier: &tcpv3.TcpProxy_Cluster{Cluster: "c"}, AccessLog: logs,
			})},
		}}}},
	}
	config := envoytest.Write(t, t.TempDir(), &bootstrapv3.Bootstrap{StaticResources: &bootstrapv3.Bootstrap_StaticResources{
		Listeners: []*listenerv3.Listener{l}, Clusters: []*clusterv3.Cluster{{Name: "c"}},
	}})
	out, err := exec.CommandContext(t.Context(), envoytest.Envoy(t), "--mode", "validate", "-l", "critical", "-c", config).CombinedOutput()
	return string(out), err == nil
}

func validated(expression string) []problem.Diagnostic {
	return validate.Telemetry(&telemetry.Telemetry{AccessLogging: []*telemetry.AccessLogging{{Filter: &telemetry.AccessLogging_Filter{Expression: expression}}}})
}

// TL-5: a real Envoy takes each expression that the validation lets pass.
func TestEnvoyTakesExpressions(t *testing.T) {
	var logs []*accesslogv3.AccessLog
	for _, expression := range []string{
		`response.code >= 400`, `has(request.headers.x) && request.headers['x-a'] == 'b'`, `!(response.code in [200, 204]) || request.path.startsWith('/a')`,
		`startsWith(request.path, 'x') || endsWith(request.path, 'x') || contains(request.path, 'x') || matches(request.path, 'x')`,
		`request.path.endsWith('x') || request.path.contains('x') || request.path.matches('^/[a-z]{1,20}$')`,
		`request.path.size() > 1 && size(request.path) > 1`, `int('1') == 1 && uint(1) == 1u && double(1) == 1.0 && bytes('a') == b'a' && bool('true')`,
		`timestamp('2020-01-01T00:00:00Z') < request.time && duration('1s') < request.duration`, `type(1) == int && dyn(1) == 1`,
		`request.time.getFullYear() + request.time.getMonth() + request.time.getDate() + request.time.getDayOfMonth() + request.time.getDayOfWeek() > 1`,
		`request.time.getDayOfYear() + request.time.getHours('UTC') + request.time.getMinutes() + request.time.getSeconds() + request.time.getMilliseconds() > 1`,
		`'a' + 'b' == 'ab' && [1] + [2] == [1, 2] && {'a': 1}.a == 1`, `-response.code % 2 == 0 ? response.code / 2 > 1 : response.code * 2 - 1 != 3`,
		`response.code > 1 && response.code <= 2 && null == null // a comment`, `connection.mtls`, `upstream.address == 'a' && xds.route_name == 'b'`,
		`"a\"b" == r'a' || '\u0041' == """A"""`, `request["path"] == 'a'`,
		strings.Repeat("(", 20) + "true" + strings.Repeat(")", 20), strings.Repeat("!", 20) + "true", "true" + strings.Repeat(" && true", 400),
		"1" + strings.Repeat(" + 1", 15) + " == 16", "a" + strings.Repeat("[0]", 20), "size(" + strings.Repeat("[", 18) + strings.Repeat("]", 18) + ") == 1",
	} {
		if ds := validated(expression); len(ds) > 0 && ds[0].Severity == problem.Error {
			t.Errorf("%s: %v", expression, ds)
			continue
		}
		logs = append(logs, filtered(t, strings.ReplaceAll(expression, `\`, `\\`)))
	}
	if out, ok := taken(t, logs...); !ok {
		t.Error(out)
	}
}

// TL-5: a Telemetry is an error if Envoy would refuse the listener for its expression.
func TestEnvoyRefusesExpressions(t *testing.T) {
	for _, expression := range []string{
		`response.code >=`, `response.code.foo()`, `request.headers.exists(h, h == 'a')`, `string(response.code) == '200'`, `Foo{a: 1} == 1`,
		`request.path.lowerAscii() == 'a'`, `size(1, 2) == 1`, `request.path.contains('x', 'y')`, `request.path.matches('(')`, `has(request)`,
		`request.time.getHours('a', 'b') == 1`, `getHours(request.time) == 1`, `request.path.int() == 1`, `9223372036854775808 == 1`,
	} {
		if ds := validated(expression); len(ds) != 1 || ds[0].Severity != problem.Error || ds[0].Field != "spec.accessLogging[0].filter.expression" {
			t.Errorf("%s: %v, want an error", expression, ds)
		}
		if _, ok := taken(t, filtered(t, expression)); ok {
			t.Errorf("Envoy takes %s", expression)
		}
	}
}
