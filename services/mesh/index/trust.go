package index

import (
	"cmp"
	"encoding/pem"
	"maps"
	"slices"
	"strings"

	meshconfig "istio.io/api/mesh/v1alpha1"
	networking "istio.io/api/networking/v1alpha3"

	"meshlog.dev/proto/ident"
	registryv1 "meshlog.dev/proto/meshlog/registry/v1"
	"meshlog.dev/services/mesh/credential"
	"meshlog.dev/services/mesh/table"
	"meshlog.dev/services/mesh/world"
)

// Trust says by which roots proxies verify one another (CA-13). Each trust domain has roots
// of its own: those of the mesh are in its TrustBundle, also for its aliases, and those of
// any other domain, or of an alias that has others, in caCertificates of the MeshConfig.
type Trust struct {
	mesh   []string          // the mesh's own trust domain, then the aliases
	others map[string]string // the roots of the other trust domains, in PEM; empty: there is one authority only
	bundle *registryv1.TrustBundle
}

// TrustSet is a set of trust domains with more than the authority of the mesh, as their
// names, sorted and separated by commas. The empty one is the mesh's own authority alone.
type TrustSet string

// Domains returns the trust domains of a set; none: those of the mesh's own authority.
func (s TrustSet) Domains() []string {
	if s == "" {
		return nil
	}
	return strings.Split(string(s), ",")
}

// Trust returns by which roots proxies verify one another. Without roots of the mesh itself
// on the log, no other trust domain is trusted: a proxy that trusts several must get the
// roots of all of them from the log.
func (r *Reader) Trust() Trust {
	t := Trust{mesh: r.TrustDomains()}
	if len(r.pc.others) > 0 {
		if t.bundle, _ = r.TrustBundle(); t.bundle != nil {
			t.others = r.pc.others
		}
	}
	return t
}

// Untrusted returns the trust domains that MeshConfig names roots of, and that are not
// trusted because the log has no roots of the mesh itself, and the key of the MeshConfig.
func (r *Reader) Untrusted() ([]string, ident.Key) {
	if len(r.pc.others) == 0 || r.Trust().Several() {
		return nil, ident.Key{}
	}
	key := r.pc.meshKey()
	if key == (ident.Key{}) {
		return nil, key
	}
	return slices.Sorted(maps.Keys(r.pc.others)), key
}

// MeshKey returns the key of the MeshConfig, for what is to be reported about it; the zero
// one: there is none.
func (r *Reader) MeshKey() ident.Key {
	r.note(Input{Kind: InputMesh})
	return r.pc.meshKey()
}

func (pc *PushContext) meshKey() ident.Key {
	if o := pc.world.Winner(ident.Key{Kind: meshConfigKind, Name: world.CountedName}); o != nil {
		return o.Key
	}
	return ident.Key{}
}

// Several reports whether there are trust domains with roots of their own.
func (t Trust) Several() bool { return len(t.others) > 0 }

// Apart reports whether a trust domain is another one than those of the mesh.
func (t Trust) Apart(domain string) bool {
	return t.others[domain] != "" && !slices.Contains(t.mesh, domain)
}

// Domains returns the trust domains whose workloads may call those of the mesh: its own,
// the aliases, then the others, sorted.
func (t Trust) Domains() []string {
	all := slices.Clone(t.mesh)
	for _, d := range slices.Sorted(maps.Keys(t.others)) {
		if !slices.Contains(all, d) {
			all = append(all, d)
		}
	}
	return all
}

// Mesh returns the mesh's own trust domain, then the aliases.
func (t Trust) Mesh() []string { return t.mesh }

// own returns the trust domains of the mesh's own authority.
func (t Trust) own() (all []string) {
	for _, d := range t.mesh {
		if _, apart := t.others[d]; !apart {
			all = append(all, d)
		}
	}
	return all
}

// Authorities returns the trust domains that have the same roots, the mesh's own first.
func (t Trust) Authorities() [][]string {
	all := [][]string{t.own()}
	for _, d := range slices.Sorted(maps.Keys(t.others)) {
		all = append(all, []string{d})
	}
	return all
}

// Bundle returns the roots of a trust domain and their CRLs, in PEM; empty: it has none.
func (t Trust) Bundle(domain string) (roots, crl string) {
	if pem, apart := t.others[domain]; apart {
		return pem, ""
	}
	if !slices.Contains(t.mesh, domain) {
		return "", ""
	}
	var all strings.Builder
	for _, root := range t.bundle.GetRoots() {
		all.WriteString(root.GetCertificate())
	}
	return all.String(), t.bundle.GetCrl()
}

// All returns the set of all trust domains.
func (t Trust) All() TrustSet { return t.set(t.Domains()) }

// OfMesh returns the set of the mesh's own trust domain and its aliases.
func (t Trust) OfMesh() TrustSet { return t.set(t.mesh) }

// Of returns the set of the trust domains that names of certificates are in. A name that is
// in none of them is one that the mesh's own authority may give.
func (t Trust) Of(names []string) TrustSet {
	if !t.Several() { // usual, and spares the look at the names
		return ""
	}
	return t.set(domainsOf(names))
}

// set returns the set of trust domains. With one of the mesh's own authority it has all of
// them, whose roots are the same.
func (t Trust) set(domains []string) TrustSet {
	var all []string
	own := false
	for _, d := range domains {
		if _, apart := t.others[d]; apart {
			all = append(all, d)
		} else {
			own = true
		}
	}
	if len(all) == 0 {
		return ""
	}
	if own {
		all = append(all, t.own()...)
	}
	slices.Sort(all)
	return TrustSet(strings.Join(slices.Compact(all), ","))
}

// TrustSets returns the sets of trust domains by which some proxy may verify its peers: that
// of servers, and those of clients, by the names that services and DestinationRules expect in
// the certificates of servers. They do not contain the empty set.
func (r *Reader) TrustSets() []TrustSet {
	t := r.Trust()
	if !t.Several() {
		return nil
	}
	r.note(Input{Kind: InputNamedDomains})
	all := []TrustSet{t.All(), t.OfMesh()}
	for _, named := range r.pc.services.named.Names() {
		domains := strings.Split(named, ",")
		all = append(all, t.set(domains), t.set(slices.Concat(domains, t.mesh)))
	}
	for _, named := range r.pc.rules.named.Names() {
		all = append(all, t.set(strings.Split(named, ",")))
	}
	slices.Sort(all)
	return slices.DeleteFunc(slices.Compact(all), func(s TrustSet) bool { return s == "" })
}

// domainsOf returns the trust domains that names of certificates are in, sorted; "" stands
// for names that are in none.
func domainsOf(names []string) []string {
	var all []string
	for _, name := range names {
		domain := ""
		if rest, ok := strings.CutPrefix(name, "spiffe://"); ok {
			if d, _, whole := strings.Cut(rest, "/"); whole && !strings.Contains(d, ",") {
				domain = d
			}
		}
		all = append(all, domain)
	}
	slices.Sort(all)
	return slices.Compact(all)
}

// countNamed adds n to the count of the trust domains of each list of names.
func countNamed(e *table.CounterEdit, n int, lists ...[]string) {
	for _, names := range lists {
		if len(names) > 0 {
			e.Add(n, strings.Join(domainsOf(names), ","))
		}
	}
}

// doneNamed returns the counts of trust domains that names are in.
func (t *transition) doneNamed(e *table.CounterEdit) table.Counter {
	c, moved := e.Done()
	if len(moved) > 0 {
		t.changed(Input{Kind: InputNamedDomains})
	}
	return c
}

// expected returns the names that rules expect in certificates of the mesh.
func expected(merged []*mergedRule) (lists [][]string) {
	of := func(p *networking.TrafficPolicy) {
		lists = append(lists, p.GetTls().GetSubjectAltNames())
		for _, s := range p.GetPortLevelSettings() {
			lists = append(lists, s.GetTls().GetSubjectAltNames())
		}
	}
	for _, m := range merged {
		of(m.spec.GetTrafficPolicy())
		for _, s := range m.spec.GetSubsets() {
			of(s.GetTrafficPolicy())
		}
	}
	return lists
}

const meshConfigKind = "MeshConfig"

// otherRoots returns the roots of other trust domains that MeshConfig has, in PEM. Several
// entries of one domain count together, as in Istio. What it leaves out has a diagnostic of
// the MeshConfig.
func otherRoots(m *meshconfig.MeshConfig) map[string]string {
	all := map[string]string{}
	seen := map[string]bool{}
	for _, ca := range m.GetCaCertificates() {
		certificates, err := credential.Certificates([]byte(ca.GetPem()))
		if err != nil || len(ca.GetCertSigners()) > 0 {
			continue
		}
		for _, domain := range ca.GetTrustDomains() {
			if domain == cmp.Or(m.GetTrustDomain(), defaultTrustDomain) {
				continue
			}
			for _, c := range certificates {
				text := string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: c.Raw}))
				if !seen[domain+" "+text] {
					seen[domain+" "+text] = true
					all[domain] += text
				}
			}
		}
	}
	return all
}
