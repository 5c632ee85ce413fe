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

// healthTimeout limits the wait for the process's answer.
const healthTimeout = 5 * time.Second

// healthCommand makes the command that checks a running process of spec. It
// accepts the flags, variables and settings file of the process and uses the
// address of its admin server.
func healthCommand(spec Spec) *cobra.Command {
	c := defaultCommon()
	var live bool
	cmd := &cobra.Command{
		Use: "health", Short: "Check whether the process on this machine is ready", Args: noArgs,
		Long: `Asks the admin server of the process on this machine whether it is ready.
Exits with 0 if it is. Exits with 1 and prints the reason if it is not ready or
does not answer.

The address of the admin server is that of the process: --admin, MESHLOG_ADMIN
or the settings file. The command accepts all flags of the process.`,
		Example: fmt.Sprintf("  %[1]s health\n  %[1]s health --live --settings /etc/meshlog/%[2]s.yaml", cmp.Or(spec.Path, spec.Use), spec.Use),
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := ApplySettings(cmd.Flags(), os.LookupEnv); err != nil {
				return err
			}
			addr, err := dialAddress(c.admin)
			if err != nil {
				return &UsageError{err}
			}
			answer, err := askHealth(cmd.Context(), addr, live)
			if err != nil {
				return err
			}
			fmt.Fprintln(cmd.OutOrStdout(), answer)
			return nil
		},
	}
	bindFlags(cmd, spec, c)
	cmd.Flags().VisitAll(func(f *pflag.Flag) { f.Hidden = f.Name != "admin" && f.Name != settingsFlag })
	cmd.Flags().BoolVar(&live, "live", false, "check whether the process is alive, not whether it is ready")
	return cmd
}

// dialAddress returns an address on this machine that reaches a server that
// listens on listen.
func dialAddress(listen string) (string, error) {
	host, port, err := net.SplitHostPort(listen)
	switch {
	case err != nil:
		return "", fmt.Errorf("--admin %q: want HOST:PORT", listen)
	case port == "0":
		return "", fmt.Errorf("--admin %s: the process took a free port; give the one that it logged as admin", listen)
	}
	switch host { // not localhost: an image may have no /etc/hosts
	case "", "0.0.0.0":
		host = "127.0.0.1"
	case "::":
		host = "::1"
	}
	return net.JoinHostPort(host, port), nil
}

// askHealth returns the answer of the admin server at addr. The error has the
// answer if the process is not ready.
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
	// A transport of its own ignores proxies that the environment names.
	client := &http.Client{Transport: &http.Transport{DisableKeepAlives: true}}
	resp, err := client.Do(req)
	if err != nil {
		return "", fmt.Errorf("no answer from %s: %w; is the process running on this machine, with another --admin?", addr, errors.Unwrap(err))
	}
	defer resp.Body.Close()
	b, err := io.ReadAll(io.LimitReader(resp.Body, 1<<20))
	if err != nil {
		return "", fmt.Errorf("answer of %s: %w", addr, err)
	}
	answer := strings.TrimSpace(string(b))
	if resp.StatusCode != http.StatusOK {
		return "", fmt.Errorf("not ready:\n%s", answer)
	}
	return answer, nil
}
