package inspect

import (
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"slices"
	"strings"

	"github.com/spf13/cobra"
	"golang.org/x/sync/errgroup"
	security "istio.io/api/security/v1beta1"
	typev1beta1 "istio.io/api/type/v1beta1"

	"meshlog.dev/proto/ident"
	reportv1 "meshlog.dev/proto/meshlog/report/v1"
	"meshlog.dev/services/builder/ledger"
	"meshlog.dev/services/internal/bus"
	"meshlog.dev/services/mesh/document"
	"meshlog.dev/services/mesh/kind"
	"meshlog.dev/services/mesh/manifest"
	"meshlog.dev/services/mesh/problem"
	"meshlog.dev/services/mesh/proxy"
	"meshlog.dev/services/mesh/world"
	"meshlog.dev/services/operate/command"
)

// peersKind is the kind that decides the modes of ports.
const peersKind = "PeerAuthentication"

// unseen says what the control plane cannot know, so that an empty answer is not
// mistaken for a proof.
const unseen = `Not seen: clients that are no proxies of this mesh (probes, scrapers, jobs, curl), proxies
that are not connected now, calls that name the address of a workload instead of a service,
calls from other networks, and whether a client calls at all.`

// certsCheck returns the command `certs check`.
func certsCheck() *cobra.Command {
	cmd := &cobra.Command{
		Use: "check", Short: "List the clients that cannot call a port that is STRICT", Args: command.Args(0, 0, ""),
		Long: `List the connected proxies and gRPC clients that cannot call ports which are STRICT,
because they have no certificate of the mesh, or would send plain text all the same.
Run it before a port becomes STRICT: with -f the objects of a file are put over the
newest version, and the ports that become STRICT by them are checked. With --namespace,
and --selector, the same is done with a PeerAuthentication that makes these workloads
STRICT. Without any of them the ports that are STRICT now are checked. Nothing is
published.

A client is listed if the newest version gives it an endpoint of such a port; whether
it calls is not known. It has a certificate if its node names an agent, the socket of
SPIRE, files, or for gRPC a certificate provider.

` + unseen + `

Exit code 0: no connected client loses a port. 1: some do, or the command failed.`,
		Example: `  meshlog certs check --data data/ -f strict.yaml
  meshlog certs check --data data/ --namespace shop
  meshlog certs check --data data/ --namespace shop --selector app=cart -o json
  meshlog certs check --data data/`,
	}
	var q strictQuery
	f := cmd.Flags()
	f.StringVarP(&q.file, "file", "f", "", "`file` with the objects that are to be applied; - is standard input")
	f.StringVar(&q.namespace, "namespace", "", "check as if the workloads of this `namespace` were STRICT")
	f.StringToStringVar(&q.selector, "selector", nil, "only workloads of the namespace with these `labels`, such as app=cart")
	return command.Live(cmd, func(ctx context.Context, e *command.Env, _ []string) error {
		objects, err := q.objects(e.Stdin)
		if err != nil {
			return err
		}
		p, err := e.Past(ctx)
		if err != nil {
			return err
		}
		m, err := command.FindMoment(ctx, p, command.Latest)
		if err != nil {
			return err
		}
		content, err := m.Content(ctx, p)
		if err != nil {
			return err
		}
		now, err := ledger.World(content)
		if err != nil {
			return err
		}
		next, err := q.apply(now, objects)
		if err != nil {
			return err
		}
		proxies, err := connected(ctx, e)
		if err != nil {
			return err
		}
		check := strictCheck{Version: m.Version, Proxies: len(proxies), Unseen: unseen, hypothetical: len(objects) > 0}
		if err := check.run(now, next, proxies); err != nil {
			return err
		}
		e.Print(check, func() { check.show(e.Output) })
		if n := check.losing(); n > 0 {
			return fmt.Errorf("%s", command.Plural(n, "port refuses clients of the mesh", "ports refuse clients of the mesh"))
		}
		return nil
	})
}

// strictQuery is what the flags of `certs check` say.
type strictQuery struct {
	file, namespace string
	selector        map[string]string
}

// objects returns the objects that are to be applied; none: the mesh is checked as it is.
func (q *strictQuery) objects(stdin io.Reader) ([]world.Object, error) {
	switch {
	case q.file != "" && (q.namespace != "" || len(q.selector) > 0):
		return nil, command.Usage("--file and --namespace: give one of them")
	case len(q.selector) > 0 && q.namespace == "":
		return nil, command.Usage("--selector: needs --namespace, as a PeerAuthentication selects workloads of its own namespace")
	case q.file == "" && q.namespace == "":
		return nil, nil
	case q.file == "":
		m := &security.PeerAuthentication{Mtls: &security.PeerAuthentication_MutualTLS{Mode: security.PeerAuthentication_MutualTLS_STRICT}}
		if len(q.selector) > 0 {
			m.Selector = &typev1beta1.WorkloadSelector{MatchLabels: q.selector}
		}
		return []world.Object{{Key: ident.Key{Kind: peersKind, Namespace: q.namespace, Name: "certs-check"}, Message: m}}, nil
	}
	read := func() ([]byte, error) { return os.ReadFile(q.file) }
	if q.file == "-" {
		read = func() ([]byte, error) { return io.ReadAll(stdin) }
	}
	b, err := read()
	if err != nil {
		return nil, command.Usage("--file: %w", err)
	}
	var all []world.Object
	for _, d := range manifest.Parse(b) {
		o, bad := document.Read(&d)
		if bad == nil {
			if bad = firstError(o); bad != nil {
				bad.Line = document.FirstProblem(&d, o)
			}
		}
		if bad != nil {
			return nil, command.Usage("--file %s: %w", q.file, bad)
		}
		all = append(all, world.Object{
			Key: ident.Key{Kind: o.Kind.Name, Namespace: o.Namespace, Name: o.Name}, Created: d.Metadata.Created, Message: o.Message,
		})
	}
	if !slices.ContainsFunc(all, func(o world.Object) bool { return o.Key.Kind == peersKind }) {
		return nil, command.Usage("--file %s: it has no PeerAuthentication", q.file)
	}
	return all, nil
}

// firstError returns the first error of an object.
func firstError(o document.Object) *problem.Diagnostic {
	for _, d := range o.Kind.Validate(o.Namespace, o.Message) {
		if d.Severity == problem.Error {
			return &d
		}
	}
	return nil
}

// apply returns the world with the objects. One that exists is replaced in its source; the
// PeerAuthentication of the flags replaces those for the same workloads.
func (q *strictQuery) apply(w *world.World, objects []world.Object) (*world.World, error) {
	var rows []world.RowChange
	for _, o := range objects {
		if was := w.Winner(o.Key); was != nil {
			o.Key, o.Created = was.Key, was.Created
		} else {
			o.Key.Source, o.Key.Instance = "file", "default"
		}
		k, _ := kind.ByName(o.Key.Kind) // document.Read knows it
		b, err := k.Encode(o.Message)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", o.Key, err)
		}
		o.Value = ident.Value{Type: k.TypeOf(o.Message), Bytes: b, Created: o.Created}
		rows = append(rows, world.RowChange{Row: o.Key.Row(), Key: o.Key, Object: &o})
	}
	if q.namespace != "" {
		for o := range w.Objects(peersKind) {
			m, ok := o.Message.(*security.PeerAuthentication)
			if ok && o.Key.Namespace == q.namespace && maps.Equal(m.GetSelector().GetMatchLabels(), q.selector) {
				rows = append(rows, world.RowChange{Row: o.Key.Row(), Key: o.Key})
			}
		}
	}
	next, _, err := w.Apply(world.Change{Rows: rows})
	return next, err
}

// connected returns the proxies that are connected to frontends, without the agents
// beside them.
func connected(ctx context.Context, e *command.Env) ([]*proxy.Proxy, error) {
	fleet, err := e.Fleet()
	if err != nil {
		return nil, err
	}
	reports, err := fleet.Reports(ctx, bus.Proxies)
	if err != nil {
		return nil, err
	}
	e.WarnSilent(reports)
	if len(reports.Frontends) == 0 {
		return nil, command.ErrNoFrontend
	}
	var frontends []string
	ids := map[string]bool{}
	for _, f := range reports.Frontends {
		frontends = append(frontends, f.GetFrontend())
		for _, p := range f.GetProxies() {
			if !strings.HasSuffix(p.GetId(), proxy.AgentSuffix) {
				ids[p.GetId()] = true
			}
		}
	}
	return describe(ctx, slices.Sorted(maps.Keys(ids)), func(ctx context.Context, id string) ([]*reportv1.ProxyReply, error) {
		return fleet.Proxy(ctx, id, frontends)
	})
}

// askedAtOnce is the number of proxies for which frontends are asked at once.
const askedAtOnce = 16

// describe asks for proxies by their ids, and returns them in this order.
func describe(ctx context.Context, ids []string, ask func(context.Context, string) ([]*reportv1.ProxyReply, error)) ([]*proxy.Proxy, error) {
	found := make([]*proxy.Proxy, len(ids))
	g, ctx := errgroup.WithContext(ctx)
	g.SetLimit(askedAtOnce)
	for i, id := range ids {
		g.Go(func() error {
			replies, err := ask(ctx, id)
			if err != nil || len(replies) == 0 { // it has just disconnected
				return err
			}
			p, err := command.ProxyOf(replies[0])
			if err != nil {
				return errors.Join(fmt.Errorf("proxy %s", id), err)
			}
			if !p.WantsNames() {
				found[i] = p
			}
			return nil
		})
	}
	err := g.Wait()
	return slices.DeleteFunc(found, func(p *proxy.Proxy) bool { return p == nil }), err
}
