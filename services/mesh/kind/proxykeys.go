package kind

import (
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/anypb"
	security "istio.io/api/security/v1beta1"

	"meshlog.dev/proto/ident"
	registryv1 "meshlog.dev/proto/meshlog/registry/v1"
	"meshlog.dev/services/mesh/kind/validate"
	"meshlog.dev/services/mesh/problem"
)

// KeysAnnotation says where proxies have the keys of a RequestAuthentication's issuers
// from: with the value envoy they fetch them themselves (POL-13).
const KeysAnnotation = "meshlog.dev/jwks"

// ByProxies is the one value of a KeysAnnotation.
const ByProxies = "envoy"

// ProxyKeys is the message of a RequestAuthentication with a KeysAnnotation, and the policy
// that its payload holds.
type ProxyKeys struct {
	*registryv1.ProxyKeys
	Inner *security.RequestAuthentication
}

// RequestAuthentication returns the policy in a message of its kind, and whether proxies
// fetch the keys of its issuers; ok is false if the message holds none.
func RequestAuthentication(m proto.Message) (p *security.RequestAuthentication, byProxies, ok bool) {
	if fetched, is := m.(*ProxyKeys); is {
		return fetched.Inner, true, true
	}
	p, ok = m.(*security.RequestAuthentication)
	return p, false, ok
}

// keysBy returns the message of a RequestAuthentication with that annotation.
func (k *Kind) keysBy(p *security.RequestAuthentication, annotation string) (proto.Message, error) {
	b, err := k.Encode(p)
	if err != nil {
		return nil, err
	}
	return &ProxyKeys{&registryv1.ProxyKeys{Policy: &anypb.Any{TypeUrl: k.TypeURL, Value: b}, InvalidAnnotation: annotation != ByProxies}, p}, nil
}

// decodeProxyKeys reads the payload of a ProxyKeys.
func (k *Kind) decodeProxyKeys(b []byte) (proto.Message, error) {
	p := &ProxyKeys{ProxyKeys: &registryv1.ProxyKeys{}}
	m, err := k.decodeInner(ident.ProxyKeys, b, p.ProxyKeys)
	if err != nil {
		return nil, err
	}
	p.Inner = m.(*security.RequestAuthentication)
	return p, nil
}

// problems validates the policy with its annotation. It is invalid with another value: the
// keys would come from where its author does not want to have them from.
func (p *ProxyKeys) problems() []problem.Diagnostic {
	if !p.GetInvalidAnnotation() {
		return validate.ProxyKeys(p.Inner)
	}
	return append([]problem.Diagnostic{{
		Severity: problem.Error, Code: "invalid", Field: "metadata.annotations",
		Reason: "the value of " + KeysAnnotation + " is not " + ByProxies, Advice: "write " + ByProxies + ", or remove the annotation",
	}}, validate.ProxyKeys(p.Inner)...)
}
