package validate

import (
	"strconv"
	"strings"
	"time"

	typev3 "github.com/envoyproxy/go-control-plane/envoy/type/v3"
	"google.golang.org/protobuf/types/known/durationpb"
	meshconfig "istio.io/api/mesh/v1alpha1"
)

// The messages of a provider, short.
type (
	extensionProvider = meshconfig.MeshConfig_ExtensionProvider
	httpAuthorizer    = meshconfig.MeshConfig_ExtensionProvider_EnvoyExternalAuthorizationHttpProvider
	checkedBody       = meshconfig.MeshConfig_ExtensionProvider_EnvoyExternalAuthorizationRequestBody
)

// authorizer has the fields that external authorizers of both protocols have.
type authorizer interface {
	called
	GetTimeout() *durationpb.Duration
	GetStatusOnError() string
	GetIncludeRequestBodyInCheck() *checkedBody
}

// tooLongCheck is the first timeout of a question that Envoy misreads: it counts
// milliseconds in 32 bits.
const tooLongCheck = 1 << 32 * time.Millisecond

// extensionProviders checks the providers of a MeshConfig (AZ-9, TL-3, TL-5): external
// authorizers, access logs and traces.
func (c *checker) extensionProviders(providers []*extensionProvider) {
	seen := map[string]bool{}
	for i, p := range providers {
		at := root.field("extensionProviders").item(i)
		c.errorIf(p.GetName() == "", at.field("name"), "name the provider", isMissing)
		c.errorIf(!first(seen, p.GetName()), at.field("name"), "give each provider a name of its own", isTwice, p.GetName())
		c.errorIf(p.GetProvider() == nil, at, "add one, such as envoyExtAuthzHttp", "has no provider")
		if h := p.GetEnvoyExtAuthzHttp(); h != nil {
			at := at.field("envoyExtAuthzHttp")
			c.authorizer(at, h)
			c.checkedRequests(at, h)
		}
		if g := p.GetEnvoyExtAuthzGrpc(); g != nil {
			c.authorizer(at.field("envoyExtAuthzGrpc"), g)
		}
		if f := p.GetEnvoyFileAccessLog(); f != nil {
			c.fileLog(at.field("envoyFileAccessLog"), f)
		}
		c.logServices(at, p)
		c.traceProvider(at, p)
	}
}

// called has the fields by which all providers name a service.
type called interface {
	GetService() string
	GetPort() uint32
}

// called checks which service proxies call, NAMESPACE/HOST or HOST, and its port.
func (c *checker) called(at *fieldPath, s called) {
	namespace, host, both := strings.Cut(s.GetService(), "/")
	if both {
		c.namespace(at.field("service"), namespace)
	} else {
		host = namespace
	}
	c.host(at.field("service"), host, false)
	c.port(at.field("port"), s.GetPort())
}

func (c *checker) authorizer(at *fieldPath, a authorizer) {
	c.called(at, a)
	c.atLeast(at.field("timeout"), a.GetTimeout(), time.Millisecond)
	c.errorIf(a.GetTimeout().AsDuration() >= tooLongCheck, at.field("timeout"), "use 49 days or less", "is more than Envoy can count")
	if s := a.GetStatusOnError(); s != "" {
		if _, ok := StatusOnError(s); !ok {
			c.errorf(at.field("statusOnError"), "write a status such as 403 or 503", "Envoy does not answer with %q", s)
		}
	}
	if b := a.GetIncludeRequestBodyInCheck(); b != nil {
		c.errorIf(b.GetMaxRequestBytes() == 0, at.field("includeRequestBodyInCheck.maxRequestBytes"), "write how many bytes the authorizer gets at most", isMissing)
	}
}

// StatusOnError reads a statusOnError: a status with which Envoy can end a request.
func StatusOnError(s string) (typev3.StatusCode, bool) {
	n, err := strconv.ParseInt(s, 10, 32)
	if err != nil || n < int64(typev3.StatusCode_OK) {
		return 0, false
	}
	_, known := typev3.StatusCode_name[int32(n)]
	return typev3.StatusCode(n), known
}

// checkedRequests checks what an authorizer of HTTP is told and may change.
func (c *checker) checkedRequests(at *fieldPath, h *httpAuthorizer) {
	prefix := h.GetPathPrefix()
	notGraphic := func(r rune) bool { return r <= ' ' || r > '~' }
	c.errorIf(prefix != "" && !strings.HasPrefix(prefix, "/"), at.field("pathPrefix"), "begin it with /", "%q is not a path", prefix)
	c.errorIf(strings.ContainsFunc(prefix, notGraphic), at.field("pathPrefix"), "encode it as in a URL", "%q has characters that no path has", prefix)
	old := h.GetIncludeHeadersInCheck() //nolint:staticcheck // deprecated, and still in use
	for _, list := range []struct {
		field    string
		patterns []string
	}{
		{"includeHeadersInCheck", old},
		{"includeRequestHeadersInCheck", h.GetIncludeRequestHeadersInCheck()},
		{"headersToUpstreamOnAllow", h.GetHeadersToUpstreamOnAllow()},
		{"headersToDownstreamOnDeny", h.GetHeadersToDownstreamOnDeny()},
		{"headersToDownstreamOnAllow", h.GetHeadersToDownstreamOnAllow()},
	} {
		for i, p := range list.patterns {
			c.headerPattern(at.field(list.field).item(i), p)
		}
	}
	if len(old) > 0 && len(h.GetIncludeRequestHeadersInCheck()) > 0 {
		c.warnf(at.field("includeHeadersInCheck"), "remove it", "includeRequestHeadersInCheck replaces it, so it has no effect")
	}
	for name, value := range h.GetIncludeAdditionalHeadersInCheck() {
		at := at.field("includeAdditionalHeadersInCheck").entry(name)
		c.header(at, name)
		c.oneLine(at, value)
	}
}

// headerPattern checks a name of headers that may have a star at one end.
func (c *checker) headerPattern(at *fieldPath, pattern string) {
	inner, suffix := strings.CutPrefix(pattern, "*")
	if !suffix {
		inner = strings.TrimSuffix(pattern, "*")
	}
	c.errorIf(pattern == "*", at, "write a name, with a star at one end if it is a part", "a star alone matches no header")
	c.errorIf(strings.Contains(inner, "*"), at, "write one star, at the beginning or at the end", "%q has a star elsewhere", pattern)
	if pattern != "*" {
		c.header(at, inner)
	}
}
