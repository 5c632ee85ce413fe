package inspect

import (
	"cmp"
	"context"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	auditv1 "meshlog.dev/proto/meshlog/audit/v1"
	reportv1 "meshlog.dev/proto/meshlog/report/v1"
	"meshlog.dev/services/internal/audit"
	"meshlog.dev/services/internal/bus"
	"meshlog.dev/services/operate/command"
)

// The states of a certificate.
const (
	certValid    = "VALID"
	certRenewed  = "RENEWED" // its holder has got another one with it
	certEndsSoon = "ENDS SOON"
	certEnded    = "ENDED"
)

// certView is a certificate of a workload.
type certView struct {
	Identity string    `json:"identity"`
	Serial   string    `json:"serial,omitempty"`
	State    string    `json:"state"`
	Issued   time.Time `json:"issued,omitzero"` // absent: the audit does not have it
	Ends     time.Time `json:"ends,omitzero"`
	Proof    string    `json:"proof,omitempty"` // by which the authority knew the holder
	Facts    []string  `json:"facts,omitempty"`
	CA       string    `json:"ca,omitempty"`      // the replica that issued it
	Proxies  []string  `json:"proxies,omitempty"` // whose connections show it

	overdue bool // a connection shows it that began when it should have been renewed
}

// proofs are the words for the authenticators of the authority.
var proofs = map[string]string{
	"join-token": "join token", "kubernetes": "Kubernetes token", "oidc": "OIDC token", "certificate": "renewal",
}

// Certs returns the command `certs`.
func Certs() *cobra.Command {
	cmd := &cobra.Command{
		Use: "certs", Short: "Show which workloads have which certificates, and until when", Args: command.Args(0, 0, ""),
		Long: `Show the certificates of the mesh: those that the certificate authority issued, as the
audit has them, and those that connected proxies show to their frontends. Those of
servers, such as frontends, are shown by their DNS names. Of each
identity the newest is first; without --all, one that has ended is shown only if a
connected proxy shows it.

  VALID      it can be used
  RENEWED    its holder has got another one with it
  ENDS SOON  less than a quarter of its time is left, and its holder has not renewed it
  ENDED      its time is over

PROOF is what the holder showed to the authority: a join token, a Kubernetes token, an
OIDC token, or a certificate that it renewed. A certificate that is not in the audit is
of another authority, such as SPIRE, or its record is older than --audit-history. If
nothing runs on --data, only the audit is shown.`,
		Example: `  meshlog certs --data data/
  meshlog certs --data data/ --all
  meshlog certs --bus nats://nats-0:4222 -o json`,
	}
	all := cmd.Flags().Bool("all", false, "also certificates that have ended")
	cmd = command.Live(cmd, func(ctx context.Context, e *command.Env, _ []string) error {
		reader, live, err := e.Audit()
		if err != nil {
			return err
		}
		entries, _, err := reader.Newest(ctx, -1)
		if err != nil {
			return err
		}
		reports := new(bus.Reports)
		if live {
			if reports, err = e.Reports(ctx, bus.Proxies); err != nil {
				return err
			}
			e.WarnSilent(reports)
		}
		now := time.Now()
		views := viewCerts(entries, reports.Frontends, *all, now)
		e.Print(views, func() { showCerts(views, now, e.Output) })
		return nil
	})
	cmd.Flags().Lookup("data").Usage = "data `directory` of `meshlog up`, running or not"
	cmd.AddCommand(gatewayCerts(), certsCheck())
	return cmd
}

// viewCerts returns the certificates in the audit and those that proxies show, by
// identity, the newest first. Only records of the authority count: other accounts may
// write what they like.
func viewCerts(entries []audit.Entry, frontends []*reportv1.FrontendReport, all bool, now time.Time) []certView {
	views := []certView{}
	renewed := map[string]bool{}
	for _, e := range entries {
		source, _, _ := strings.Cut(e.Writer, "/")
		r := e.Record
		if e.Err != nil || source != bus.CASource || r.GetAction() != auditv1.Action_ACTION_CERTIFICATE_ISSUED {
			continue
		}
		v := certView{
			Identity: r.GetIdentity(), Serial: r.GetSerial(), Issued: e.Time, Ends: r.GetNotAfter().AsTime(),
			Proof: cmp.Or(proofs[r.GetAuthenticator()], r.GetAuthenticator()), Facts: r.GetFacts(), CA: r.GetProcess(),
		}
		for _, f := range r.GetFacts() { // a server has DNS names instead of an identity (CA-11)
			if names, ok := strings.CutPrefix(f, "serving "); ok && v.Identity == "" {
				v.Identity = "server " + names
			}
		}
		if r.GetAuthenticator() == "certificate" {
			for _, f := range r.GetFacts() {
				if serial, ok := strings.CutPrefix(f, "serial "); ok {
					renewed[v.Identity+" "+serial] = true
				}
			}
		}
		views = append(views, v)
	}
	for _, f := range frontends {
		if f.GetLeaving() {
			continue
		}
		for _, p := range f.GetProxies() {
			views = addShown(views, p, now)
		}
	}
	for i := range views {
		v := &views[i]
		slices.Sort(v.Proxies)
		v.Proxies = slices.Compact(v.Proxies)
		v.State = v.stateAt(now, renewed[v.Identity+" "+v.Serial])
	}
	if !all {
		views = slices.DeleteFunc(views, func(v certView) bool { return v.State == certEnded && len(v.Proxies) == 0 })
	}
	slices.SortStableFunc(views, func(a, b certView) int {
		return cmp.Or(cmp.Compare(a.Identity, b.Identity), b.Issued.Compare(a.Issued), b.Ends.Compare(a.Ends))
	})
	return views
}

// addShown adds the certificate that the connection of a proxy shows, or the proxy to
// the certificate.
func addShown(views []certView, p *reportv1.ProxyReport, now time.Time) []certView {
	if p.GetIdentity() == "" {
		return views
	}
	i := slices.IndexFunc(views, func(v certView) bool { return v.Identity == p.GetIdentity() && v.Serial == p.GetCertificateSerial() })
	if i < 0 {
		i = len(views)
		views = append(views, certView{
			Identity: p.GetIdentity(), Serial: p.GetCertificateSerial(), Ends: command.Stamp(p.GetCertificateEnds().AsTime()),
		})
	}
	views[i].Proxies = append(views[i].Proxies, p.GetId())
	views[i].overdue = views[i].overdue || termOf(p).Overdue(now)
	return views
}

// stateAt returns the state of a certificate at a time. The audit says which ones are
// renewed; of one that is not there, only a connection can.
func (v *certView) stateAt(now time.Time, renewed bool) string {
	left := v.Ends.Sub(now)
	switch {
	case !v.Ends.IsZero() && left <= 0:
		return certEnded
	case renewed:
		return certRenewed
	case !v.Issued.IsZero() && left < v.Ends.Sub(v.Issued)/4, v.Issued.IsZero() && v.overdue:
		return certEndsSoon
	}
	return certValid
}

func showCerts(views []certView, now time.Time, out *command.Output) {
	if len(views) == 0 {
		out.Line("The audit has no certificate that can be used, and no connected proxy shows one. --all also shows those that have ended.")
		return
	}
	t := command.Rows{Head: []string{"IDENTITY", "SERIAL", "STATE", "ENDS", "ISSUED", "PROOF", "CA", "PROXIES"}}
	for _, v := range views {
		proof := v.Proof
		if v.Issued.IsZero() {
			proof = "not in the audit"
		}
		t.Add(v.Identity, command.Short(v.Serial), v.cell(), until(v.Ends, now), command.Since(v.Issued, now), proof, v.CA, command.Some(v.Proxies))
	}
	out.Rows(&t)
}

func (v *certView) cell() command.Cell {
	colors := map[string]string{certValid: command.Green, certRenewed: command.Faint, certEndsSoon: command.Yellow, certEnded: command.Red}
	return command.Cell{Text: v.State, Color: colors[v.State]}
}
