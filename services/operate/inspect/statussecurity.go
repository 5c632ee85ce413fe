package inspect

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	reportv1 "meshlog.dev/proto/meshlog/report/v1"
	snapshotv1 "meshlog.dev/proto/meshlog/snapshot/v1"
	"meshlog.dev/services/mesh/kind"
	"meshlog.dev/services/mesh/problem"
	"meshlog.dev/services/mesh/proxy"
	"meshlog.dev/services/mesh/spiffe"
	"meshlog.dev/services/mesh/world"
	"meshlog.dev/services/operate/command"
)

// identityCounts counts connected proxies by the certificates that their connections show.
type identityCounts struct {
	With     int `json:"with"`     // one that names an identity and has not ended
	EndsSoon int `json:"endsSoon"` // of those
	Without  int `json:"without"`  // none
	Ended    int `json:"ended"`
}

// policyCounts counts the AuthorizationPolicies, RequestAuthentications and
// PeerAuthentications in the newest version.
type policyCounts struct {
	Enforced    int      `json:"enforced"`
	NotEnforced []string `json:"notEnforced,omitempty"` // objects that no proxy enforces
	DryRun      []string `json:"dryRun,omitempty"`      // NAMESPACE/NAME of AuthorizationPolicies that decide nothing
}

// shownCert is the certificate that a stream of a proxy, or of its agent, shows.
type shownCert struct {
	proxy, identity string
	spiffe.Term
}

func certOf(p *reportv1.ProxyReport) shownCert {
	return shownCert{strings.TrimSuffix(p.GetId(), proxy.AgentSuffix), p.GetIdentity(), termOf(p)}
}

// termOf returns the time of the certificate that a stream shows.
func termOf(p *reportv1.ProxyReport) spiffe.Term {
	return spiffe.Term{
		Begins: command.Stamp(p.GetCertificateBegins().AsTime()), Ends: command.Stamp(p.GetCertificateEnds().AsTime()),
		Shown: command.Stamp(p.GetCertificateShown().AsTime()),
	}
}

// weight orders certificates by how much attention they need.
func (c shownCert) weight(now time.Time) int {
	switch {
	case c.identity == "":
		return 2
	case c.Ended(now):
		return 3
	case c.Overdue(now):
		return 1
	}
	return 0
}

// identities counts the proxies with and without certificates, each once: by its stream
// that needs the most attention. One that has not renewed its certificate needs attention:
// peers refuse it from the end on. One without does not, because meshes without an
// authority have only such proxies.
func (v *StatusView) identities(frontends []*reportv1.FrontendReport, now time.Time) {
	worst := map[string]shownCert{}
	for _, f := range frontends {
		if f.GetLeaving() {
			continue
		}
		for _, p := range f.GetProxies() {
			c := certOf(p)
			if known, ok := worst[c.proxy]; !ok || known.weight(now) < c.weight(now) {
				worst[c.proxy] = c
			}
		}
	}
	var soon []shownCert
	for _, c := range worst {
		switch c.weight(now) {
		case 3:
			v.Identities.Ended++
		case 2:
			v.Identities.Without++
		case 1:
			soon = append(soon, c)
			fallthrough
		default:
			v.Identities.With++
		}
	}
	if n := v.Identities.Ended; n > 0 {
		v.wrong("%s a certificate that has ended; `meshlog certs` lists them", command.Plural(n, "proxy shows", "proxies show"))
	}
	slices.SortFunc(soon, func(a, b shownCert) int {
		return cmp.Or(a.Ends.Compare(b.Ends), cmp.Compare(a.proxy, b.proxy))
	})
	names := make([]string, len(soon))
	for i, c := range soon {
		names[i] = fmt.Sprintf("%s (%s)", c.proxy, until(c.Ends, now))
	}
	if v.Identities.EndsSoon = len(soon); len(soon) > 0 {
		v.wrong("%s not renewed, and ends soon: %s; `meshlog certs` shows more, the log of the agent says why",
			command.Plural(len(soon), "certificate is", "certificates are"), command.Some(names))
	}
}

// policies counts the policies of the newest version; w is nil if there is none. Builders
// report those that no proxy enforces.
func (v *StatusView) policies(w *world.World, problems []*snapshotv1.Diagnostic) {
	off := map[string]bool{}
	unenforced := 0
	for _, d := range problems {
		switch {
		case d.GetCode() == problem.Unenforced:
			unenforced++
		case !replaced(d):
			continue
		}
		off[d.GetObject()] = true
	}
	c := &v.Policies
	c.NotEnforced = slices.Sorted(maps.Keys(off))
	if n := unenforced; n > 0 {
		v.wrong("%s not enforced by any proxy; `meshlog diagnostics` says what happens to requests", command.Plural(n, "security policy is", "security policies are"))
	}
	if w == nil {
		return
	}
	for _, k := range kind.All() {
		if !k.Security {
			continue
		}
		for o := range w.Objects(k.Name) {
			d, is := o.Message.(*kind.DryRun)
			switch {
			case off[o.Key.String()]:
			case is && !d.Enforced():
				c.DryRun = append(c.DryRun, keyName(o.Key))
			default:
				c.Enforced++
			}
		}
	}
}

// replaced reports whether a problem says that a PeerAuthentication has no effect. Others
// decide about its workloads, so a warning is enough.
func replaced(d *snapshotv1.Diagnostic) bool {
	return d.GetSeverity() == snapshotv1.Severity_SEVERITY_WARNING && strings.HasPrefix(d.GetObject(), peersKind+" ") &&
		slices.Contains([]string{"conflict", "unused"}, d.GetCode())
}

// String returns the counts in words.
func (c identityCounts) String() string {
	s := command.Plural(c.With, "proxy", "proxies") + " with a certificate"
	if c.EndsSoon > 0 {
		s += fmt.Sprintf(", %d of them ending soon", c.EndsSoon)
	}
	s += fmt.Sprintf(", %d without", c.Without)
	if c.Ended > 0 {
		s += fmt.Sprintf(", %d whose certificate has ended", c.Ended)
	}
	return s
}

// String returns the counts in words.
func (c policyCounts) String() string {
	s := fmt.Sprintf("%d enforced", c.Enforced)
	if n := len(c.NotEnforced); n > 0 {
		s += fmt.Sprintf(", %d not enforced", n)
	}
	if n := len(c.DryRun); n > 0 {
		s += fmt.Sprintf(", %d in dry run (%s)", n, command.Some(c.DryRun))
	}
	return s
}
