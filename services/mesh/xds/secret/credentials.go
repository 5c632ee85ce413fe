package secret

import (
	networking "istio.io/api/networking/v1alpha3"

	"meshlog.dev/proto/ident"
	"meshlog.dev/services/mesh/index"
)

// Credential is a Secret that a server of a Gateway names for its certificate.
type Credential struct {
	Namespace, Name string
	// Usable is false if the Gateway may not use it: it is not of the Gateway's namespace,
	// and no ReferenceGrant permits it. Then Namespace is that of the Gateway, Name is the
	// text in the Gateway, and no proxy is sent a Secret.
	Usable bool
}

// String returns NAMESPACE/NAME, or only the name that cannot be used.
func (c Credential) String() string {
	if !c.Usable {
		return c.Name
	}
	return c.Namespace + "/" + c.Name
}

// Credentials returns the Secrets that a server of a Gateway in a namespace names for its
// certificates, as OfServer finds them.
func Credentials(r *index.Reader, namespace string, tls *networking.ServerTLSSettings) (all []Credential) {
	if tls.GetMode() == networking.ServerTLSSettings_ISTIO_MUTUAL {
		return nil
	}
	for _, name := range credentialNames(tls) {
		asked := pair(namespace, name)
		if asked == Mesh {
			continue
		}
		gateways := []user{{key: ident.Key{Kind: "Gateway", Namespace: namespace}}}
		if p := placeOf(asked, namespace); p.kind == secretPair && len(readableBy(r, p, namespace, gateways)) > 0 {
			all = append(all, Credential{p.namespace, p.name, true})
		} else {
			all = append(all, Credential{namespace, name, false})
		}
	}
	return all
}
