package inspect

import (
	"cmp"
	"context"
	"errors"
	"slices"
	"time"

	"github.com/spf13/cobra"
	networking "istio.io/api/networking/v1alpha3"

	registryv1 "meshlog.dev/proto/meshlog/registry/v1"
	"meshlog.dev/services/builder/ledger"
	"meshlog.dev/services/mesh/credential"
	"meshlog.dev/services/mesh/index"
	"meshlog.dev/services/mesh/problem"
	"meshlog.dev/services/mesh/world"
	"meshlog.dev/services/mesh/xds/secret"
	"meshlog.dev/services/operate/command"
)

// The states of a credential that a Gateway names, besides those of a certificate.
const (
	credMissing = "MISSING" // no such Secret is on the log
	credRefused = "REFUSED" // the Gateway may not name it
	credInvalid = "INVALID" // it cannot be served
	credFuture  = "NOT YET" // it is not valid yet
	credUnread  = "UNKNOWN" // the log does not have its certificate
)

// gatewayCert is a credential that Gateways name.
type gatewayCert struct {
	Secret   string    `json:"secret"` // namespace/name
	State    string    `json:"state"`
	Ends     time.Time `json:"ends,omitzero"` // of the first certificate of the chain that ends
	Names    []string  `json:"names,omitempty"`
	Issuer   string    `json:"issuer,omitempty"`
	Gateways []string  `json:"gateways"` // namespace/name
	Hosts    []string  `json:"hosts"`
	Problems []string  `json:"problems,omitempty"`

	asked secret.Credential
}

// gatewayCerts returns the command `certs gateways`.
func gatewayCerts() *cobra.Command {
	cmd := &cobra.Command{
		Use: "gateways", Short: "Show the certificates that Gateways name, and until when", Args: command.Args(0, 0, ""),
		Long: `Show the Secrets whose certificates the servers of Gateways name: for which hosts, for
which names they are, and until when. The log has only what is public of them.

  VALID      it can be used
  ENDS SOON  less than a tenth of its time is left
  ENDED      its time, or that of one in its chain, is over
  NOT YET    its time, or that of one in its chain, has not begun
  INVALID    it cannot be served, for instance because key and certificate differ
  MISSING    no such Secret is on the log
  REFUSED    a Gateway names only Secrets of its own namespace; no proxy gets this one
  UNKNOWN    the log has the Secret, and not its certificate

With --version they are those of that version, and their state is that of now.
Certificates in files of proxies and CAs for clients are not shown.

Exit code 1: one is ENDED, NOT YET, INVALID, MISSING or REFUSED.

` + command.MomentForms,
		Example: `  meshlog certs gateways --data data/
  meshlog certs gateways --archive mesh.archive --version "14:02"`,
	}
	version := cmd.Flags().String("version", "", "show those of this `version`")
	return command.Past(cmd, func(ctx context.Context, e *command.Env, _ []string) error {
		p, err := e.Past(ctx)
		if err != nil {
			return err
		}
		m, err := command.FindMoment(ctx, p, cmp.Or(*version, command.Latest))
		if err != nil {
			return err
		}
		content, err := m.Content(ctx, p)
		if err != nil {
			return err
		}
		w, err := ledger.World(content)
		if err != nil {
			return err
		}
		now := time.Now()
		views := viewGatewayCerts(w, now)
		e.Print(views, func() { showGatewayCerts(views, now, e.Output) })
		if slices.ContainsFunc(views, func(v gatewayCert) bool { return v.broken() }) {
			return errors.New("a certificate of a Gateway cannot be used")
		}
		return nil
	})
}

// viewGatewayCerts returns the credentials that the Gateways of a world name, by the
// names that their proxies ask for.
func viewGatewayCerts(w *world.World, now time.Time) []gatewayCert {
	r := index.NewPushContext(w).Read()
	views := []gatewayCert{}
	for o := range w.Objects("Gateway") {
		g, ok := o.Message.(*networking.Gateway)
		if !ok {
			continue
		}
		for _, s := range g.GetServers() {
			if s.GetTls() == nil {
				continue
			}
			for _, asked := range secret.Credentials(r, o.Key.Namespace, s.GetTls()) {
				i := slices.IndexFunc(views, func(v gatewayCert) bool { return v.asked == asked })
				if i < 0 {
					i = len(views)
					v := gatewayCert{Secret: asked.String(), State: credRefused, asked: asked}
					if asked.Usable {
						ref, _ := r.Secret(asked.Namespace, asked.Name)
						v.judge(ref, now)
					}
					views = append(views, v)
				}
				v := &views[i]
				v.Gateways = append(v.Gateways, o.Key.Namespace+"/"+o.Key.Name)
				v.Hosts = append(v.Hosts, s.GetHosts()...)
			}
		}
	}
	for i := range views {
		v := &views[i]
		slices.Sort(v.Gateways)
		slices.Sort(v.Hosts)
		v.Gateways, v.Hosts = slices.Compact(v.Gateways), slices.Compact(v.Hosts)
	}
	slices.SortFunc(views, func(a, b gatewayCert) int {
		return cmp.Or(cmp.Compare(a.Secret, b.Secret), cmp.Compare(a.State, b.State), slices.Compare(a.Gateways, b.Gateways))
	})
	return views
}

// judge sets the state of a credential, and what its certificate says.
func (v *gatewayCert) judge(ref *registryv1.SecretReference, now time.Time) {
	if ref == nil {
		v.State = credMissing
		return
	}
	verdict := credential.Judge(ref)
	broken := !verdict.Pair
	for _, d := range verdict.Problems {
		v.Problems = append(v.Problems, d.Field+": "+d.Reason)
		broken = broken || d.Severity == problem.Error
	}
	var begins, ended, soon bool
	for i, c := range verdict.Chain {
		if i == 0 {
			v.Names, v.Issuer = namesOf(c), c.Issuer.String()
		}
		if v.Ends.IsZero() || c.NotAfter.Before(v.Ends) {
			v.Ends = c.NotAfter.UTC()
		}
		begins = begins || now.Before(c.NotBefore)
		ended = ended || now.After(c.NotAfter)
		soon = soon || c.NotAfter.Sub(now) < c.NotAfter.Sub(c.NotBefore)/10
	}
	switch {
	case broken:
		v.State = credInvalid
	case len(verdict.Chain) == 0:
		v.State = credUnread
	case ended:
		v.State = certEnded
	case begins:
		v.State = credFuture
	case soon:
		v.State = certEndsSoon
	default:
		v.State = certValid
	}
}

// broken reports whether clients cannot use what is served with the credential.
func (v *gatewayCert) broken() bool {
	return slices.Contains([]string{credMissing, credRefused, credInvalid, credFuture, certEnded}, v.State)
}

func showGatewayCerts(views []gatewayCert, now time.Time, out *command.Output) {
	if len(views) == 0 {
		out.Line("No Gateway names a certificate in a Secret.")
		return
	}
	t := command.Rows{Head: []string{"SECRET", "STATE", "ENDS", "NAMES", "ISSUER", "GATEWAYS", "HOSTS"}}
	var notes []string
	for _, v := range views {
		color := command.Green
		switch {
		case v.broken():
			color = command.Red
		case v.State != certValid:
			color = command.Yellow
		}
		t.Add(v.Secret, command.Cell{Text: v.State, Color: color}, until(v.Ends, now), command.Some(v.Names), v.Issuer,
			command.Some(v.Gateways), command.Some(v.Hosts))
		for _, p := range v.Problems {
			notes = append(notes, v.Secret+": "+p)
		}
	}
	out.Rows(&t)
	out.Notes(notes)
}

// until says when something ends, or has ended.
func until(ends, now time.Time) string {
	switch left := ends.Sub(now); {
	case ends.IsZero():
		return ""
	case left <= 0:
		return command.Ago(-left)
	default:
		return "in " + command.Age(left)
	}
}
