package act

import (
	"bytes"
	"context"
	"encoding/hex"
	"errors"
	"slices"
	"time"

	"github.com/spf13/cobra"

	reportv1 "meshlog.dev/proto/meshlog/report/v1"
	"meshlog.dev/services/internal/bus"
	"meshlog.dev/services/operate/command"
)

// errNoCA says that no authority answers.
var errNoCA = errors.New("no certificate authority answers; is one running, with `meshlog up --ca` or bin/ca, and connected to this bus?")

// authorityView is one replica of the authority.
type authorityView struct {
	Replica     string     `json:"replica"`
	TrustDomain string     `json:"trustDomain"`
	Signer      string     `json:"signer"`
	Roots       []rootView `json:"roots"`
	Refused     string     `json:"refused,omitempty"`
	Trouble     string     `json:"trouble,omitempty"`
}

type rootView struct {
	Root     string    `json:"root"` // SHA-256
	Subject  string    `json:"subject"`
	State    string    `json:"state"` // announced, ready, active, retiring
	Since    time.Time `json:"since"`
	Ends     time.Time `json:"ends"`
	LastEnds time.Time `json:"lastCertificateEnds,omitzero"` // of a retiring root
	Waiting  []string  `json:"waiting,omitempty"`            // why an announced root may not sign
	// Proxies are the streams that get the roots and have not applied this one.
	Proxies []withoutRoot `json:"proxies,omitempty"`
}

type withoutRoot struct {
	Proxy    string `json:"proxy"`
	Identity string `json:"identity,omitempty"`
	Frontend string `json:"frontend"`
}

func caStatus() *cobra.Command {
	cmd := &cobra.Command{
		Use: "status", Short: "Show the roots of the mesh, and which proxies have not applied a new one", Args: command.Args(0, 0, ""),
		Long: `Show, for each replica of the certificate authority, the roots of the mesh:

  announced  proxies learn to trust it; it signs nothing. The reasons why it must wait
             are below, with the proxies that have not applied it
  ready      all live proxies have applied it, or an operator forced it; it may sign
  active     it signs
  retiring   it signs no more; LAST END is when no certificate under it is left

A proxy counts if it gets the roots (ROOTCA) from a frontend. The agent of a proxy that
gets them by a socket counts in its place. What takes its roots from files or from SPIRE
is not known here.`,
		Example: `  meshlog ca status --data data/
  meshlog ca status --bus nats://nats-0:4222 -o json`,
	}
	return command.Live(cmd, func(ctx context.Context, e *command.Env, _ []string) error {
		return askAuthority(ctx, e, reportv1.AuthorityAction_AUTHORITY_ACTION_STATUS)
	})
}

func caRotate() *cobra.Command {
	cmd := &cobra.Command{
		Use: "rotate", Short: "Rotate the root of the mesh", Args: command.Args(0, 0, ""),
		Long: `Rotate the root of the mesh. A CA with a root of its own (--signer self) makes a new
key and root, and announces the root. When every live proxy has applied it, the CA signs
under it without another command; the root before is trusted until the last certificate
under it has ended. ` + "`meshlog ca status`" + ` shows how far that is.

The root of a plugged CA comes from its files: append it to root-cert.pem. The CA takes
the new key when the root is ready. With --signer none there is nothing to rotate here: all
roots in the files are active.

With --force, announced roots may sign at once. Proxies that have not applied them then
refuse the certificates of others until they have.`,
		Example: `  meshlog ca rotate --data data/
  meshlog ca rotate --data data/ --force`,
	}
	force := cmd.Flags().Bool("force", false, "let announced roots sign although proxies have not applied them; announces none")
	return command.Live(cmd, func(ctx context.Context, e *command.Env, _ []string) error {
		do := reportv1.AuthorityAction_AUTHORITY_ACTION_ROTATE
		if *force {
			do = reportv1.AuthorityAction_AUTHORITY_ACTION_FORCE
		}
		return askAuthority(ctx, e, do)
	})
}

// askAuthority asks all replicas, and shows their answers with the proxies that they wait for.
func askAuthority(ctx context.Context, e *command.Env, do reportv1.AuthorityAction) error {
	fleet, err := e.Fleet()
	if err != nil {
		return err
	}
	replies, err := fleet.Authority(ctx, do)
	if err != nil {
		return err
	}
	if len(replies) == 0 {
		return errNoCA
	}
	reports, err := e.Reports(ctx, bus.Proxies)
	if err != nil {
		return err
	}
	e.WarnSilent(reports)
	views := []authorityView{}
	var refused error
	for _, r := range replies {
		v := viewAuthority(r, reports.Frontends)
		views = append(views, v)
		if v.Refused != "" {
			refused = errors.New(v.Refused)
		}
	}
	e.Print(views, func() { showAuthority(views, e.Output) })
	return refused
}

func viewAuthority(r *reportv1.AuthorityReply, frontends []*reportv1.FrontendReport) authorityView {
	v := authorityView{
		Replica: r.GetReplica(), TrustDomain: r.GetTrustDomain(), Signer: r.GetSigner(), Refused: r.GetRefused(), Trouble: r.GetTrouble(), Roots: []rootView{},
	}
	for _, c := range r.GetRoots() {
		root := rootView{
			Root: hex.EncodeToString(c.GetSum()), Subject: c.GetSubject(), State: c.GetState(), Since: c.GetSince().AsTime(), Ends: c.GetEnds().AsTime(), Waiting: c.GetWaiting(),
		}
		if c.GetReady() {
			root.State = "ready"
		}
		if c.GetLastEnds() != nil {
			root.LastEnds = c.GetLastEnds().AsTime()
		}
		if root.State == "announced" {
			for _, f := range frontends {
				for _, p := range f.GetProxies() {
					if p.GetGetsRoots() && !slices.ContainsFunc(p.GetRoots(), func(b []byte) bool { return bytes.Equal(b, c.GetSum()) }) {
						root.Proxies = append(root.Proxies, withoutRoot{p.GetId(), p.GetIdentity(), f.GetFrontend()})
					}
				}
			}
		}
		v.Roots = append(v.Roots, root)
	}
	return v
}

func showAuthority(views []authorityView, out *command.Output) {
	for _, v := range views {
		does := "signs for"
		if v.Signer == "none" {
			does = "publishes the roots of" // of an authority elsewhere
		}
		out.Line("%s %s %s (%s):", v.Replica, does, v.TrustDomain, v.Signer)
		rows := command.Rows{Head: []string{"ROOT", "SUBJECT", "STATE", "SINCE", "ENDS", "LAST END"}}
		for _, r := range v.Roots {
			rows.Add(r.Root[:min(12, len(r.Root))], r.Subject, r.State, r.Since, r.Ends, r.LastEnds)
		}
		out.Rows(&rows)
		for _, r := range v.Roots {
			for _, why := range r.Waiting {
				out.Line("%s waits: %s", r.Root[:min(12, len(r.Root))], why)
			}
			for _, p := range r.Proxies {
				out.Line("  without it: %s %s at frontend %s", p.Proxy, p.Identity, p.Frontend)
			}
		}
		if v.Trouble != "" {
			out.Line("%s", v.Trouble)
		}
	}
}
