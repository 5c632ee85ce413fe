package cli

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	"github.com/spf13/cobra"
	"google.golang.org/protobuf/proto"

	"meshlog.dev/proto/ident"
	reportv1 "meshlog.dev/proto/meshlog/report/v1"
	"meshlog.dev/services/internal/bus"
	"meshlog.dev/services/internal/process"
	"meshlog.dev/services/mesh/proxy"
	"meshlog.dev/services/mesh/world"
	"meshlog.dev/services/mesh/xds"
	"meshlog.dev/services/operate/past"
)

// configView is what one stream of a proxy has, or what a proxy would have.
type configView struct {
	Proxy    string       `json:"proxy"`
	Frontend string       `json:"frontend,omitempty"` // absent: it would have it
	Stream   string       `json:"stream,omitempty"`
	Version  string       `json:"version"`
	Types    []configType `json:"types"`

	otherBuild string // of the frontend
}

// configType is what it has of one type.
type configType struct {
	Type string `json:"type"` // CDS, EDS, ...
	// NotAsked is how many resources there are that it has not asked for.
	NotAsked  int              `json:"notAsked,omitempty"`
	Resources []configResource `json:"resources"`
}

// configResource is one resource.
type configResource struct {
	Name string `json:"name"`
	// State is one of the states; absent where it would have it.
	State  string          `json:"state,omitempty"`
	Sum    string          `json:"sum,omitempty"` // of what it should have
	Sent   string          `json:"sent,omitempty"`
	Config json.RawMessage `json:"config,omitempty"` // what it should have
	// Unreadable says why there is no config.
	Unreadable string `json:"unreadable,omitempty"`

	message proto.Message
}

// The states of a resource.
const (
	stateAcked       = "ACKED"       // it has what it should have
	stateSent        = "SENT"        // it was sent that, and has not answered
	stateStale       = "STALE"       // it has another, and is to be sent this
	stateHeldBack    = "HELD BACK"   // it rejected this
	stateQuarantined = "QUARANTINED" // proxies like it rejected it: it has an older one, or none
	stateLingering   = "LINGERING"   // gone, and stays until nothing there uses it
	stateAbsent      = "ABSENT"      // it asks for it, and there is none
	stateDiffers     = "DIFFERS"     // it has another, and nothing says why
)

const stateHelp = `  ACKED        it has what it should have
  SENT         it was sent that, and has not answered yet
  STALE        it has another, and is about to be sent this
  HELD BACK    it rejected this, and keeps what it had
  QUARANTINED  proxies like it rejected it: it has what was before, or nothing
  LINGERING    it is gone, and stays until nothing in the proxy uses it
  ABSENT       it asks for it, and there is none
  DIFFERS      it has another and nothing says why: report that as a bug`

func proxyConfigCommand() *cobra.Command {
	var version, nodeFile string
	cmd := &cobra.Command{
		Use: "proxy-config [PROXY] [clusters|endpoints|listeners|routes] [NAME]", Aliases: []string{"pc"}, Args: args(0, 3, ""),
		Short: "Shows what the control plane holds for a proxy",
		Long: `Shows what a proxy has: its resources are made anew from the version that its
frontend serves, and each is compared with what the frontend has sent.

` + stateHelp + `

Without a type it counts them; with one it lists them; with the name of a resource,
or a part of it, only those; with -o json or yaml they are shown whole.

With --version it shows what the proxy would have at that version. With --node, a
file with Envoy's bootstrap or its node, the proxy need not be connected, and a data
directory that nothing runs on, or an archive, will do.

` + momentForms,
		Example: `  meshlog proxy-config --data data/ edge-1
  meshlog proxy-config --data data/ edge-1 clusters
  meshlog proxy-config --data data/ edge-1 routes 80 -o yaml
  meshlog proxy-config --data data/ edge-1 endpoints --version "10m ago"
  meshlog proxy-config --archive mesh.archive --node envoy.yaml listeners`,
	}
	t := pastFlags(cmd)
	format := outputFlag(cmd)
	cmd.Flags().StringVar(&version, "version", "", "what it would have at this `version`")
	cmd.Flags().StringVar(&nodeFile, "node", "", "`file` with Envoy's bootstrap, or its node: what such a proxy would have")
	cmd.RunE = func(cmd *cobra.Command, args []string) (err error) {
		defer func() { err = errors.Join(err, t.close()) }()
		out, err := newOutput(cmd, *format)
		if err != nil {
			return err
		}
		q, err := parseConfigQuery(args, nodeFile)
		if err != nil {
			return err
		}
		p, err := t.past(cmd)
		if err != nil {
			return err
		}
		views, err := q.run(cmd, t, p, version)
		if err != nil {
			return err
		}
		for i := range views {
			if err := views[i].keep(q.types, q.name, out.format != "table"); err != nil {
				return err
			}
		}
		return out.print(views, func() error { return showConfigs(views, q.types != nil, out) })
	}
	return cmd
}

// configQuery is what somebody wants to see.
type configQuery struct {
	proxy string
	file  string // with the node
	types *ident.ResourceType
	name  string
}

func parseConfigQuery(args []string, file string) (configQuery, error) {
	q := configQuery{file: file}
	if file != "" && len(args) > 0 {
		// The id may be left out where the file has one.
		if _, err := typeArgument(args[0]); err != nil {
			q.proxy, args = args[0], args[1:]
		}
	} else if len(args) > 0 {
		q.proxy, args = args[0], args[1:]
	}
	if q.proxy == "" && file == "" {
		return q, usage("PROXY is missing: give its id, which `meshlog proxy-status` lists, or --node FILE")
	}
	if len(args) > 0 {
		t, err := typeArgument(args[0])
		if err != nil {
			return q, err
		}
		q.types, args = &t, args[1:]
	}
	if len(args) > 0 {
		q.name, args = args[0], args[1:]
	}
	if len(args) > 0 {
		return q, usage("unexpected argument %q", args[0])
	}
	return q, nil
}

// run is what the proxy has or, at a version or of a node in a file, would have.
func (q *configQuery) run(cmd *cobra.Command, t *target, p *past.Past, version string) ([]configView, error) {
	ctx := cmd.Context()
	if q.file == "" && version == "" {
		replies, builds, err := q.ask(cmd, t, p)
		if err != nil {
			return nil, err
		}
		own, err := process.Build()
		if err != nil {
			return nil, err
		}
		var views []configView
		for _, r := range replies {
			v, err := compareReply(ctx, p, r)
			if err != nil {
				return nil, err
			}
			if b := builds[r.GetFrontend()]; b != own {
				v.otherBuild = b
			}
			views = append(views, v)
		}
		return views, nil
	}
	proxy, err := q.find(cmd, t, p)
	if err != nil {
		return nil, err
	}
	m, err := findMoment(ctx, p, cmp.Or(version, latest), time.Now())
	if err != nil {
		return nil, err
	}
	w, err := past.World(ctx, p, m.Version)
	if err != nil {
		return nil, err
	}
	return []configView{wouldHave(w, proxy, m.Version)}, nil
}

// find is the proxy of the file or, as a frontend knows it, that of the id.
func (q *configQuery) find(cmd *cobra.Command, t *target, p *past.Past) (*proxy.Proxy, error) {
	if q.file != "" {
		node, err := readNode(q.file, q.proxy)
		if err != nil {
			return nil, err
		}
		return proxy.NewProxy(node)
	}
	replies, _, err := q.ask(cmd, t, p)
	if err != nil {
		return nil, err
	}
	return proxyOf(replies[0])
}

func proxyOf(r *reportv1.ProxyReply) (*proxy.Proxy, error) {
	node := new(corev3.Node)
	if err := proto.Unmarshal(r.GetNode(), node); err != nil {
		return nil, fmt.Errorf("node of %s: %w", r.GetReport().GetId(), err)
	}
	return proxy.NewProxy(node)
}

// ask asks all frontends for the proxy, and says of which build they are.
func (q *configQuery) ask(cmd *cobra.Command, t *target, p *past.Past) ([]*reportv1.ProxyReply, map[string]string, error) {
	if !p.Live {
		return nil, nil, usage("%s: no proxy is connected there; give --node FILE with its bootstrap", p.Name)
	}
	fleet := t.fleet(t.nc)
	reports, err := fleet.Reports(cmd.Context(), bus.Summary)
	if err != nil {
		return nil, nil, err
	}
	warnSilent(cmd.ErrOrStderr(), reports.Silent, time.Now())
	var frontends []string
	builds := map[string]string{}
	for _, f := range reports.Frontends {
		frontends = append(frontends, f.GetFrontend())
		builds[f.GetFrontend()] = f.GetBuild()
	}
	if len(frontends) == 0 {
		return nil, nil, errNoFrontend
	}
	replies, err := fleet.Proxy(cmd.Context(), q.proxy, frontends)
	if err == nil && len(replies) == 0 {
		err = notFound("proxy %q: is connected to none of: %s; `meshlog proxy-status` lists those that are", q.proxy, strings.Join(frontends, ", "))
	}
	return replies, builds, err
}

// wouldHave is everything that a proxy would be served, whether it asks or not.
func wouldHave(w *world.World, p *proxy.Proxy, at ident.Position) configView {
	v := configView{Proxy: p.ID, Version: at.String(), Types: []configType{}}
	served := servedTo(w, p)
	for t := range ident.ResourceTypes {
		c := configType{Type: t.String(), Resources: []configResource{}}
		for _, r := range served.sets[t].Resources {
			of := shouldHave(t, r)
			if slices.Contains(served.quarantined[t], r.Name) {
				of.State = stateQuarantined
			}
			c.Resources = append(c.Resources, of)
		}
		v.Types = append(v.Types, c)
	}
	return v
}

// keep leaves the resources of one type whose name is, or else contains, name.
// Without whole nothing is kept but what a table shows.
func (v *configView) keep(only *ident.ResourceType, name string, whole bool) error {
	if only != nil {
		v.Types = slices.DeleteFunc(v.Types, func(t configType) bool { return t.Type != only.String() })
		if len(v.Types) == 0 {
			return notFound("proxy %q: has not asked for %s on this stream", v.Proxy, only)
		}
	}
	found := false
	for i := range v.Types {
		t := &v.Types[i]
		is := func(r configResource) bool { return r.Name == name }
		if !slices.ContainsFunc(t.Resources, is) {
			is = func(r configResource) bool { return strings.Contains(r.Name, name) }
		}
		t.Resources = slices.DeleteFunc(t.Resources, func(r configResource) bool { return !is(r) })
		found = found || len(t.Resources) > 0
		for k := range t.Resources {
			if !whole {
				t.Resources[k].Config = nil
			}
		}
	}
	if name != "" && !found {
		return notFound("proxy %q: has no resource of %s whose name contains %q", v.Proxy, v.Types[0].Type, name)
	}
	return nil
}

// shouldHave is a resource as it is served; nil: there is none.
func shouldHave(t ident.ResourceType, r *xds.Resource) configResource {
	c := configResource{Name: r.Name, Sum: r.Sum.String()}
	var err error
	if c.message, err = resourceMessage(t, r); err == nil {
		c.Config, err = resourceDocument(t, r)
	}
	if err != nil {
		c.Unreadable = err.Error()
	}
	return c
}
