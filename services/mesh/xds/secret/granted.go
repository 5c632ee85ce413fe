package secret

import (
	"fmt"
	"slices"
	"strings"

	"meshlog.dev/services/mesh/grant"
	"meshlog.dev/services/mesh/index"
)

// referrers says what a ReferenceGrant calls the objects that name credentials. A Gateway
// of Istio counts as one of the Gateway API, as in Istio, which knows no other grant for
// it. Istio has none for DestinationRules; here they are called what they are.
var referrers = map[string]grant.From{
	"Gateway":         {Group: "gateway.networking.k8s.io", Kind: "Gateway"},
	"DestinationRule": {Group: "networking.istio.io", Kind: "DestinationRule"},
}

// readableBy returns the names of the objects that clients in a namespace are served a
// credential from, the first that exists: all in their own namespace, and those that a
// ReferenceGrant permits one of its users to name. CAs are those of the Secret for CAs,
// else of the one with the certificate, as in Istio; who may have the second may have both.
func readableBy(r *index.Reader, p place, namespace string, users []user) []string {
	all := []string{p.name}
	if p.kind == secretCAs {
		all = []string{p.name + caSuffix, p.name}
	}
	if p.namespace == namespace || permitted(r, p, p.name, users) {
		return all
	}
	if p.kind == secretCAs && permitted(r, p, p.name+caSuffix, users) {
		return all[:1]
	}
	return nil
}

func permitted(r *index.Reader, p place, name string, users []user) bool {
	return slices.ContainsFunc(users, func(u user) bool {
		from, ok := referrers[u.key.Kind]
		from.Namespace = u.key.Namespace
		return ok && r.Granted(from, p.objectKind(), p.namespace, name)
	})
}

// refused says that no ReferenceGrant permits a credential, and how one would. The users
// are of one namespace.
func refused(p place, users []user) *absent {
	var from []string
	for _, u := range users {
		f := referrers[u.key.Kind]
		if one := f.Kind + " of " + f.Group; !slices.Contains(from, one) {
			from = append(from, one)
		}
	}
	namespace := users[0].key.Namespace
	return &absent{
		fmt.Sprintf("no ReferenceGrant of namespace %s lets namespace %s name %s", p.namespace, namespace, p),
		fmt.Sprintf("put a ReferenceGrant into namespace %s: from kind %s in namespace %s, to kind %s", p.namespace, strings.Join(from, " and "), namespace, p.objectKind()),
	}
}

// objectKind returns the kind of the object that a credential is in.
func (p place) objectKind() string {
	if p.kind == configMapCAs {
		return "ConfigMap"
	}
	return "Secret"
}
