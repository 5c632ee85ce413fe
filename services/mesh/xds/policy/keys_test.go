package policy_test

import (
	"fmt"
	"strings"
	"testing"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	jwtv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/http/jwt_authn/v3"

	"meshlog.dev/services/mesh/index"
	. "meshlog.dev/services/mesh/meshtest"
	"meshlog.dev/services/mesh/problem"
	"meshlog.dev/services/mesh/proxy"
	"meshlog.dev/services/mesh/xds/policy"
)

// jwtSlot makes the content of the slot of tokens.
func jwtSlot(t *testing.T, pc *index.PushContext, class index.ECDSClass) (*jwtv3.JwtAuthentication, []problem.Diagnostic) {
	t.Helper()
	for _, part := range policy.Parts(pc.Read(), class) {
		pieces, ds := part.Make(pc.Read())
		if pieces[0].Name != policy.JWT {
			continue
		}
		f := new(jwtv3.JwtAuthentication)
		if err := pieces[0].Message.(*corev3.TypedExtensionConfig).GetTypedConfig().UnmarshalTo(f); err != nil {
			t.Fatal(err)
		}
		if err := f.ValidateAll(); err != nil {
			t.Error(err)
		}
		return f, ds
	}
	t.Fatal("there is no slot of tokens")
	return nil, nil
}

const fetching = `
apiVersion: security.istio.io/v1
kind: RequestAuthentication
metadata: {name: p, namespace: %s, annotations: {meshlog.dev/jwks: envoy}}
spec: {jwtRules: [{issuer: other, jwksUri: 'http://x.other'}, {issuer: i, jwksUri: %q}]}
`

const issuerService = `
---
apiVersion: v1
kind: Service
metadata: {name: issuer, namespace: auth}
spec: {clusterIP: 10.0.0.9, ports: [{name: http, port: 8080}]}
`

const issuerTLS = `
---
apiVersion: networking.istio.io/v1
kind: DestinationRule
metadata: {name: r, namespace: auth}
spec: {host: login.example, trafficPolicy: {portLevelSettings: [{port: {number: 443}, tls: {mode: SIMPLE}}]}}
`

func entryOf(namespace, host, export string) string {
	return fmt.Sprintf(`
---
apiVersion: networking.istio.io/v1
kind: ServiceEntry
metadata: {name: e, namespace: %s}
spec: {hosts: [%s], exportTo: [%q], resolution: STATIC, ports: [{number: 8080, name: http, protocol: HTTP}, {number: 443, name: https, protocol: HTTPS}]}
`, namespace, host, export)
}

// POL-13: proxies fetch keys from the cluster of the service that jwksUri names, as they see
// it. If there is none that they can call, no token of the issuer is accepted, and the
// policy is reported.
func TestProxyKeys(t *testing.T) {
	const kube, login = "issuer.auth.svc.cluster.local", "login.example"
	for _, test := range []struct{ name, namespace, uri, services, cluster, reason string }{
		{"Kubernetes", "shop", "http://" + kube + ":8080/keys", issuerService, "outbound|8080||" + kube, ""},
		{"short", "auth", "http://ISSUER:8080/keys", issuerService, "outbound|8080||" + kube, ""},
		{"taken by another namespace", "istio-system", "http://" + kube + ":8080/keys", issuerService + entryOf("shop", kube, "."), "",
			"for proxies of namespace shop the host " + kube + " is a service of namespace shop"},
		{"entry", "shop", "http://login.example:8080/keys", entryOf("auth", login, "*"), "outbound|8080||login.example", ""},
		{"not exported", "shop", "http://login.example:8080/keys", entryOf("auth", login, "."), "", "the service auth/login.example is not exported to all namespaces"},
		{"its own of two", "shop", "http://login.example:8080/keys", entryOf("auth", login, "*") + entryOf("shop", login, "."), "outbound|8080||login.example", ""},
		{"any of two", "istio-system", "http://login.example:8080/keys", entryOf("auth", login, "*") + entryOf("shop", login, "."), "", "the namespaces auth, shop have a service login.example"},
		{"no service", "shop", "http://nowhere.example:8080/keys", issuerService, "", "there is no service nowhere.example"},
		{"no port", "shop", "http://login.example/keys", entryOf("auth", login, "*"), "", "the service auth/login.example has no port 80"},
		{"https without TLS", "shop", "https://login.example/keys", entryOf("auth", login, "*"), "",
			"jwksUri says https, and proxies do not call port 443 of the service auth/login.example by TLS"},
		{"https", "shop", "https://login.example/keys", entryOf("auth", login, "*") + issuerTLS, "outbound|443||login.example", ""},
	} {
		t.Run(test.name, func(t *testing.T) {
			home := map[string]string{"auth": "auth"}[test.namespace]
			if home == "" {
				home = "shop"
			}
			pc := PushContext(t, YAML(t, fmt.Sprintf(fetching, test.namespace, test.uri)+test.services)...)
			f, ds := jwtSlot(t, pc, index.Classify(pc, &proxy.Proxy{Type: proxy.Sidecar, Namespace: home}).ECDS)
			var reason string
			for _, d := range ds {
				if d.Field == "spec.jwtRules[1].jwksUri" && d.Key.Name == "p" && d.Severity == problem.Error {
					reason = strings.TrimPrefix(d.Reason, "proxies cannot fetch the keys: ")
				}
			}
			p := f.GetProviders()["origins-0"]
			from := p.GetRemoteJwks()
			if from.GetHttpUri().GetCluster() != test.cluster || reason != test.reason {
				t.Fatalf("%v, %q; want %q, %q", p, reason, test.cluster, test.reason)
			}
			if test.cluster == "" {
				if from != nil || !strings.Contains(p.GetLocalJwks().GetInlineString(), `"kid":"nobody"`) {
					t.Errorf("without a service: %v", p)
				}
				return
			}
			if from.GetHttpUri().GetUri() != test.uri || from.GetHttpUri().GetTimeout().GetSeconds() != 5 || from.GetCacheDuration().GetSeconds() != 300 ||
				!from.GetAsyncFetch().GetFastListener() || from.GetAsyncFetch().GetFailedRefetchDuration().GetSeconds() != 5 {
				t.Errorf("%v", from)
			}
		})
	}
}

// POL-13: a policy of the root namespace makes a class of each scope in which proxies see
// services differently, and the gate makes all of them.
func TestProxyKeysOfScopes(t *testing.T) {
	pc := PushContext(t, YAML(t, fmt.Sprintf(fetching, "istio-system", "http://login.example:8080/keys")+entryOf("auth", "login.example", "attic"))...)
	for namespace, want := range map[string]bool{"shop": false, "attic": true} {
		class := index.Classify(pc, &proxy.Proxy{Type: proxy.Sidecar, Namespace: namespace}).ECDS
		f, _ := jwtSlot(t, pc, class)
		if got := f.GetProviders()["origins-0"].GetRemoteJwks() != nil; got != want {
			t.Errorf("%s fetches: %v", namespace, got)
		}
		made := false
		for _, c := range pc.Classes() {
			made = made || c.ECDS.Fetches && c.ECDS.Scope == class.Scope && c.ECDS.Selected == class.Selected && c.ECDS.Client == class.Client
		}
		if !made {
			t.Errorf("the gate makes no class for %s", namespace)
		}
	}
}
