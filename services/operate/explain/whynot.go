package explain

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"net/url"
	"slices"
	"strconv"
	"strings"

	"github.com/spf13/cobra"

	"meshlog.dev/events"
	"meshlog.dev/proto/ident"
	"meshlog.dev/services/mesh/index"
	"meshlog.dev/services/mesh/simulate"
	"meshlog.dev/services/mesh/why"
	"meshlog.dev/services/operate/command"
	"meshlog.dev/services/operate/past"
)

// callView says where a call goes, or where it ends and what would change that.
type callView struct {
	Proxy   string           `json:"proxy"`
	Version ident.Position   `json:"version"`
	Call    string           `json:"call"`
	End     why.End          `json:"end"`
	Says    string           `json:"says"`
	Outcome simulate.Outcome `json:"outcome"`
	// Changes are each enough to let the call pass.
	Changes []changeView `json:"changes,omitempty"`
	// Makers are the objects without which the call would go or end elsewhere.
	Makers []thenView `json:"makers,omitempty"`
	// Hidden are services of the host that the proxy does not see.
	Hidden []objectView `json:"hidden,omitempty"`
	// Rejected are objects that name the host and whose newest value is refused.
	Rejected []objectView         `json:"rejected,omitempty"`
	Problems []command.Diagnostic `json:"problems,omitempty"`
}

type changeView struct {
	objectView
	Field string `json:"field,omitempty"` // to remove; absent: the whole object
	Value string `json:"value,omitempty"`
}

type thenView struct {
	objectView
	Then []string `json:"then"` // what the call would do without the object
	End  why.End  `json:"end"`
}

// WhyNot returns the command `why-not`.
func WhyNot() *cobra.Command {
	cmd := &cobra.Command{
		Use: "why-not [PROXY] HOST[:PORT] [PATH]", Short: "Show why a call of a proxy does not arrive, and which object to change",
		Args: command.Args(1, 3, "HOST"),
		Long: `Show where a call of a proxy goes, or where it ends, and which object to change.

The call is simulated through the configuration of the proxy; none is sent. If it ends,
the command looks for objects and fields without which it would pass, and shows the
record that carried each, its file and line or field manager, and when.

HOST may be https://HOST[:PORT]/PATH too. For a port that takes no requests, the call is a
connection to the service's address.

With --node, a file with Envoy's bootstrap or its node, the proxy need not be connected,
and the mesh need not run: --data and --archive are enough. The archive of
a mesh that ran also knows the proxies that were connected, by their names.

Exit code 1: the call does not pass, or the outcome is unknown. An answer of the proxy
below 400 passes.

` + command.MomentForms,
		Example: `  meshlog why-not edge-1 shop.example /items
  meshlog why-not cart-1 shop.shop.svc.cluster.local:8080 /items -H x-user=ann
  meshlog why-not --archive mesh.archive --node envoy.yaml https://shop.example/items`,
	}
	f := bindFlags(cmd)
	method := cmd.Flags().String("method", "GET", "`method` of the request")
	headers := cmd.Flags().StringArrayP("header", "H", nil, "header of the request, `NAME=VALUE`; may be repeated")
	from := cmd.Flags().String("from-ip", "", "the caller's `address`")
	return command.Past(cmd, func(ctx context.Context, e *command.Env, args []string) error {
		id, args, err := callerOf(f, args)
		if err != nil {
			return err
		}
		c, err := callOf(*method, args, *headers, *from)
		if err != nil {
			return err
		}
		g, err := f.open(ctx, e, id)
		if err != nil {
			return err
		}
		v, err := g.whyNot(ctx, c)
		if err != nil {
			return err
		}
		e.Print(v, func() { v.show(e.Output) })
		if v.End != why.Passes && (v.End != why.Answered || v.Outcome.Status >= 400) {
			return errors.New("the call does not pass")
		}
		return nil
	})
}

// callerOf takes PROXY from the arguments of `why-not`. With a file it may be missing: then a
// second argument is a path.
func callerOf(f *flags, args []string) (id string, rest []string, err error) {
	switch {
	case *f.node != "" && (len(args) == 1 || len(args) == 2 && strings.HasPrefix(args[1], "/")):
		return "", args, nil
	case len(args) == 1:
		return "", nil, command.Usage("HOST or PROXY is missing: give the id of the proxy, which `meshlog proxy-status` lists, or --node FILE")
	}
	return args[0], args[1:], nil
}

// callOf reads HOST[:PORT] [PATH], or a URL.
func callOf(method string, args, headers []string, from string) (simulate.Call, error) {
	c := simulate.Call{Method: strings.ToUpper(method), Headers: map[string][]string{}}
	text := args[0]
	if !strings.Contains(text, "://") {
		text = "http://" + text
	}
	u, err := url.Parse(text)
	if err != nil || u.Host == "" || u.Scheme != "http" && u.Scheme != "https" {
		return c, command.Usage("host %q: want HOST, HOST:PORT or https://HOST[:PORT]/PATH", args[0])
	}
	if c.Host, c.Path, c.Port = u.Host, u.RequestURI(), 80; u.Scheme == "https" {
		c.TLS, c.Port, c.ServerName = true, 443, u.Hostname()
	}
	if len(args) == 2 {
		if !strings.HasPrefix(args[1], "/") {
			return c, command.Usage("path %q: want /PATH", args[1])
		}
		c.Path = args[1]
	}
	if u.Port() != "" {
		n, err := strconv.ParseUint(u.Port(), 10, 16)
		if err != nil {
			return c, command.Usage("port %s: %w", u.Port(), err)
		}
		c.Port = uint32(n)
	}
	for _, h := range headers {
		name, value, ok := strings.Cut(h, "=")
		if !ok {
			return c, command.Usage("--header %q: want NAME=VALUE", h)
		}
		name = strings.ToLower(strings.TrimSpace(name))
		c.Headers[name] = append(c.Headers[name], value)
	}
	if from != "" {
		if c.From, err = netip.ParseAddr(from); err != nil {
			return c, command.Usage("--from-ip: %w", err)
		}
	}
	return c, nil
}

// connect makes a call a connection if the port of its service takes no requests.
func (g *ground) connect(c *simulate.Call) {
	pc := index.NewPushContext(g.world)
	class := index.Classify(pc, g.proxy)
	host, _, _ := strings.Cut(c.Host, ":")
	s := pc.Read().ServiceByHost(class.LDS.Scope, host)
	if s == nil || len(s.Addresses) == 0 {
		return
	}
	if ip, err := netip.ParseAddr(s.In(class.LDS.Cluster).Addresses[0]); err == nil {
		c.Address = ip
	}
	if p, ok := s.Port(c.Port); ok && !p.Protocol.IsHTTP() && p.Protocol != index.Sniffed {
		c.TCP, c.Host, c.Method, c.Path, c.Headers = true, "", "", "", nil
	}
}

// whyNot answers a question about a call.
func (g *ground) whyNot(ctx context.Context, c simulate.Call) (*callView, error) {
	text := fmt.Sprintf("%s %s%s port %d", c.Method, c.Host, c.Path, c.Port)
	g.connect(&c)
	a, err := why.WhyNot(why.CallQuestion{World: g.world, Proxy: g.proxy, Call: c})
	if err != nil {
		return nil, err
	}
	v := &callView{Proxy: g.proxy.ID, Version: g.moment.Version, Call: text, End: a.End, Says: a.Says, Outcome: a.Outcome}
	var keys []ident.Key
	for _, x := range a.Changes {
		keys = append(keys, x.Key)
	}
	for _, x := range a.Makers {
		keys = append(keys, x.Key)
	}
	objects, err := g.objects(ctx, append(keys, a.Hidden...))
	if err != nil {
		return nil, err
	}
	for i, x := range a.Changes {
		v.Changes = append(v.Changes, changeView{objects[i], x.Field, x.Value})
	}
	objects = objects[len(a.Changes):]
	for i, x := range a.Makers {
		v.Makers = append(v.Makers, thenView{objects[i], x.Then, x.End})
	}
	v.Hidden = objects[len(a.Makers):]
	if v.Rejected, err = g.rejected(ctx, a.Hosts); err != nil {
		return nil, err
	}
	for _, d := range a.Problems {
		p := command.Diagnostic{Severity: d.Severity.String(), Code: d.Code, Object: d.Key.String(), Origin: d.Origin, Field: d.Field, Reason: d.Reason, Advice: d.Advice, Effect: d.Effect}
		if d.Key == (ident.Key{}) {
			p.Object = d.Resource
		}
		if !slices.Contains(v.Problems, p) {
			v.Problems = append(v.Problems, p)
		}
	}
	return v, nil
}

// rejected returns the objects that name a host and whose newest value is refused. The
// content has no such value, so the log is read backwards.
func (g *ground) rejected(ctx context.Context, hosts []string) (all []objectView, err error) {
	missing := map[string][]command.Diagnostic{}
	for _, d := range g.problems {
		if d.Severity == "error" && d.Object != "" {
			missing[d.Object] = append(missing[d.Object], d)
		}
	}
	if len(missing) == 0 || g.past.Log == nil {
		return nil, nil
	}
	err = past.Backwards(ctx, g.past, g.moment.Version.Seq, func(r events.Record) bool {
		o, ok := r.Event.Body.(*events.Object)
		if !ok || o.Op != events.Put {
			return true
		}
		problems, is := missing[o.Key.String()]
		if !is {
			return true
		}
		delete(missing, o.Key.String())
		if why.Mentions(hosts, o.Key, o.Value) {
			all = append(all, objectView{Object: o.Key.String(), Key: past.Key(o.Key), Record: viewRecord(r), Problems: problems})
		}
		return len(missing) > 0
	})
	return all, err
}

func (v *callView) show(out *command.Output) {
	out.Line("%s by %s at %s", v.Call, v.Proxy, v.Version)
	for _, line := range v.Outcome.Lines() {
		out.Line("  %s", line)
	}
	color := command.Red
	if v.End == why.Passes {
		color = command.Green
	}
	out.Line("\n%s", out.Paint(v.Says, color))
	section := func(title string, n int, add func(t *command.Rows, i int)) {
		if n == 0 {
			return
		}
		out.Line("\n%s", title)
		t := objectRows()
		for i := range n {
			add(&t, i)
		}
		out.Rows(&t)
	}
	section("The host is that of:", len(v.Hidden), func(t *command.Rows, i int) { v.Hidden[i].add(t) })
	section("A newer value is refused:", len(v.Rejected), func(t *command.Rows, i int) { v.Rejected[i].add(t) })
	section("It would pass without one of these:", len(v.Changes), func(t *command.Rows, i int) {
		c := &v.Changes[i]
		c.add(t)
		if c.Field != "" {
			t.Note(strings.TrimSuffix(c.Field+": "+c.Value, ": "))
		}
	})
	section("What decides where it goes:", len(v.Makers), func(t *command.Rows, i int) {
		m := &v.Makers[i]
		m.add(t)
		t.Note("without it: " + strings.Join(m.Then, "; "))
	})
	if len(v.Problems) > 0 {
		out.Line("\nReported about these objects:")
	}
	for _, d := range v.Problems {
		d.Show(out)
	}
}
