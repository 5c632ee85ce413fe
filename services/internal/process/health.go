package process

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
)

// healthTimeout is how long a process may take to say how it is.
const healthTimeout = 5 * time.Second

// healthCommand makes the command that asks a process of spec how it is. It
// takes the flags, variables and settings file of the process, and uses of
// them where its admin server listens.
func healthCommand(spec Spec) *cobra.Command {
	c := defaultCommon()
	var live bool
	cmd := &cobra.Command{
		Use: "health", Short: "Says whether the process that runs here is ready", Args: noArgs,
		Long: `Asks the admin server of the process that runs here whether it does its job.
Ends with 0 if it does, with 1 if it does not or does not answer, and says why.

It finds the process as that was told where to listen: by --admin,
MESHLOG_ADMIN or the settings file. It takes all flags of the process.`,
		Example: fmt.Sprintf("  %[1]s health\n  %[1]s health --live --settings /etc/meshlog/%[2]s.yaml", cmp.Or(spec.Path, spec.Use), spec.Use),
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := ApplySettings(cmd.Flags(), os.LookupEnv); err != nil {
				return err
			}
			addr, err := dialAddress(c.admin)
			if err != nil {
				return &UsageError{err}
			}
			said, err := askHealth(cmd.Context(), addr, live)
			if err != nil {
				return err
			}
			fmt.Fprintln(cmd.OutOrStdout(), said)
			return nil
		},
	}
	bindFlags(cmd, spec, c)
	cmd.Flags().VisitAll(func(f *pflag.Flag) { f.Hidden = f.Name != "admin" && f.Name != settingsFlag })
	cmd.Flags().BoolVar(&live, "live", false, "ask whether it runs, not whether it does its job")
	return cmd
}

// dialAddress is where to reach from here who listens on an address.
func dialAddress(listen string) (string, error) {
	host, port, err := net.SplitHostPort(listen)
	switch {
	case err != nil:
		return "", fmt.Errorf("--admin %q: want HOST:PORT", listen)
	case port == "0":
		return "", fmt.Errorf("--admin %s: the process took a free port; give the one that it logged as admin", listen)
	}
	switch host { // no name: an image may have no list of hosts
	case "", "0.0.0.0":
		host = "127.0.0.1"
	case "::":
		host = "::1"
	}
	return net.JoinHostPort(host, port), nil
}

// askHealth is what the admin server at addr answers if all is well, else the
// error is what it, or the connection, says.
func askHealth(ctx context.Context, addr string, live bool) (string, error) {
	path := "/readyz"
	if live {
		path = "/healthz"
	}
	ctx, cancel := context.WithTimeout(ctx, healthTimeout)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+addr+path, nil)
	if err != nil {
		return "", fmt.Errorf("--admin %s: %w", addr, err)
	}
	// Not by way of a proxy that the environment names.
	client := &http.Client{Transport: &http.Transport{DisableKeepAlives: true}}
	resp, err := client.Do(req)
	if err != nil {
		return "", fmt.Errorf("no answer from %s: %w; does it run here, with another --admin?", addr, errors.Unwrap(err))
	}
	defer resp.Body.Close()
	b, err := io.ReadAll(io.LimitReader(resp.Body, 1<<20))
	if err != nil {
		return "", fmt.Errorf("answer of %s: %w", addr, err)
	}
	said := strings.TrimSpace(string(b))
	if resp.StatusCode != http.StatusOK {
		return "", fmt.Errorf("not ready:\n%s", said)
	}
	return said, nil
}
