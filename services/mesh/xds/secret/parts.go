package secret

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"

	networking "istio.io/api/networking/v1alpha3"

	"meshlog.dev/proto/ident"
	"meshlog.dev/services/mesh/index"
	"meshlog.dev/services/mesh/problem"
	"meshlog.dev/services/mesh/proxy"
	"meshlog.dev/services/mesh/xds/gateway"
	"meshlog.dev/services/mesh/xds/piece"
)

// Parts returns a part for each secret that clients of a class may ask for: those that
// the Gateways of a router name, and those that the DestinationRules of a router name,
// or of a sidecar if they select workloads (SDS-4). All are credentials of the client's
// own namespace, because any client can say that it has the labels that a Gateway selects,
// or such that a ReferenceGrant permits that namespace.
// A client that has shown no identity of the mesh gets no credential. It gets the names of
// files, which it reads on its own machine, and the CAs of the mesh.
func Parts(r *index.Reader, class index.SDSClass) []piece.Part {
	own := append(ofProxy(class.Certificates), peerParts(r)...)
	c := collector{namespace: class.Namespace, users: map[string][]user{}}
	if class.Client == index.ClientRouter {
		c.servers(r, class.Gateways, class.Listens)
	}
	if class.Ingress != "" {
		for _, in := range r.IngressTLS(class.Ingress) {
			c.server(gateway.Server{Key: in.Key, Field: in.Field, TLS: in.TLS}, false)
		}
	}
	// Agents ask for the CAs of the mesh on streams of their own, also for Envoys that get
	// them by a socket: that they apply them is their report (CA-10).
	if class.Namespace == "" {
		if class.Roots && !slices.Contains(own, piece.Part(roots{})) {
			own = append(own, roots{})
		}
		return append(own, c.files()...)
	}
	for _, id := range r.CredentialRules(class.Scope) {
		c.rule(r, class.Client, id)
	}
	parts := []piece.Part{roots{lines(c.users[Roots])}}
	delete(c.users, Roots)
	for _, name := range slices.Sorted(maps.Keys(c.users)) {
		if p := placeOf(name, class.Namespace); p.ofObject() {
			if users := c.usersOf(p, name); len(users) > 0 {
				parts = append(parts, stored{name, class.Namespace, lines(users)})
			}
		} else if p.kind != elsewhere {
			parts = append(parts, files{name})
		}
	}
	parts = append(parts, c.others...)
	for _, p := range own {
		if _, have := p.(roots); !have && !slices.Contains(parts, p) {
			parts = append(parts, p)
		}
	}
	return parts
}

// ofProxy returns the parts for the files that a proxy names as its certificate of the mesh.
func ofProxy(c proxy.Certificates) []piece.Part {
	if c.Chain == "" {
		return nil
	}
	parts := []piece.Part{files{filePair(c.Chain, c.Key)}}
	if c.Roots != "" {
		return append(parts, files{fileRoot(c.Roots, "")})
	}
	return append(parts, roots{})
}

// user is a field that names a credential, and the hosts that need it.
type user struct {
	key          ident.Key
	field, hosts string
}

// usersOf returns the users of a secret of an object. A name with a namespace counts only
// in objects of the client's own: those of others may name what the client must not have.
func (c *collector) usersOf(p place, name string) []user {
	if !p.absolute {
		return c.users[name]
	}
	return slices.DeleteFunc(slices.Clone(c.users[name]), func(u user) bool { return u.key.Namespace != c.namespace })
}

type collector struct {
	namespace string            // of the client
	users     map[string][]user // by name
	others    []piece.Part
}

// servers adds the secrets of the servers of a router's Gateways.
func (c *collector) servers(r *index.Reader, gateways index.SelectorSet, listens index.Listens) {
	ports, _ := gateway.Ports(r, gateways, listens)
	for _, p := range ports {
		for _, s := range p.Servers {
			c.server(s, r.CertificatesOnDemand())
		}
	}
}

// files returns the parts of the secrets in files.
func (c *collector) files() (parts []piece.Part) {
	for _, name := range slices.Sorted(maps.Keys(c.users)) {
		if p := placeOf(name, ""); p.kind == filesPair || p.kind == filesCAs {
			parts = append(parts, files{name})
		}
	}
	return parts
}

// server adds the secrets of a Gateway's server.
func (c *collector) server(s gateway.Server, onDemand bool) {
	if s.TLS == nil || s.Closed {
		return
	}
	hosts := make([]string, len(s.Hosts))
	for i, h := range s.Hosts {
		hosts[i] = h.Name
	}
	u := user{s.Key, s.Field + ".tls.", strings.Join(hosts, ", ")}
	names := OfServer(s.Key.Namespace, s.TLS, onDemand)
	for i, name := range names.Pairs {
		c.add(u.at(pairField(s.TLS, i)), name)
	}
	if names.CA != "" {
		c.add(u.at(caField(s.TLS)), names.CA)
	}
	if onDemand && len(names.Pairs) > 1 {
		c.others = append(c.others, piece.Problem(problem.Diagnostic{
			Severity: problem.Info, Code: "on-demand", Key: s.Key, Field: u.at(pairField(s.TLS, 0)).field,
			Reason: "a server with several certificates asks for all of them at once, although the MeshPolicy says onDemand: on demand Envoy can have one",
			Advice: "name one credential, if this server is to ask on demand",
			Effect: "its certificates are asked for when a router is given the Gateway",
		}))
	}
	if len(names.Pairs) > 1 {
		c.others = append(c.others, algorithms{strings.Join(names.Pairs, "\n"), c.namespace, lines([]user{u.at(pairField(s.TLS, 0))})})
	}
}

func pairField(tls *networking.ServerTLSSettings, i int) string {
	switch {
	case tls.GetMode() == networking.ServerTLSSettings_ISTIO_MUTUAL:
		return "mode"
	case len(tls.GetCredentialNames()) > 0:
		return fmt.Sprintf("credentialNames[%d]", i)
	case tls.GetCredentialName() != "":
		return "credentialName"
	case len(tls.GetTlsCertificates()) > 0:
		return fmt.Sprintf("tlsCertificates[%d]", i)
	}
	return "serverCertificate"
}

func caField(tls *networking.ServerTLSSettings) string {
	if tls.GetMode() == networking.ServerTLSSettings_ISTIO_MUTUAL {
		return "mode"
	}
	if tls.GetCaCertCredentialName() != "" {
		return "caCertCredentialName"
	}
	if len(credentialNames(tls)) > 0 {
		return pairField(tls, 0)
	}
	return "caCertificates"
}

func (u user) at(field string) user {
	u.field += field
	return u
}

// rule adds the secrets of a DestinationRule.
func (c *collector) rule(r *index.Reader, client index.Client, id index.RuleID) {
	rule, keys := r.DestinationRule(id)
	if rule == nil || !ForClient(client, rule) {
		return
	}
	of := func(field string, tls *networking.ClientTLSSettings) {
		names := OfClient(id.Namespace, tls)
		u := user{keys[0], field + ".tls.credentialName", rule.GetHost()}
		for _, name := range append(names.Pairs, names.CA) {
			if name != "" {
				c.add(u, name)
			}
		}
	}
	policy := func(field string, p *networking.TrafficPolicy) {
		of(field, p.GetTls())
		for i, port := range p.GetPortLevelSettings() {
			of(fmt.Sprintf("%s.portLevelSettings[%d]", field, i), port.GetTls())
		}
	}
	policy("spec.trafficPolicy", rule.GetTrafficPolicy())
	for i, s := range rule.GetSubsets() {
		policy(fmt.Sprintf("spec.subsets[%d].trafficPolicy", i), s.GetTrafficPolicy())
	}
}

// ForClient reports whether a kind of client may have the credentials that a rule
// names: routers, and the sidecars that the rule selects (DR-17).
func ForClient(client index.Client, rule *networking.DestinationRule) bool {
	return client == index.ClientRouter || client == index.ClientSidecar && rule.GetWorkloadSelector() != nil
}

// add adds a user of a secret, unless it may not use it (SDS-4).
func (c *collector) add(u user, name string) {
	if name == Invalid {
		c.others = append(c.others, piece.Problem(u.problem(
			"it names no credential of namespace "+u.key.Namespace,
			"put the credential into this namespace, and write its name; or write "+objectScheme+"NAMESPACE/NAME, and let a ReferenceGrant of that namespace permit it",
		)))
		return
	}
	c.users[name] = append(c.users[name], u)
}

// problem reports that a user does not get its credential (SDS-6).
func (u user) problem(reason, advice string) problem.Diagnostic {
	what := "without it, TLS connections to " + u.hosts + " are reset"
	if u.key.Kind == "DestinationRule" {
		what = "without it, requests to " + u.hosts + " get 503"
	}
	return problem.Diagnostic{
		Severity: problem.Warning, Code: "credential", Key: u.key, Field: u.field, Reason: reason, Advice: advice, Effect: what,
	}
}

// lines writes users as a text, because parts are comparable.
func lines(users []user) string {
	slices.SortFunc(users, func(a, b user) int {
		return cmp.Or(strings.Compare(a.key.Row(), b.key.Row()), strings.Compare(a.field, b.field))
	})
	var all []string
	for _, u := range slices.Compact(users) {
		all = append(all, u.key.Row()+"\t"+u.field+"\t"+u.hosts)
	}
	return strings.Join(all, "\n")
}

func usersOf(lines string) []user {
	var all []user
	if lines == "" {
		return nil
	}
	for line := range strings.SplitSeq(lines, "\n") {
		parts := strings.SplitN(line, "\t", 3)
		key, _, err := ident.ParseRow(parts[0])
		if err != nil {
			panic(fmt.Sprintf("row %q is a key's: %v", parts[0], err))
		}
		all = append(all, user{key, parts[1], parts[2]})
	}
	return all
}
