package index

import (
	"cmp"
	"slices"

	networking "istio.io/api/networking/v1alpha3"

	"meshlog.dev/proto/ident"
	registryv1 "meshlog.dev/proto/meshlog/registry/v1"
	"meshlog.dev/services/mesh/world"
)

// The kinds of objects that hold credentials.
const (
	secretKind      = "Secret"
	configMapKind   = "ConfigMap"
	trustBundleKind = "TrustBundle"
	jwksKind        = "Jwks" // of token issuers
)

// credentialInputs are the inputs of the kinds of credentials. The world itself is
// their index: each is read by its name.
var credentialInputs = map[string]InputKind{secretKind: InputSecret, configMapKind: InputConfigMap, trustBundleKind: InputTrustBundle, jwksKind: InputJwks}

// credentials records the changes of objects that hold credentials.
func (t *transition) credentials(changes map[string][]change) {
	for kind, input := range credentialInputs {
		for _, c := range changes[kind] {
			t.changed(Input{Kind: input, A: c.Namespace, B: c.Name})
		}
	}
}

// Secret returns the reference to a Secret that wins, and its key; nil: there is
// none.
func (r *Reader) Secret(namespace, name string) (*registryv1.SecretReference, ident.Key) {
	o := r.credential(secretKind, namespace, name)
	if o == nil {
		return nil, ident.Key{}
	}
	ref, ok := o.Message.(*registryv1.SecretReference)
	if !ok { // a value that could not be read
		return nil, ident.Key{}
	}
	return ref, o.Key
}

// ConfigMap returns the ConfigMap that wins, and its key; nil: there is none.
func (r *Reader) ConfigMap(namespace, name string) (*registryv1.Object, ident.Key) {
	o := r.credential(configMapKind, namespace, name)
	if o == nil {
		return nil, ident.Key{}
	}
	m, ok := o.Message.(*registryv1.Object)
	if !ok {
		return nil, ident.Key{}
	}
	return m, o.Key
}

// TrustBundle returns the trust bundle of the mesh, nil if there is none, and the name of
// its trust domain.
func (r *Reader) TrustBundle() (*registryv1.TrustBundle, string) {
	domain := cmp.Or(r.Mesh().GetTrustDomain(), defaultTrustDomain)
	o := r.credential(trustBundleKind, "", domain)
	if o == nil {
		return nil, domain
	}
	b, _ := o.Message.(*registryv1.TrustBundle)
	return b, domain
}

// TrustDomain returns the mesh's own trust domain.
func (pc *PushContext) TrustDomain() string { return pc.settings.trustDomains[0] }

// TrustBundle returns the trust bundle of the mesh; nil: there is none.
func (pc *PushContext) TrustBundle() *registryv1.TrustBundle {
	b, _ := pc.Read().TrustBundle()
	return b
}

func (r *Reader) credential(kind, namespace, name string) *world.Object {
	r.note(Input{Kind: credentialInputs[kind], A: namespace, B: name})
	return r.pc.world.Winner(ident.Key{Kind: kind, Namespace: namespace, Name: name})
}

// CredentialRules returns the DestinationRules that a scope finds for some service
// and that name a credential (DR-17), sorted. Most meshes have none, and then it
// looks at no service.
func (r *Reader) CredentialRules(s Scope) []RuleID {
	r.note(Input{Kind: InputCredentialRules})
	if r.pc.rules.credentials.Len() == 0 {
		return nil
	}
	var all []RuleID
	for _, service := range r.Services(s) {
		if id, ok := r.Rule(s, service.Namespace, service.Hostname); ok && r.pc.rules.names(id) {
			all = append(all, id)
		}
	}
	slices.SortFunc(all, func(a, b RuleID) int {
		return cmp.Or(cmp.Compare(a.Namespace, b.Namespace), cmp.Compare(a.Host, b.Host), cmp.Compare(a.Name, b.Name))
	})
	return slices.Compact(all)
}

// names reports whether merged rules name a credential.
func (x *ruleIndex) names(id RuleID) bool {
	return slices.Contains(x.credentials.Get(ruleHost{id.Namespace, id.Host}), id)
}

// credentialed returns those of merged rules that name a credential.
func credentialed(merged []*mergedRule) []RuleID {
	var all []RuleID
	for _, m := range merged {
		if namesCredential(m.spec) {
			all = append(all, m.id)
		}
	}
	return all
}

// namesCredential reports whether a TLS setting of a rule names a credential.
func namesCredential(rule *networking.DestinationRule) bool {
	of := func(p *networking.TrafficPolicy) bool {
		return p.GetTls().GetCredentialName() != "" ||
			slices.ContainsFunc(p.GetPortLevelSettings(), func(s *networking.TrafficPolicy_PortTrafficPolicy) bool { return s.GetTls().GetCredentialName() != "" })
	}
	return of(rule.GetTrafficPolicy()) ||
		slices.ContainsFunc(rule.GetSubsets(), func(s *networking.Subset) bool { return of(s.GetTrafficPolicy()) })
}
