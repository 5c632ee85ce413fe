package act

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/spf13/cobra"

	reportv1 "meshlog.dev/proto/meshlog/report/v1"
	"meshlog.dev/services/operate/command"
)

// drainView is the answer of the agent of a proxy.
type drainView struct {
	Proxy    string    `json:"proxy"`
	Identity string    `json:"identity,omitempty"` // that the agent has shown
	Address  string    `json:"address"`
	Frontend string    `json:"frontend"`
	Until    time.Time `json:"until,omitzero"`
	Refused  string    `json:"refused,omitempty"`
}

// Drain returns the command `drain`.
func Drain() *cobra.Command {
	cmd := &cobra.Command{
		Use: "drain PROXY", Short: "End the connections of the clients of a proxy", Args: command.Args(1, 1, "PROXY"),
		Long: `Have the agent of a proxy end all connections of its clients, and serve new ones
meanwhile. A key or certificate that is replaced is in the next handshake, but connections
that stand go on: for an hour, or for maxConnectionDuration of the MeshPolicy. Drain the
proxies that had a key which others may know, after it was replaced.

The agent replaces its Envoy by a hot restart. The old Envoy tells HTTP clients to leave
during --drain-time of the agent (45 s), and ends 15 s after that with the connections
that are left. The command prints when that is, by the agent's clock, and does not wait.

` + "`meshlog agent`" + ` runs Envoys that can be drained, unless it speaks plaintext with the
frontends. Restart others. ` + "`meshlog audit`" + ` shows which proxies were drained.`,
		Example: `  meshlog drain --data data/ sidecar~10.0.0.7~cart-1.shop~shop.svc.cluster.local`,
	}
	return command.Live(cmd, func(ctx context.Context, e *command.Env, args []string) error {
		fleet, frontends, _, err := e.Frontends(ctx)
		if err != nil {
			return err
		}
		replies, err := fleet.Drain(ctx, args[0], frontends)
		if err != nil {
			return err
		}
		views := viewDrains(args[0], replies)
		if len(views) == 0 {
			return command.NotFound("no agent of proxy %q follows a frontend; `meshlog proxy-status` lists the proxies, and those that an agent runs a second time, with ~agent at the end. Restart an Envoy that no agent runs", args[0])
		}
		e.Print(views, func() { showDrains(views, e.Output) })
		return refusals(views)
	})
}

func viewDrains(proxy string, replies []*reportv1.DrainReply) []drainView {
	var views []drainView
	for _, r := range replies {
		for _, a := range r.GetAgents() {
			v := drainView{Proxy: proxy, Identity: a.GetIdentity(), Address: a.GetAddress(), Frontend: r.GetFrontend(), Refused: a.GetRefused()}
			if a.GetUntil() != nil {
				v.Until = a.GetUntil().AsTime()
			}
			views = append(views, v)
		}
	}
	return views
}

func showDrains(views []drainView, out *command.Output) {
	rows := command.Rows{Head: []string{"PROXY", "IDENTITY OF THE AGENT", "FRONTEND", "CONNECTIONS END BY"}}
	for _, v := range views {
		if v.Refused == "" {
			rows.Add(v.Proxy, v.Identity, v.Frontend, v.Until)
		} else {
			rows.Add(v.Proxy, v.Identity, v.Frontend, "-")
		}
	}
	out.Rows(&rows)
}

// refusals returns an error for each agent that does not drain.
func refusals(views []drainView) error {
	var errs []error
	for _, v := range views {
		if v.Refused != "" {
			errs = append(errs, fmt.Errorf("the agent of %s at %s: %s", v.Proxy, v.Address, v.Refused))
		}
	}
	return errors.Join(errs...)
}
