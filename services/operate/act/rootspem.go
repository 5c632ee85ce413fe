package act

import (
	"context"
	"strings"

	"github.com/spf13/cobra"

	"meshlog.dev/services/operate/command"
	"meshlog.dev/store"
)

// certificateView is a root of the mesh.
type certificateView struct {
	TrustDomain string `json:"trustDomain"`
	State       string `json:"state"`
	Certificate string `json:"certificate"` // PEM
}

func caRoots() *cobra.Command {
	cmd := &cobra.Command{
		Use: "roots", Short: "Print the roots of the mesh, for agents that begin to trust the CA", Args: command.Args(0, 0, ""),
		Long: `Print the certificates of the roots of the mesh, as the newest version has them: the
file for --ca-roots of an agent. An agent needs it for its first certificate; later it
follows the roots by itself. Bring the file to the workload in a way that nobody can
change it: with another root in it, the agent trusts another CA.`,
		Example: `  meshlog ca roots --data data/ > root.pem`,
	}
	return command.Live(cmd, func(ctx context.Context, e *command.Env, _ []string) error {
		chain, err := e.Chain(ctx)
		if err != nil {
			return err
		}
		head, err := command.FetchHead(ctx, chain)
		if err != nil {
			return err
		}
		roots, err := rootsOf(head)
		if err != nil {
			return err
		}
		if len(roots) == 0 {
			return command.NotFound("the newest version has no roots: run the certificate authority, with `meshlog up --ca` or bin/ca")
		}
		e.Print(roots, func() {
			for _, r := range roots {
				e.Line("%s", strings.TrimSpace(r.Certificate))
			}
		})
		return nil
	})
}

// rootsOf returns the roots in a version.
func rootsOf(v store.Stored) ([]certificateView, error) {
	all := []certificateView{}
	bundles, err := command.TrustBundles(v.Snapshot)
	if err != nil {
		return nil, err
	}
	for _, bundle := range bundles {
		for _, r := range bundle.GetRoots() {
			state := strings.ToLower(strings.TrimPrefix(r.GetState().String(), "ROOT_STATE_"))
			all = append(all, certificateView{bundle.GetTrustDomain(), state, r.GetCertificate()})
		}
	}
	return all, nil
}
