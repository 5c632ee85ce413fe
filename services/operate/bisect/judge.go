package bisect

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"

	"meshlog.dev/proto/ident"
	"meshlog.dev/services/mesh/proxy"
	"meshlog.dev/services/mesh/simulate"
	"meshlog.dev/services/operate/command"
	"meshlog.dev/services/operate/serve"
	"meshlog.dev/store"
)

// point is a content that can be tested.
type point struct {
	version ident.Position
	content func(context.Context) (store.Stored, error)
}

// test judges the configuration of a proxy.
type test interface {
	// judge returns the verdict and what it is about, in a few words.
	judge(ctx context.Context, p point) (v verdict, says string, err error)
}

// call simulates a call. It is good if it arrives and may go to a cluster (BIS-4).
type call struct {
	proxy   *proxy.Proxy
	call    simulate.Call
	cluster string
}

// outcome returns what the call does.
func (c *call) outcome(ctx context.Context, p point) (simulate.Outcome, error) {
	content, err := p.content(ctx)
	if err != nil {
		return simulate.Outcome{}, err
	}
	served, err := command.ServedOf(content.Snapshot, c.proxy)
	if err != nil {
		return simulate.Outcome{}, err
	}
	simulated, err := simulate.NewProxy(served.Sets)
	if err != nil {
		return simulate.Outcome{}, err
	}
	return simulated.Call(c.call), nil
}

func (c *call) judge(ctx context.Context, p point) (verdict, string, error) {
	o, err := c.outcome(ctx, p)
	if err != nil {
		return "", "", err
	}
	brief := o // without the way there
	brief.Listener, brief.FilterChain, brief.RouteConfiguration, brief.VirtualHost, brief.Route, brief.Notes = "", "", "", "", "", nil
	says := strings.Join(brief.Lines(), "; ")
	if o.Unknown != "" {
		return skip, o.Unknown, nil
	}
	if !o.Passes() {
		return bad, says, nil
	}
	for _, d := range o.To {
		if d.Cluster == c.cluster {
			return good, says, nil
		}
	}
	return bad, says, nil
}

// program runs a command of the user for each configuration (BIS-3).
type program struct {
	proxy  *proxy.Proxy
	argv   []string
	stdin  io.Reader
	output io.Writer // of the command
}

// Exit codes of the command, as `git bisect run` has them.
const (
	exitSkip  = 125
	exitAbort = 128 // and above
)

func (c *program) judge(ctx context.Context, p point) (v verdict, says string, err error) {
	content, err := p.content(ctx)
	if err != nil {
		return "", "", err
	}
	dir, err := os.MkdirTemp("", "meshlog-bisect-")
	if err != nil {
		return "", "", err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()
	if err := writeXDS(dir, content.Snapshot, c.proxy); err != nil {
		return "", "", err
	}
	f, err := serve.Start(ctx, p.version, content, "127.0.0.1:0")
	if err != nil {
		return "", "", err
	}
	defer func() { err = errors.Join(err, f.Close()) }()
	cmd := exec.CommandContext(ctx, c.argv[0], c.argv[1:]...) //nolint:gosec // the user's own command
	cmd.Env = append(os.Environ(), "XDS_DIR="+dir, "XDS_ADDRESS="+f.Address, "XDS_VERSION="+p.version.String())
	cmd.Stdin, cmd.Stdout, cmd.Stderr = c.stdin, c.output, c.output
	cmd.Cancel = func() error { return cmd.Process.Signal(os.Interrupt) }
	cmd.WaitDelay = 5 * time.Second
	err = cmd.Run()
	var exit *exec.ExitError
	if err != nil && !errors.As(err, &exit) {
		return "", "", fmt.Errorf("run %s: %w", c.argv[0], err)
	}
	code := cmd.ProcessState.ExitCode()
	says = fmt.Sprintf("%s exits with %d", filepath.Base(c.argv[0]), code)
	switch {
	case ctx.Err() != nil:
		return "", "", ctx.Err()
	case code < 0:
		return "", "", fmt.Errorf("%s: %s at %s: the search ends there", c.argv[0], cmd.ProcessState, p.version)
	case code >= exitAbort:
		return "", "", fmt.Errorf("%s at %s: the search ends there, as it does for every exit code above 127", says, p.version)
	case code == 0:
		return good, says, nil
	case code == exitSkip:
		return skip, says, nil
	}
	return bad, says, nil
}

// files are the names of the files with the resources of each type.
var files = [ident.ResourceTypes]string{
	ident.CDS: "clusters", ident.EDS: "endpoints", ident.ECDS: "filters", ident.LDS: "listeners", ident.RDS: "routes",
	ident.SDS: "secrets", ident.NDS: "names",
}

// writeXDS writes a file for each type: a list of its resources, as proxy-config prints them.
func writeXDS(dir string, content *store.Snapshot, to *proxy.Proxy) error {
	served, err := command.ServedOf(content, to)
	if err != nil {
		return err
	}
	for t := range ident.ResourceTypes {
		all := []json.RawMessage{}
		for _, r := range served.Sets[t].Resources {
			_, b, err := command.Resource(t, r)
			if err != nil {
				return err
			}
			all = append(all, b)
		}
		var b bytes.Buffer
		e := json.NewEncoder(&b)
		e.SetIndent("", "  ")
		e.SetEscapeHTML(false)
		if err := e.Encode(all); err != nil {
			return err
		}
		if err := os.WriteFile(filepath.Join(dir, files[t]+".json"), b.Bytes(), 0o600); err != nil {
			return err
		}
	}
	return nil
}
