package rbac_test

import (
	"net/netip"
	"strings"
	"testing"

	rbacv3 "github.com/envoyproxy/go-control-plane/envoy/config/rbac/v3"
	"google.golang.org/protobuf/encoding/protojson"
	_ "google.golang.org/protobuf/types/known/emptypb"
	"sigs.k8s.io/yaml"

	// Types in the rules of the tests.
	_ "github.com/envoyproxy/go-control-plane/envoy/extensions/path/match/uri_template/v3"
	_ "github.com/envoyproxy/go-control-plane/envoy/extensions/rbac/principals/mtls_authenticated/v3"

	"meshlog.dev/services/mesh/simulate/rbac"
)

// request is the one that all rules of TestMatch look at.
func request() *rbac.Request {
	headers := map[string][]string{":authority": {"shop.example"}, ":method": {"GET"}, "x-role": {"user", "admin"}}
	return &rbac.Request{
		HTTP: true, Header: func(name string) []string { return headers[name] }, Path: "/items/1/raw",
		Direct: netip.MustParseAddr("10.0.0.1"), Remote: netip.MustParseAddr("192.0.2.1"),
		DestinationPort: 8080, ServerName: "shop.example", TLS: true, Certificate: rbac.CertificateOf("spiffe://cluster.local/ns/shop/sa/client"),
		Metadata: map[string]map[string]any{"f": {"payload": map[string]any{
			"iss": "me", "aud": []any{"a", "b"}, "admin": true, "number": 7.0, "none": nil,
		}}},
	}
}

const uri = `{custom: {name: p, typed_config: {"@type": type.googleapis.com/envoy.extensions.rbac.principals.mtls_authenticated.v3.Config, `

// claim returns a matcher of a claim.
func claim(path, value string) string {
	return `{sourced_metadata: {metadata_matcher: {filter: f, path: [{key: payload}, {key: ` + path + `}], value: ` + value + `}}}`
}

// Each matcher matches what Envoy's does, and one that is not known, or that looks at what
// the request does not say, is an error: never a match, and never none.
func TestMatch(t *testing.T) {
	const yes, no, unknown = "yes", "no", "unknown"
	for rule, want := range map[string]string{
		`permission {any: true}`: yes,
		`permission {header: {name: X-Role, string_match: {exact: admin}}}`:                  yes,
		`permission {header: {name: x-role, string_match: {exact: "user,admin"}}}`:           no,
		`permission {header: {name: x-role, present_match: true}}`:                           yes,
		`permission {header: {name: x-other, present_match: true}}`:                          no,
		`permission {header: {name: x-other, present_match: false}}`:                         yes,
		`permission {header: {name: x-other, string_match: {exact: a}, invert_match: true}}`: no,
		`permission {header: {name: x-role, range_match: {start: 1, end: 2}}}`:               unknown,
		`permission {not_rule: {header: {name: x-role, range_match: {start: 1, end: 2}}}}`:   unknown,
		`permission {url_path: {path: {prefix: /items}}}`:                                    yes,
		`permission {url_path: {path: {prefix: /ITEMS, ignore_case: true}}}`:                 yes,
		`permission {url_path: {path: {safe_regex: {regex: "/items"}}}}`:                     no,
		`permission {url_path: {path: {safe_regex: {regex: "("}}}}`:                          unknown,
		`permission {url_path: {path: {}}}`:                                                  unknown,
		`permission {uri_template: {name: t, typed_config: {"@type": type.googleapis.com/envoy.extensions.path.match.uri_template.v3.UriTemplateMatchConfig, path_template: "/items/*/raw"}}}`: yes,
		`permission {uri_template: {name: t, typed_config: {"@type": type.googleapis.com/envoy.extensions.path.match.uri_template.v3.UriTemplateMatchConfig, path_template: "/*/raw"}}}`:       no,
		`permission {uri_template: {name: t, typed_config: {"@type": type.googleapis.com/envoy.extensions.path.match.uri_template.v3.UriTemplateMatchConfig, path_template: "/**"}}}`:          yes,
		`permission {uri_template: {name: t, typed_config: {"@type": type.googleapis.com/envoy.extensions.path.match.uri_template.v3.UriTemplateMatchConfig, path_template: "/{a}/1/raw"}}}`:   unknown,
		`permission {uri_template: {name: t, typed_config: {"@type": type.googleapis.com/google.protobuf.Empty}}}`:                                                                             unknown,
		`permission {destination_port: 8080}`:                                    yes,
		`permission {destination_port: 80}`:                                      no,
		`permission {destination_port_range: {start: 8080, end: 8081}}`:          yes,
		`permission {destination_port_range: {start: 80, end: 8080}}`:            no,
		`permission {destination_ip: {address_prefix: 10.0.0.0, prefix_len: 8}}`: unknown,
		`permission {requested_server_name: {exact: shop.example}}`:              yes,
		`permission {matcher: {name: m}}`:                                        unknown,
		`permission {and_rules: {rules: [{any: true}, {destination_port: 80}]}}`: no,
		`permission {or_rules: {rules: [{destination_port: 80}, {any: true}]}}`:  yes,
		`permission {not_rule: {destination_port: 80}}`:                          yes,
		`permission {}`:         unknown,
		`principal {any: true}`: yes,
		`principal {direct_remote_ip: {address_prefix: 10.0.0.0, prefix_len: 8}}`:                                                                     yes,
		`principal {remote_ip: {address_prefix: 10.0.0.0, prefix_len: 8}}`:                                                                            no,
		`principal {remote_ip: {address_prefix: "2001:db8::", prefix_len: 32}}`:                                                                       no,
		`principal {source_ip: {address_prefix: 10.0.0.0, prefix_len: 8}}`:                                                                            unknown,
		`principal {filter_state: {key: k, string_match: {exact: a}}}`:                                                                                unknown,
		`principal {authenticated: {}}`:                                                                                                               yes,
		`principal {authenticated: {principal_name: {suffix: /sa/client}}}`:                                                                           yes,
		`principal {authenticated: {principal_name: {suffix: /sa/other}}}`:                                                                            no,
		"principal " + uri + `any_validated_client_certificate: true}}}`:                                                                              yes,
		"principal " + uri + `san_matcher: {san_type: URI, matcher: {prefix: "spiffe://"}}}}}`:                                                        yes,
		"principal " + uri + `san_matcher: {san_type: URI, matcher: {exact: "spiffe://other"}}}}}`:                                                    no,
		"principal " + uri + `san_matcher: {san_type: DNS, matcher: {prefix: "spiffe://"}}}}}`:                                                        no,
		`principal {custom: {name: p, typed_config: {"@type": type.googleapis.com/google.protobuf.Empty}}}`:                                           unknown,
		"principal " + claim("iss", `{string_match: {exact: me}}`):                                                                                    yes,
		"principal " + claim("iss", `{list_match: {one_of: {string_match: {exact: me}}}}`):                                                            no,
		"principal " + claim("aud", `{list_match: {one_of: {string_match: {exact: b}}}}`):                                                             yes,
		"principal " + claim("aud", `{string_match: {exact: b}}`):                                                                                     no,
		"principal " + claim("aud", `{or_match: {value_matchers: [{string_match: {exact: b}}, {list_match: {one_of: {string_match: {exact: b}}}}]}}`): yes,
		"principal " + claim("admin", `{bool_match: true}`):                                                                                           yes,
		"principal " + claim("number", `{double_match: {exact: 7}}`):                                                                                  unknown,
		"principal " + claim("none", `{null_match: {}}`):                                                                                              yes,
		"principal " + claim("gone", `{present_match: true}`):                                                                                         no,
		"principal " + claim("gone", `{string_match: {prefix: ""}}`):                                                                                  no,
		`principal {sourced_metadata: {metadata_source: ROUTE, metadata_matcher: {filter: f, path: [{key: a}], value: {present_match: true}}}}`:       unknown,
		`principal {and_ids: {ids: [{any: true}, {not_id: {any: true}}]}}`:                                                                            no,
		`principal {or_ids: {ids: [{not_id: {any: true}}, {any: true}]}}`:                                                                             yes,
		`principal {}`: unknown,
	} {
		kind, text, _ := strings.Cut(rule, " ")
		permission, principal := text, "{any: true}"
		if kind == "principal" {
			permission, principal = principal, permission
		}
		rules := new(rbacv3.RBAC)
		unmarshal(t, `{policies: {rule: {permissions: [`+permission+`], principals: [`+principal+`]}}}`, rules)
		name, matched, err := rbac.Match(rules, request())
		got := map[bool]string{true: yes, false: no}[matched]
		if err != nil {
			got = unknown
		}
		if got != want || matched != (name == "rule") || matched && err != nil {
			t.Errorf("%s: %s (%q, %v), want %s", rule, got, name, err, want)
		}
	}
}

// Rules about requests match no connection, and rules about identities no caller that has
// shown none.
func TestMatchLess(t *testing.T) {
	for rule, without := range map[string]func(*rbac.Request){
		`{header: {name: ":method", string_match: {exact: GET}}}`:               func(r *rbac.Request) { r.HTTP = false },
		`{url_path: {path: {prefix: /}}}`:                                       func(r *rbac.Request) { r.HTTP = false },
		uri + `any_validated_client_certificate: true}}}`:                       func(r *rbac.Request) { r.Certificate = nil },
		uri + `san_matcher: {san_type: URI, matcher: {prefix: "spiffe://"}}}}}`: func(r *rbac.Request) { r.TLS = false },
		`{authenticated: {}}`:                                                   func(r *rbac.Request) { r.TLS = false },
	} {
		rules := new(rbacv3.RBAC)
		unmarshal(t, `{policies: {rule: {permissions: [{any: true}], principals: [`+rule+`]}}}`, rules)
		r := request()
		if _, matched, err := rbac.Match(rules, r); !matched || err != nil {
			t.Errorf("%s does not match: %v", rule, err)
		}
		without(r)
		if _, matched, err := rbac.Match(rules, r); matched || err != nil {
			t.Errorf("%s matches still: %v", rule, err)
		}
	}
	rules := new(rbacv3.RBAC)
	unmarshal(t, `{policies: {b: {permissions: [{any: true}], principals: [{any: true}]}, a: {permissions: [{any: true}], principals: [{any: true}]}}}`, rules)
	if name, _, err := rbac.Match(rules, request()); name != "a" || err != nil {
		t.Errorf("of two policies %q matches, %v; Envoy names the first", name, err)
	}
	if _, matched, err := rbac.Match(nil, request()); matched || err != nil {
		t.Errorf("no rules: %v, %v", matched, err)
	}
}

// unmarshal reads rules of YAML.
func unmarshal(t *testing.T, text string, into *rbacv3.RBAC) {
	t.Helper()
	j, err := yaml.YAMLToJSON([]byte(text))
	if err == nil {
		err = protojson.Unmarshal(j, into)
	}
	if err != nil {
		t.Fatalf("%s: %v", text, err)
	}
}
