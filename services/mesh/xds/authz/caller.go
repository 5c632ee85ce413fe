package authz

import (
	"strings"

	rbacv3 "github.com/envoyproxy/go-control-plane/envoy/config/rbac/v3"
)

// jwtFilter is the filter that verifies tokens; payload is the key of its metadata
// with the claims (RA-1).
const (
	jwtFilter = "envoy.filters.http.jwt_authn"
	payload   = "payload"
)

// caller matches a value of an attribute of the caller or the request.
type caller = func(value string, wide bool) (*rbacv3.Principal, bool)

// callerAttribute returns how values of a key of when are matched (AZ-6). domains are
// the trust domains that the rule names.
func (t *translator) callerAttribute(key string, domains []string) caller {
	switch key {
	case "source.ip":
		return directIP
	case "remote.ip":
		return remoteIP
	case "source.principal":
		return t.principal
	case "source.namespace":
		return func(v string, wide bool) (*rbacv3.Principal, bool) { return t.workloads(domains, v, "*", wide) }
	case "source.serviceAccount":
		return func(v string, wide bool) (*rbacv3.Principal, bool) {
			namespace, name, ok := strings.Cut(v, "/")
			if !ok {
				namespace, name = t.namespace, v
			}
			return t.workloads(domains, namespace, name, wide)
		}
	case "source.trustDomain":
		return t.trustDomain
	case "request.auth.principal":
		return t.requestPrincipal
	case "request.auth.audiences":
		return t.claim("aud")
	case "request.auth.presenter":
		return t.claim("azp")
	}
	if path, ok := names(key, "request.auth.claims"); ok {
		return t.claim(path...)
	}
	if name, ok := names(key, "request.headers"); ok && len(name) == 1 {
		return t.header(name[0])
	}
	return func(string, bool) (*rbacv3.Principal, bool) { return nil, false }
}

func directIP(v string, _ bool) (*rbacv3.Principal, bool) {
	b, ok := block(v)
	return &rbacv3.Principal{Identifier: &rbacv3.Principal_DirectRemoteIp{DirectRemoteIp: b}}, ok
}

func remoteIP(v string, _ bool) (*rbacv3.Principal, bool) {
	b, ok := block(v)
	return &rbacv3.Principal{Identifier: &rbacv3.Principal_RemoteIp{RemoteIp: b}}, ok
}

// header matches a header. Envoy matches each line of a header that a request has
// several times alone (POL-8).
func (t *translator) header(name string) caller {
	return func(v string, _ bool) (*rbacv3.Principal, bool) {
		m := header(name, text(v))
		if v == "*" {
			m = hasHeader(name)
		}
		return &rbacv3.Principal{Identifier: &rbacv3.Principal_Header{Header: m}}, !t.tcp
	}
}
