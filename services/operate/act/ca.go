package act

import (
	"context"
	"time"

	"github.com/spf13/cobra"

	"meshlog.dev/services/ca/jointoken"
	"meshlog.dev/services/internal/cakv"
	"meshlog.dev/services/operate/command"
)

// CA returns the command `ca`, whose commands are about the certificate authority.
func CA() *cobra.Command {
	cmd := &cobra.Command{
		Use: "ca", Short: "Admit workloads to the certificate authority, and rotate its root", Args: command.Args(0, 0, ""),
		Long: `Admit workloads to the certificate authority of the mesh, show its roots, and rotate
them. The authority is the process ca, or
` + "`meshlog up --ca`" + `. ` + "`meshlog audit`" + ` shows which certificates it issued.`,
		Example: `  meshlog ca token --data data/ --namespace shop --account cart
  meshlog ca status --data data/
  meshlog ca rotate --data data/`,
		RunE: func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	cmd.AddCommand(joinToken(), caRoots(), caStatus(), caRotate())
	return cmd
}

// tokenView is a join token, and what it is good for.
type tokenView struct {
	Token          string    `json:"token"`
	Namespace      string    `json:"namespace,omitempty"`
	ServiceAccount string    `json:"serviceAccount,omitempty"`
	Serving        []string  `json:"serving,omitempty"`
	Until          time.Time `json:"until"`
}

func joinToken() *cobra.Command {
	cmd := &cobra.Command{
		Use: "token", Short: "Make a join token for a workload, or for a server", Args: command.Args(0, 0, ""),
		Long: `Make a join token: the workload that shows it to the certificate authority first, as
authorization: Bearer TOKEN, gets one certificate for this namespace and account. It
renews the certificate with the certificate (--certificate-renewal of the CA).

With --serving the token is for a frontend instead (its --ca and --join-token-file): it
gets one certificate for these DNS names, which is good for servers only and is no
identity of a workload. A process that has a certificate for a name can be that server
for all proxies, so name no host of another one.

The token is printed once, and nothing else with it; the bus keeps only its SHA-256.
Treat the token like a password: the process that shows it first becomes the
workload. The CA must run with --join-tokens.`,
		Example: `  meshlog ca token --data data/ --namespace shop --account cart
  export MESHLOG_BUS=nats://10.0.0.1:4222 MESHLOG_BUS_NKEY=auth/operator.nk
  meshlog ca token --namespace shop --account cart --ttl 1h > token
  meshlog ca token --serving frontend.mesh.example > frontend.token`,
	}
	namespace := cmd.Flags().String("namespace", "", "`namespace` of the workload")
	account := cmd.Flags().String("account", "", "service `account` of the workload")
	serving := cmd.Flags().StringSlice("serving", nil, "DNS `names` of a frontend, separated by commas, instead of a workload")
	ttl := cmd.Flags().Duration("ttl", 10*time.Minute, "`time` for which the token can be used, 24h at most")
	return command.Live(cmd, func(ctx context.Context, e *command.Env, _ []string) error {
		switch {
		case len(*serving) > 0 && (*namespace != "" || *account != ""):
			return command.Usage("--serving and --namespace or --account: a token is good for a server or for a workload, not for both")
		case len(*serving) > 0:
			if err := jointoken.CheckNames(*serving); err != nil {
				return command.Usage("--serving: %w", err)
			}
		case *namespace == "":
			return command.Usage("--namespace is missing: a token is good for one workload")
		case *account == "":
			return command.Usage("--account is missing: a token is good for one workload")
		}
		if *ttl <= 0 || *ttl > jointoken.MaxTTL {
			return command.Usage("--ttl %s: want a time up to %s", *ttl, jointoken.MaxTTL)
		}
		nc, err := e.Conn()
		if err != nil {
			return err
		}
		tokens, err := cakv.New(nc, e.Bus.Domain)
		if err != nil {
			return err
		}
		v := tokenView{Namespace: *namespace, ServiceAccount: *account, Serving: *serving, Until: time.Now().Add(*ttl).Truncate(time.Second)}
		if len(v.Serving) > 0 {
			v.Token, err = jointoken.NewServing(ctx, tokens, v.Serving, v.Until)
		} else {
			v.Token, err = jointoken.New(ctx, tokens, v.Namespace, v.ServiceAccount, v.Until)
		}
		if err != nil {
			return err
		}
		e.Print(v, func() { e.Line("%s", v.Token) })
		return nil
	})
}
