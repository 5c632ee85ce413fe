package validate

import (
	"regexp"
	"slices"
	"strconv"
	"strings"

	"google.golang.org/protobuf/proto"

	security "istio.io/api/security/v1beta1"
	typev1beta1 "istio.io/api/type/v1beta1"

	"meshlog.dev/services/mesh/problem"
)

// The operators of a path template (AZ-5).
const (
	oneSegment  = "{*}"
	anySegments = "{**}"
)

const (
	addEmptyRule = "add the rule {} to match every request"
	nothingInIt  = "has no condition"
)

// literal matches a segment of a path template that Envoy takes.
var literal = regexp.MustCompile(`^[a-zA-Z0-9\-._~%!$&'()+,;:@=]+$`)

// targetKinds are the kinds that a policy may name as its target, with their groups
// (AZ-10).
var targetKinds = map[string][]string{
	"Gateway":      {"gateway.networking.k8s.io"},
	"GatewayClass": {"gateway.networking.k8s.io"},
	"Service":      {"", "core"},
	"ServiceEntry": {"networking.istio.io"},
}

// AuthorizationPolicy checks an AuthorizationPolicy.
func AuthorizationPolicy(m proto.Message) []problem.Diagnostic {
	p := m.(*security.AuthorizationPolicy)
	c := checker{kind: "AuthorizationPolicy"}
	c.selection(p.GetSelector(), p.GetTargetRef(), p.GetTargetRefs())
	c.policyAction(p)
	for i, r := range p.GetRules() {
		at := root.field("rules").item(i)
		for j, f := range r.GetFrom() {
			c.policySource(at.field("from").item(j).field("source"), f.GetSource(), p.GetAction())
		}
		for j, t := range r.GetTo() {
			c.operation(at.field("to").item(j).field("operation"), t.GetOperation(), p.GetAction())
		}
		for j, w := range r.GetWhen() {
			c.condition(at.field("when").item(j), w, p.GetAction())
		}
	}
	return c.result()
}

// selection checks what a policy selects (AZ-10).
func (c *checker) selection(s *typev1beta1.WorkloadSelector, one *typev1beta1.PolicyTargetReference, several []*typev1beta1.PolicyTargetReference) {
	c.labels(root.field("selector.matchLabels"), s.GetMatchLabels())
	c.errorIf(s != nil && (one != nil || len(several) > 0), root.field("selector"), keepOne, "does not go with targetRefs")
	c.errorIf(one != nil && len(several) > 0, root.field("targetRef"), keepOne, "does not go with targetRefs")
	if one != nil {
		c.target(root.field("targetRef"), one)
	}
	for i, t := range several {
		c.target(root.field("targetRefs").item(i), t)
	}
}

func (c *checker) target(at *fieldPath, t *typev1beta1.PolicyTargetReference) {
	groups, known := targetKinds[t.GetKind()]
	c.errorIf(!known, at.field("kind"), "use Gateway, GatewayClass, Service or ServiceEntry", "%q cannot be a target", t.GetKind())
	if known && !slices.Contains(groups, t.GetGroup()) {
		c.errorf(at.field("group"), "write "+strconv.Quote(groups[0]), "%q is not the group of a %s", t.GetGroup(), t.GetKind())
	}
	c.errorIf(t.GetName() == "", at.field("name"), "name the target", isMissing)
	c.errorIf(t.GetNamespace() != "", at.field("namespace"), "remove it, and write the policy into the namespace of its target", "a target is in the policy's namespace")
}

func (c *checker) policyAction(p *security.AuthorizationPolicy) {
	action := p.GetAction()
	if _, known := security.AuthorizationPolicy_Action_name[int32(action)]; !known {
		c.errorf(root.field("action"), "use ALLOW, DENY, AUDIT or CUSTOM", "%d is not an action", action)
		return
	}
	const matchesNone = "is empty: the policy would match no request"
	switch empty := len(p.GetRules()) == 0; action {
	case security.AuthorizationPolicy_ALLOW:
	case security.AuthorizationPolicy_AUDIT: // Istio takes it; an error would close what it selects (POL-15)
		if empty {
			c.warnf(root.field("rules"), addEmptyRule, matchesNone)
		}
	default:
		c.errorIf(empty, root.field("rules"), addEmptyRule, matchesNone)
	}
	custom := action == security.AuthorizationPolicy_CUSTOM
	c.errorIf(custom && p.GetProvider().GetName() == "", root.field("provider.name"), "name one of MeshConfig.extensionProviders", isMissing)
	c.errorIf(!custom && p.GetProvider() != nil, root.field("provider"), "remove it, or use action CUSTOM", "goes with action CUSTOM only")
}

// list is a list of values in a policy.
type list struct {
	name   string
	values []string
	form   form
}

// form is the form of values in a policy.
type form uint8

const (
	textValues form = iota // they may have a star at an end
	accountValues
	blockValues
	portValues
	methodValues
	pathValues
)

// list checks values. It is a switch because paths of fields that go to a function in
// a variable would escape to the heap.
func (c *checker) list(at *fieldPath, f form, values []string) {
	switch f {
	case textValues:
		c.texts(at, values)
	case accountValues:
		c.accounts(at, values)
	case blockValues:
		c.blocks(at, values)
	case portValues:
		c.ports(at, values)
	case methodValues:
		c.methods(at, values)
	case pathValues:
		c.paths(at, values)
	}
}

// anyOf reports whether one of the lists has values.
func anyOf(lists []list) bool {
	return slices.ContainsFunc(lists, func(l list) bool { return len(l.values) > 0 })
}

// texts checks values that may have a star at an end.
func (c *checker) texts(at *fieldPath, values []string) {
	for i, v := range values {
		c.errorIf(v == "", at.item(i), "write a value, or remove it", isEmpty)
		c.stars(at.item(i), v)
	}
}

// stars warns of stars that are no wildcards.
func (c *checker) stars(at *fieldPath, v string) {
	inner, suffix := strings.CutPrefix(v, "*")
	if !suffix {
		inner = strings.TrimSuffix(v, "*")
	}
	if strings.Contains(inner, "*") {
		c.warnf(at, "write one star, first or last", "%q: only a star at one end is a wildcard, others are taken as they are", v)
	}
}

func (c *checker) policySource(at *fieldPath, s *security.Source, action security.AuthorizationPolicy_Action) {
	lists := [...]list{
		{"principals", s.GetPrincipals(), textValues}, {"notPrincipals", s.GetNotPrincipals(), textValues},
		{"namespaces", s.GetNamespaces(), textValues}, {"notNamespaces", s.GetNotNamespaces(), textValues},
		{"serviceAccounts", s.GetServiceAccounts(), accountValues}, {"notServiceAccounts", s.GetNotServiceAccounts(), accountValues},
		{"trustDomains", s.GetTrustDomains(), textValues}, {"notTrustDomains", s.GetNotTrustDomains(), textValues},
		{"requestPrincipals", s.GetRequestPrincipals(), textValues}, {"notRequestPrincipals", s.GetNotRequestPrincipals(), textValues},
		{"ipBlocks", s.GetIpBlocks(), blockValues}, {"notIpBlocks", s.GetNotIpBlocks(), blockValues},
		{"remoteIpBlocks", s.GetRemoteIpBlocks(), blockValues}, {"notRemoteIpBlocks", s.GetNotRemoteIpBlocks(), blockValues},
	}
	c.errorIf(!anyOf(lists[:]), at, "write a condition, or leave from out to match every caller", nothingInIt)
	for i, l := range lists {
		if len(l.values) == 0 {
			continue
		}
		c.list(at.field(l.name), l.form, l.values)
		if i < 10 {
			c.identityOfCustom(at.field(l.name), action)
		}
		c.errorIf(i < 4 && anyOf(lists[4:6]), at.field(l.name), keepOne, "does not go with serviceAccounts")
	}
}

// identityOfCustom refuses conditions on the caller with action CUSTOM, as Istio does.
func (c *checker) identityOfCustom(at *fieldPath, action security.AuthorizationPolicy_Action) {
	c.errorIf(action == security.AuthorizationPolicy_CUSTOM, at, "let the provider decide about it, or use another action",
		"does not go with action CUSTOM")
}

// accounts checks service accounts, with or without their namespaces.
func (c *checker) accounts(at *fieldPath, accounts []string) {
	for i, s := range accounts {
		ns, name, qualified := strings.Cut(s, "/")
		if !qualified {
			ns, name = "default", s
		}
		ok := isNamespace(ns) && len(name) <= 253 && subdomain.MatchString(name)
		c.errorIf(!ok, at.item(i), "write it like prod/reviews, or like reviews in the policy's namespace, without *", "%q is not a service account", s)
	}
}

func (c *checker) blocks(at *fieldPath, blocks []string) {
	for i, b := range blocks {
		c.subnet(at.item(i), b)
	}
}

func (c *checker) ports(at *fieldPath, ports []string) {
	for i, p := range ports {
		if n, err := strconv.ParseUint(p, 10, 16); err != nil || n == 0 {
			c.errorf(at.item(i), usePort, "%q is not a port", p)
		}
	}
}

func (c *checker) operation(at *fieldPath, o *security.Operation, action security.AuthorizationPolicy_Action) {
	lists := [...]list{
		{"hosts", o.GetHosts(), textValues}, {"notHosts", o.GetNotHosts(), textValues},
		{"ports", o.GetPorts(), portValues}, {"notPorts", o.GetNotPorts(), portValues},
		{"methods", o.GetMethods(), methodValues}, {"notMethods", o.GetNotMethods(), methodValues},
		{"paths", o.GetPaths(), pathValues}, {"notPaths", o.GetNotPaths(), pathValues},
	}
	c.errorIf(!anyOf(lists[:]), at, "write a condition, or leave to out to match every operation", nothingInIt)
	for _, l := range lists {
		c.list(at.field(l.name), l.form, l.values)
	}
	switch action {
	case security.AuthorizationPolicy_DENY:
		c.forbiddenPaths(at.field("paths"), o.GetPaths())
	case security.AuthorizationPolicy_ALLOW:
		c.forbiddenPaths(at.field("notPaths"), o.GetNotPaths())
	}
}

func (c *checker) methods(at *fieldPath, methods []string) {
	c.texts(at, methods)
	for i, m := range methods {
		token := strings.TrimSuffix(strings.TrimPrefix(m, "*"), "*")
		c.errorIf(token != "" && !isHeader(token), at.item(i), "write a method such as GET", "%q is not a method", m)
		if m != strings.ToUpper(m) {
			c.warnf(at.item(i), "write it in capital letters", "%q does not match the method %s", m, strings.ToUpper(m))
		}
	}
}

func (c *checker) paths(at *fieldPath, paths []string) {
	for i, p := range paths {
		if strings.ContainsAny(p, "{}") {
			c.template(at.item(i), p)
		} else {
			c.errorIf(p == "", at.item(i), "write a value, or remove it", isEmpty)
			c.stars(at.item(i), p)
		}
	}
}

// forbiddenPaths warns of paths that a policy forbids (POL-6).
func (c *checker) forbiddenPaths(at *fieldPath, paths []string) {
	for i, p := range paths {
		if p != "*" && p != "/*" {
			c.warnf(at.item(i), "write what is allowed: an ALLOW policy with paths",
				"requests with other spellings pass, such as capital letters, ;x, %%20 or a dot at the end, and an application may take them for %s", p)
		}
	}
}

// template checks a path with {*} or {**} as Istio does, so that Envoy takes it.
func (c *checker) template(at *fieldPath, path string) {
	const advice = "write {*} for a segment, and {**} once as the last operator, like /users/{*}/files/{**}"
	c.errorIf(!strings.HasPrefix(path, "/"), at, advice, "%q does not begin with /", path)
	rest := false
	for segment := range strings.SplitSeq(strings.TrimSuffix(strings.TrimPrefix(path, "/"), "/"), "/") {
		switch segment {
		case oneSegment, anySegments:
			c.errorIf(rest, at, advice, "%q has an operator after {**}", path)
			rest = rest || segment == anySegments
		default:
			c.errorIf(!literal.MatchString(segment), at, advice, "%q is not a path template: %q can be neither a segment nor an operator", path, segment)
		}
	}
}

// attributes are the keys of conditions that have no name in brackets (AZ-6), with the
// form of their values.
var attributes = map[string]form{
	"source.ip": blockValues, "remote.ip": blockValues, "destination.ip": blockValues,
	"destination.port": portValues, "source.serviceAccount": accountValues,
	"source.namespace": textValues, "source.principal": textValues, "source.trustDomain": textValues,
	"request.auth.principal": textValues, "request.auth.audiences": textValues, "request.auth.presenter": textValues,
	"connection.sni": textValues,
}

// named matches the keys of conditions with names in brackets (AZ-6).
var named = regexp.MustCompile(`^(request\.headers\[[^\[\]]+\]|request\.auth\.claims(\[[^\[\]]+\])+|experimental\.envoy\.filters\.[^\[\]]+\[[^\[\]]+\])$`)

func (c *checker) condition(at *fieldPath, w *security.Condition, action security.AuthorizationPolicy_Action) {
	key := w.GetKey()
	values, known := attributes[key]
	if !known && !named.MatchString(key) {
		c.errorIf(key == "", at.field("key"), "name an attribute such as source.ip", isEmpty)
		c.errorf(at.field("key"), "use an attribute of Istio, such as request.headers[x-user] or request.auth.claims[groups]", "%q is not an attribute", key)
		return
	}
	if header, is := strings.CutPrefix(key, "request.headers["); is && !strings.HasPrefix(header, ":") {
		c.header(at.field("key"), strings.TrimSuffix(header, "]"))
	}
	if strings.HasPrefix(key, "request.auth.") || strings.HasPrefix(key, "source.") && key != "source.ip" {
		c.identityOfCustom(at.field("key"), action)
	}
	c.errorIf(len(w.GetValues())+len(w.GetNotValues()) == 0, at, "write values or notValues", "has no values")
	c.list(at.field("values"), values, w.GetValues())
	c.list(at.field("notValues"), values, w.GetNotValues())
}
