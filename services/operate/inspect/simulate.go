package inspect

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/netip"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"meshlog.dev/proto/ident"
	"meshlog.dev/services/mesh/simulate"
	"meshlog.dev/services/mesh/simulate/rbac"
	"meshlog.dev/services/mesh/spiffe"
	"meshlog.dev/services/operate/command"
)

// callView is a simulated call.
type callView struct {
	Proxy   string           `json:"proxy"`
	Version ident.Position   `json:"version"`
	Outcome simulate.Outcome `json:"outcome"`
	// Servers are the workloads that the call may reach, as their sidecars see it.
	Servers []serverView `json:"servers,omitempty"`
}

// Simulate returns the command `simulate`.
func Simulate() *cobra.Command {
	cmd := &cobra.Command{
		Use: "simulate [PROXY] METHOD URL", Args: command.Args(2, 3, "METHOD or URL"),
		Short: "Show what a proxy would do with a request or a connection",
		Long: `Show what a proxy would do with a request: the listener and the route that take it,
whether policies allow it and by which rule, and the endpoints that it can reach. No
request is sent. With the word tcp for METHOD and ADDRESS:PORT for the URL, it is a
connection of which the proxy cannot see requests.

The call is one that the proxy forwards; a router takes it from its clients. It is
followed to the sidecars of the workloads that it may reach, with the identity that the
proxy shows them: those that are connected, or that of --server-node. With --inbound the
call is one for the workload of PROXY, and the port of the URL is that of the workload.

A rule that looks at something the flags do not say, such as the address of the
caller, makes the outcome unknown: the command says so, and does not count the call as
allowed.

With --version the proxy has the configuration of that version. With --node, a file
with Envoy's bootstrap or its node, the proxy need not be connected, and the mesh need
not run: --data and --archive are enough. The archive of
a mesh that ran also knows the proxies that were connected, by their names.

Exit code 1: policies or the listener refuse the call, or the outcome is unknown.

` + command.MomentForms,
		Example: `  meshlog simulate edge-1 GET http://shop.example/items
  meshlog simulate edge-1 GET http://shop.example/items --claims '{"iss": "https://a.example"}'
  meshlog simulate cart-1 GET http://cart.shop:8080/ --inbound \\
    --from spiffe://cluster.local/ns/shop/sa/web
  meshlog simulate cart-1 tcp 10.1.0.7:9000 --inbound --from-ip 10.1.0.9
  meshlog simulate --archive mesh.archive --node envoy.yaml GET http://cart.shop/`,
	}
	version := cmd.Flags().String("version", "", "simulate with the configuration at this `version`")
	file := cmd.Flags().String("node", "", "`file` with Envoy's bootstrap, or its node: simulate such a proxy")
	server := cmd.Flags().String("server-node", "", "`file` as for --node, of the sidecar of the workload that is called")
	flags := bindCall(cmd.Flags())
	return command.Past(cmd, func(ctx context.Context, e *command.Env, args []string) error {
		q := command.ProxyQuery{File: *file}
		if len(args) == 3 {
			q.ID, args = args[0], args[1:]
		}
		if q.ID == "" && q.File == "" {
			return command.Usage("PROXY is missing: give its id, which `meshlog proxy-status` lists, or --node FILE")
		}
		c, err := flags.call(args[0], args[1])
		if err != nil {
			return err
		}
		p, err := e.Past(ctx)
		if err != nil {
			return err
		}
		proxy, err := q.Find(ctx, e.Target, p)
		if err != nil {
			return err
		}
		m, err := command.FindMoment(ctx, p, cmp.Or(*version, command.Latest))
		if err != nil {
			return err
		}
		served, err := command.ServedTo(ctx, p, m.Version, proxy)
		if err != nil {
			return err
		}
		simulated, err := simulate.NewProxy(served.Sets)
		if err != nil {
			return err
		}
		v := callView{Proxy: proxy.ID, Version: m.Version, Outcome: simulated.Call(c)}
		if !c.Inbound && v.failure() == nil {
			s := servers{Env: e, past: p, at: m.Version, proxy: proxy, file: *server}
			if v.Servers, err = s.follow(ctx, simulated, v.Outcome, served.TrustDomain); err != nil {
				return err
			}
		}
		e.Print(v, func() { v.show(e.Output) })
		return v.failure()
	})
}

func (v *callView) show(out *command.Output) {
	for _, line := range v.Outcome.Lines() {
		out.Line("%s", line)
	}
	for i := range v.Servers {
		v.Servers[i].show(out)
	}
}

// failure returns the error for a call that does not pass.
func (v *callView) failure() error {
	switch o := v.Outcome; {
	case o.Unknown != "":
		return errors.New("the outcome is unknown")
	case o.Refused, o.Closed:
		return errors.New("the call is refused")
	}
	for i := range v.Servers {
		if why := v.Servers[i].failure(); why == "refused" {
			return fmt.Errorf("the call is refused at %s", v.Servers[i].Endpoint)
		} else if why != "" {
			return fmt.Errorf("the outcome at %s is unknown", v.Servers[i].Endpoint)
		}
	}
	return nil
}

// callFlags are the flags that describe a call.
type callFlags struct {
	inbound, tls          *bool
	from, fromIP, to, sni *string
	claims, forged        *string
	alpn, headers         *[]string
}

func bindCall(f *pflag.FlagSet) *callFlags {
	return &callFlags{
		inbound: f.Bool("inbound", false, "the call is for the workload of the proxy"),
		from:    f.String("from", "", "the caller has a certificate of the mesh with this `identity`, such as spiffe://cluster.local/ns/shop/sa/web, and uses TLS"),
		fromIP:  f.String("from-ip", "", "the caller's `address`"),
		to:      f.String("to", "", "the destination `address` of the connection, as the proxy sees it; for tcp it is that of ADDRESS:PORT"),
		tls:     f.Bool("tls", false, "the caller uses TLS, without a certificate; an https URL says so, too"),
		sni:     f.String("sni", "", "the server `name` in the handshake (default the host of the URL)"),
		alpn:    f.StringSlice("alpn", nil, "the `protocols` that the caller offers in the handshake (default for --from: those of a sidecar)"),
		headers: f.StringArray("header", nil, "a `NAME: VALUE` of the request; may be repeated"),
		claims:  f.String("claims", "", "the request has a valid bearer token with these claims, a `JSON` object; no signature is checked"),
		forged:  f.String("forged-claims", "", "as --claims (`JSON`), and the token's signature is wrong or it has ended"),
	}
}

// call returns the call that the arguments and flags describe.
func (f *callFlags) call(method, target string) (c simulate.Call, err error) {
	c = simulate.Call{
		Inbound: *f.inbound, TLS: *f.tls || *f.from != "" || *f.sni != "", ServerName: *f.sni, ALPN: *f.alpn,
		Headers: map[string][]string{},
	}
	if *f.from != "" {
		if _, err := spiffe.Parse(*f.from); err != nil {
			return c, command.Usage("--from: %w", err)
		}
		c.Certificate = rbac.CertificateOf(*f.from)
	}
	if err := destination(&c, method, target); err != nil {
		return c, err
	}
	if err := addressOf("--from-ip", *f.fromIP, &c.From); err != nil {
		return c, err
	}
	if err := addressOf("--to", *f.to, &c.Address); err != nil {
		return c, err
	}
	c.Now = time.Now() // of tokens in headers and the query
	for _, h := range *f.headers {
		name, value, ok := strings.Cut(h, ":")
		if !ok {
			return c, command.Usage("--header %q: want NAME: VALUE", h)
		}
		name = strings.ToLower(strings.TrimSpace(name))
		c.Headers[name] = append(c.Headers[name], strings.TrimSpace(value))
	}
	if *f.claims != "" && *f.forged != "" {
		return c, command.Usage("--claims and --forged-claims exclude each other")
	}
	if text := cmp.Or(*f.claims, *f.forged); text != "" {
		c.Token = &simulate.Token{Invalid: *f.forged != ""}
		if err := json.Unmarshal([]byte(text), &c.Token.Claims); err != nil || c.Token.Claims == nil {
			return c, command.Usage("--claims: want an object of JSON, such as {\"iss\": \"https://issuer.example\"}")
		}
	}
	if c.TCP && (len(*f.headers) > 0 || c.Token != nil) {
		return c, command.Usage("a connection of tcp has no headers and no token")
	}
	return c, nil
}

// addressOf reads the address that a flag names, if it names one.
func addressOf(flag, text string, into *netip.Addr) error {
	if text == "" {
		return nil
	}
	a, err := netip.ParseAddr(text)
	if err != nil {
		return command.Usage("%s: %w", flag, err)
	}
	*into = a
	return nil
}

// destination reads the method and the URL, or ADDRESS:PORT after tcp.
func destination(c *simulate.Call, method, target string) error {
	if strings.EqualFold(method, "tcp") {
		a, err := netip.ParseAddrPort(target)
		if err != nil {
			return command.Usage("tcp %s: want ADDRESS:PORT", target)
		}
		c.TCP, c.Address, c.Port = true, a.Addr(), uint32(a.Port())
		return nil
	}
	return command.ReadURL(c, method, target)
}
