package serve

import (
	"context"
	"fmt"
	"net"
	"strings"

	"github.com/spf13/cobra"

	"meshlog.dev/proto/ident"
	"meshlog.dev/services/operate/command"
	"meshlog.dev/services/operate/past"
)

// listen is the default of --listen: a free port of loopback.
const listen = "127.0.0.1:0"

// view is a frontend that serves.
type view struct {
	Version ident.Position `json:"version"`
	Address string         `json:"address"`
	// Identifier is that of the control plane in each response, and begins each version_info.
	Identifier string `json:"identifier"`
	Objects    int    `json:"objects"`
	Published  bool   `json:"published"` // else the log made it, and no proxy was ever served it
	Bootstrap  string `json:"bootstrap"` // of an Envoy, without its node's particulars
}

// Serve returns the command `serve`.
func Serve() *cobra.Command {
	cmd := &cobra.Command{
		Use: "serve --at VERSION", Short: "Serve the past to a debug Envoy", Args: command.Args(0, 0, ""),
		Long: `Serve the configuration of an earlier version by xDS, for an Envoy on this machine or
for anything else that speaks xDS, until the command is interrupted. It changes nothing:
the mesh need not run, --data and --archive are enough.

Nothing that is served can be mistaken for the present: version_info and the versions of
resources begin with past:VERSION-, and the control plane's identifier is past:VERSION.
The command serves no proxy of the mesh, and reports nothing to it.

Private keys are on no log, so no Secret with a key is served. An Envoy that asks for one
is told that there is none (delta), or waits until its timeout of 15 s. It takes all else: it
keeps the port of a listener closed that needs the Secret, and refuses connections to a
cluster that does.

The port is not encrypted and asks no client who it is: anyone who can connect to it can
read the configuration. By default it is on loopback.

` + command.MomentForms + `
Any position of the log is a VERSION here, published or not.`,
		Example: `  meshlog serve --data data/ --at latest~1
  meshlog serve --archive incident.archive --at "14:02" --listen 127.0.0.1:15099
  meshlog serve --data data/ --at .27 -o json`,
	}
	at := cmd.Flags().String("at", "", "serve this `version` (required)")
	addr := cmd.Flags().String("listen", listen, "`address` for xDS; port 0 takes a free one")
	return command.Past(cmd, func(ctx context.Context, e *command.Env, _ []string) error {
		if *at == "" {
			return command.Usage("--at is missing: give a version or a time")
		}
		p, err := e.Past(ctx)
		if err != nil {
			return err
		}
		m, err := command.FindMoment(ctx, p, *at)
		if err != nil {
			return err
		}
		content, err := past.At(ctx, p, m.Version)
		if err != nil {
			return err
		}
		f, err := Start(ctx, m.Version, content, *addr)
		if err != nil {
			return err
		}
		over, _, _ := past.Layers(content.Snapshot) // an overlay that this build cannot read counts no objects
		v := &view{
			Version: m.Version, Address: f.Address, Identifier: Name(m.Version),
			Objects: len(over), Published: m.Manifest != nil, Bootstrap: Bootstrap(f.Address),
		}
		e.Print(v, func() { v.show(e.Output) })
		if host, _, err := net.SplitHostPort(f.Address); err == nil && !net.ParseIP(host).IsLoopback() {
			fmt.Fprintf(e.Stderr, "Warning: %s is not on loopback; anyone who can connect to it can read this configuration.\n", f.Address)
		}
		if err := e.Err(); err != nil {
			_ = f.Close() // the output failed first
			return err
		}
		if err := f.Wait(ctx); err != nil {
			return err
		}
		return f.Close()
	})
}

func (v *view) show(out *command.Output) {
	what := command.Plural(v.Objects, "object", "objects")
	if !v.Published {
		what += ", never published"
	}
	out.Line("Serving %s (%s) on %s, without private keys.", v.Version, what, v.Address)
	out.Line("Every version_info begins with %s-. Start an Envoy on it, with the node of the proxy in question:\n", v.Identifier)
	for line := range strings.Lines(v.Bootstrap) {
		out.Line("  %s", strings.TrimSuffix(line, "\n"))
	}
}

// Bootstrap returns a bootstrap of an Envoy that has all of its configuration from an address.
func Bootstrap(address string) string {
	host, port, err := net.SplitHostPort(address)
	if err != nil {
		return ""
	}
	if ip := net.ParseIP(host); ip != nil && ip.IsUnspecified() {
		host = "127.0.0.1"
	}
	return strings.NewReplacer("HOST", host, "PORT", port).Replace(bootstrap)
}

const bootstrap = `node: {id: debug, cluster: debug}
admin: {address: {socket_address: {address: 127.0.0.1, port_value: 0}}}
dynamic_resources:
  ads_config:
    api_type: DELTA_GRPC
    transport_api_version: V3
    grpc_services: [{envoy_grpc: {cluster_name: meshlog-past}}]
  cds_config: {ads: {}, resource_api_version: V3}
  lds_config: {ads: {}, resource_api_version: V3}
static_resources:
  clusters:
  - name: meshlog-past
    type: STATIC
    load_assignment:
      cluster_name: meshlog-past
      endpoints: [{lb_endpoints: [{endpoint: {address: {socket_address: {address: HOST, port_value: PORT}}}}]}]
    typed_extension_protocol_options:
      envoy.extensions.upstreams.http.v3.HttpProtocolOptions:
        "@type": type.googleapis.com/envoy.extensions.upstreams.http.v3.HttpProtocolOptions
        explicit_http_config: {http2_protocol_options: {}}
`
