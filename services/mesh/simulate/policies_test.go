package simulate

import (
	"strings"
	"testing"

	listenerv3 "github.com/envoyproxy/go-control-plane/envoy/config/listener/v3"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/anypb"
	_ "google.golang.org/protobuf/types/known/emptypb"
	"sigs.k8s.io/yaml"
)

// manager is a listener of which %s are the HTTP filters before the router.
const manager = `
name: l
address: {socket_address: {address: 0.0.0.0, port_value: 80}}
filter_chains:
- filters:
  - name: http
    typed_config:
      "@type": type.googleapis.com/envoy.extensions.filters.network.http_connection_manager.v3.HttpConnectionManager
      http_filters: [%s]
      route_config:
        name: routes
        virtual_hosts:
        - name: all
          domains: ["*"]
          routes:
          - match: {prefix: /set}
            direct_response: {status: 200}
            typed_per_filter_config: {f: {"@type": type.googleapis.com/google.protobuf.Empty}}
          - match: {prefix: /}
            direct_response: {status: 200}
`

const (
	rbacType = `"@type": type.googleapis.com/envoy.extensions.filters.http.rbac.v3.RBAC`
	jwtType  = `"@type": type.googleapis.com/envoy.extensions.filters.http.jwt_authn.v3.JwtAuthentication`
	askType  = `"@type": type.googleapis.com/envoy.extensions.filters.http.ext_authz.v3.ExtAuthz`
	anyCall  = `{permissions: [{any: true}], principals: [{any: true}]}`
	byIP     = `{permissions: [{any: true}], principals: [{direct_remote_ip: {address_prefix: 10.0.0.0, prefix_len: 8}}]}`
	provider = `{p: {issuer: i, local_jwks: {inline_string: '{"keys": [{"kid": "a"}]}'}}}`
	rest     = `match: {prefix: /}, requires: `
)

// What a filter decides ends the call, and what the simulation cannot evaluate never
// lets it pass. A filter that decides nothing is only noted.
func TestFiltersOfPolicies(t *testing.T) {
	const passes = "200"
	for filter, want := range map[string]string{
		`{` + rbacType + `}`:                         passes,
		`{` + rbacType + `, rules: {action: ALLOW}}`: "ALLOW: 403, no rule matches",
		`{` + rbacType + `, rules: {action: ALLOW, policies: {a: ` + anyCall + `}}}`:                                                                       "ALLOW a: allowed",
		`{` + rbacType + `, rules: {action: DENY, policies: {a: ` + anyCall + `}}}`:                                                                        "DENY a: 403",
		`{` + rbacType + `, rules: {action: LOG, policies: {a: ` + anyCall + `}}}`:                                                                         "AUDIT a: audited",
		`{` + rbacType + `, rules: {action: DENY, policies: {a: ` + byIP + `}}}`:                                                                           "cannot simulate filter f: policy a",
		`{` + rbacType + `, rules: {action: ALLOW, policies: {a: ` + byIP + `}}}`:                                                                          "cannot simulate filter f: policy a",
		`{` + rbacType + `, rules: {action: LOG, policies: {a: ` + byIP + `}}}`:                                                                            "cannot simulate filter f: policy a",
		`{` + rbacType + `, matcher: {}}`:                                                                                                                  "cannot simulate filter f: it has a tree of matchers",
		`{` + rbacType + `, shadow_rules: {action: DENY, policies: {a: ` + anyCall + `}}}`:                                                                 "dry run of DENY a: denied",
		`{` + rbacType + `, shadow_rules: {action: DENY, policies: {a: ` + byIP + `}}, shadow_rules_stat_prefix: istio_ext_authz_}`:                        "cannot simulate filter f: policy a",
		`{` + rbacType + `, shadow_rules: {action: DENY, policies: {a: ` + anyCall + `}}, shadow_rules_stat_prefix: istio_ext_authz_}`:                     "CUSTOM a: matches",
		`{` + askType + `, grpc_service: {envoy_grpc: {cluster_name: c}}}`:                                                                                 "CUSTOM: asks the provider c",
		`{` + askType + `, filter_enabled_metadata: {filter: f, path: [{key: k}], value: {present_match: true}}}`:                                          passes,
		`{` + askType + `, filter_enabled_metadata: {filter: f, path: [{key: k}], value: {double_match: {exact: 1}}}}`:                                     "cannot simulate filter f: unknown matcher",
		`{` + jwtType + `, providers: ` + provider + `, rules: [{` + rest + `{provider_name: p}}]}`:                                                        "JWT: 401, there is no token",
		`{` + jwtType + `, providers: ` + provider + `, rules: [{` + rest + `{requires_any: {requirements: [{provider_name: p}, {allow_missing: {}}]}}}]}`: passes,
		`{` + jwtType + `, providers: ` + provider + `, rules: [{` + rest + `{allow_missing_or_failed: {}}}]}`:                                             "cannot simulate filter f: unknown requirement",
		`{` + jwtType + `, rules: [{match: {prefix: /}, requirement_name: r}]}`:                                                                            "cannot simulate filter f: unknown requirement r",
	} {
		c := Call{Port: 80, Host: "a.example", Method: "GET", Path: "/"}
		o := call(t, `{name: f, typed_config: `+filter+`}`, nil, c)
		if lines := strings.Join(o.Lines(), "\n"); !strings.Contains(lines, want) {
			t.Errorf("%s: want %s in\n%s", filter, want, lines)
		}
		logs := strings.Contains(filter, "LOG") // it refuses nothing
		if stops := strings.Contains(want, "cannot simulate") && !logs || strings.Contains(want, "40"); stops == (o.Status == 200) {
			t.Errorf("%s: status %d", filter, o.Status)
		}
	}
}

// A token whose claims the call does not name, such as one that an attacker writes into
// a header, makes the outcome unknown, wherever a provider looks for tokens (POL-16).
func TestTokensOfWhichNothingIsSaid(t *testing.T) {
	filter := func(provider string) string {
		return `{name: f, typed_config: {` + jwtType + `, providers: {p: {issuer: i, ` + provider + ` local_jwks: {inline_string: '{"keys": [{"kid": "a"}]}'}}}, rules: [{` + rest + `{requires_any: {requirements: [{provider_name: p}, {allow_missing: {}}]}}}]}}`
	}
	usual, own := filter(""), filter(`from_headers: [{name: x-token, value_prefix: "v "}], from_params: [t], from_cookies: [c],`)
	said := &Token{Claims: map[string]any{"iss": "i"}}
	for _, c := range []struct {
		filter, path string
		headers      map[string][]string
		token        *Token
		unknown      bool
	}{
		{usual, "/", nil, nil, false},
		{usual, "/", nil, said, false},
		{usual, "/", map[string][]string{"authorization": {"Bearer a.b."}}, nil, true},
		{usual, "/", map[string][]string{"authorization": {"Bearer a.b."}}, said, true},
		{usual, "/", map[string][]string{"authorization": {"bearer a.b."}}, nil, false}, // S26: no token, as far as Envoy knows
		{usual, "/?access_token=a.b.", nil, nil, true},
		{usual, "/?access_token=a.b.", nil, said, true},
		{usual, "/?t=a.b.", map[string][]string{"x-token": {"v a.b."}}, nil, false},
		{own, "/?t=a.b.", nil, nil, true},
		{own, "/", map[string][]string{"x-token": {"v a.b."}}, nil, true},
		{own, "/", map[string][]string{"x-token": {"a.b."}}, nil, false},
		{own, "/", map[string][]string{"cookie": {"a=b; c=a.b."}}, nil, true},
	} {
		o := call(t, c.filter, nil, Call{Port: 80, Host: "a.example", Method: "GET", Path: c.path, Headers: c.headers, Token: c.token})
		if (o.Unknown != "") != c.unknown || !c.unknown && o.Status != 200 {
			t.Errorf("%s with %v, token %v: %v, want it to be unknown: %v", c.path, c.headers, c.token, o.Lines(), c.unknown)
		}
	}
}

// A slot has what was sent for it, or its default, and one without either, or of which a
// route has settings of its own, makes the outcome unknown.
func TestSlots(t *testing.T) {
	const slot = `{name: f, config_discovery: {config_source: {ads: {}}%s}}`
	byDefault := strings.Replace(slot, "%s", `, default_config: {`+rbacType+`, rules: {action: DENY, policies: {none: `+anyCall+`}}}`, 1)
	empty := strings.Replace(slot, "%s", "", 1)
	open := `{` + rbacType + `}`
	for _, c := range []struct {
		filter, sent, path, want string
	}{
		{byDefault, "", "/", "DENY none: 403"},
		{byDefault, open, "/", "200"},
		{byDefault, open, "/set", "cannot simulate filter f: route"},
		{empty, "", "/", "cannot simulate filter f: it is missing"},
	} {
		slots := map[string]*anypb.Any{}
		if c.sent != "" {
			slots["f"] = new(anypb.Any)
			read(t, c.sent, slots["f"])
		}
		o := call(t, c.filter, slots, Call{Port: 80, Host: "a.example", Method: "GET", Path: c.path})
		if lines := strings.Join(o.Lines(), "\n"); !strings.Contains(lines, c.want) || c.want != "200" && o.Status == 200 {
			t.Errorf("%+v: got\n%s", c, lines)
		}
	}
}

// call simulates a call of a proxy with one HTTP filter.
func call(t *testing.T, filter string, slots map[string]*anypb.Any, c Call) Outcome {
	t.Helper()
	l := new(listenerv3.Listener)
	read(t, strings.Replace(manager, "%s", filter, 1), l)
	return (&Proxy{listeners: []*listenerv3.Listener{l}, slots: slots}).Call(c)
}

// read reads a message of YAML.
func read(t *testing.T, text string, into proto.Message) {
	t.Helper()
	j, err := yaml.YAMLToJSON([]byte(text))
	if err == nil {
		err = protojson.Unmarshal(j, into)
	}
	if err != nil {
		t.Fatalf("%s: %v", text, err)
	}
}
