package inspect

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"strings"

	"github.com/spf13/cobra"
	"google.golang.org/protobuf/proto"

	"meshlog.dev/proto/ident"
	reportv1 "meshlog.dev/proto/meshlog/report/v1"
	"meshlog.dev/services/internal/process"
	"meshlog.dev/services/mesh/xds"
	"meshlog.dev/services/operate/command"
	"meshlog.dev/services/operate/past"
	"meshlog.dev/store"
)

// ConfigView holds the resources that a stream of a proxy has, or that a proxy
// would have.
type ConfigView struct {
	Proxy    string         `json:"proxy"`
	Frontend string         `json:"frontend,omitempty"` // absent: it would have it
	Stream   string         `json:"stream,omitempty"`
	Version  ident.Position `json:"version"`
	Types    []configType   `json:"types"`

	otherBuild string // of the frontend, if it differs
}

// configType is one type of the configuration.
type configType struct {
	Type      string           `json:"type"`               // CDS, EDS, ...
	NotAsked  int              `json:"notAsked,omitempty"` // resources that it has not asked for
	Resources []configResource `json:"resources"`
}

// configResource is one resource.
type configResource struct {
	Name       string          `json:"name"`
	State      string          `json:"state,omitempty"` // absent: the proxy would have it
	Sum        string          `json:"sum,omitempty"`   // of the content that it should have
	Sent       string          `json:"sent,omitempty"`
	Config     json.RawMessage `json:"config,omitempty"`     // that it should have
	Unreadable string          `json:"unreadable,omitempty"` // why config is absent

	message proto.Message
}

// The states of a resource, in the order in which they are counted; stateHelp
// explains them.
const (
	stateAcked       = "ACKED"
	stateSent        = "SENT"
	stateStale       = "STALE"
	stateHeldBack    = "HELD BACK"
	stateQuarantined = "QUARANTINED"
	stateLingering   = "LINGERING"
	stateAbsent      = "ABSENT"
	stateDiffers     = "DIFFERS"
)

const stateHelp = `  ACKED        the proxy has acknowledged the current resource
  SENT         the current resource was sent, the proxy has not answered yet
  STALE        the proxy has another one, the current one is about to be sent
  HELD BACK    the proxy rejected the current one, and keeps the one before
  QUARANTINED  similar proxies rejected it: the proxy has the one before, or none
  LINGERING    it was removed, and stays until nothing in the proxy uses it
  ABSENT       the proxy asks for it, and it does not exist
  DIFFERS      the proxy has another one for no known reason: report it as a bug`

// ProxyConfig returns the command `proxy-config`.
func ProxyConfig() *cobra.Command {
	cmd := &cobra.Command{
		Use: "proxy-config [PROXY] [clusters|endpoints|listeners|routes] [NAME]", Aliases: []string{"pc"}, Args: command.Args(0, 3, ""),
		Short: "Show the configuration that the control plane holds for a proxy",
		Long: `Show the configuration of a proxy: the command makes its resources again from the
version that its frontend serves, and compares each with the one that the frontend
has sent.

` + stateHelp + `

Without a type it counts the resources; with a type it lists them; with the name of
a resource, or a part of the name, only the resources that match. -o json and yaml
print the resources in full.

With --version it shows the configuration at that version. With --node, a file with
Envoy's bootstrap or its node, the proxy need not be connected, and the mesh need
not run: --data and --archive are enough. The archive of
a mesh that ran also knows the proxies that were connected, by their names.

` + command.MomentForms,
		Example: `  meshlog proxy-config --data data/ edge-1
  meshlog proxy-config --data data/ edge-1 clusters
  meshlog proxy-config --data data/ edge-1 routes 80 -o yaml
  meshlog proxy-config --data data/ edge-1 endpoints --version "10m ago"
  meshlog proxy-config --archive mesh.archive --node envoy.yaml listeners`,
	}
	version := cmd.Flags().String("version", "", "show the configuration at this `version`")
	file := cmd.Flags().String("node", "", "`file` with Envoy's bootstrap, or its node: show the configuration of such a proxy")
	return command.Past(cmd, func(ctx context.Context, e *command.Env, args []string) error {
		q, err := parseQuery(args, *file)
		if err != nil {
			return err
		}
		p, err := e.Past(ctx)
		if err != nil {
			return err
		}
		var views []ConfigView
		if *file == "" && *version == "" && p.Nodes == nil {
			views, err = q.has(ctx, e.Target, p)
		} else {
			views, err = q.wouldHave(ctx, e.Target, p, cmp.Or(*version, command.Latest))
		}
		if err != nil {
			return err
		}
		for i := range views {
			if err := views[i].keep(q.only, q.name); err != nil {
				return err
			}
		}
		e.Print(views, func() { showConfigs(views, q.only != nil, e.Output) })
		return nil
	})
}

// configQuery is the proxy and the resources that the arguments name.
type configQuery struct {
	command.ProxyQuery
	only *ident.ResourceType // nil: all types
	name string
}

func parseQuery(args []string, file string) (q configQuery, err error) {
	if file != "" && len(args) > 0 && typeNamed(args[0]) != nil {
		args = slices.Insert(args, 0, "") // with a file the id is optional
	}
	if len(args) > 3 {
		return q, command.Usage("unexpected argument %q", args[3])
	}
	var words [3]string
	copy(words[:], args)
	q.ID, q.File, q.name = words[0], file, words[2]
	if q.ID == "" && file == "" {
		return q, command.Usage("PROXY is missing: give its id, which `meshlog proxy-status` lists, or --node FILE")
	}
	if q.only = typeNamed(words[1]); q.only == nil && words[1] != "" {
		return q, command.Usage("type %q: want clusters, endpoints, filters, listeners, names, routes or secrets", words[1])
	}
	return q, nil
}

// typeNames are the common names of the xDS types.
var typeNames = [ident.ResourceTypes][]string{
	ident.CDS:  {"cds", "cluster", "clusters"},
	ident.EDS:  {"eds", "endpoint", "endpoints", "clusterloadassignment", "clusterloadassignments"},
	ident.ECDS: {"ecds", "filter", "filters", "extensionconfigs", "typedextensionconfig"},
	ident.LDS:  {"lds", "listener", "listeners"},
	ident.RDS:  {"rds", "route", "routes", "routeconfiguration", "routeconfigurations"},
	ident.SDS:  {"sds", "secret", "secrets"},
	ident.NDS:  {"nds", "name", "names", "nametable"},
}

// typeNamed returns the type with a common name; nil if there is none.
func typeNamed(name string) *ident.ResourceType {
	for t := range ident.ResourceTypes {
		if slices.Contains(typeNames[t], strings.ToLower(name)) {
			return &t
		}
	}
	return nil
}

// has returns what each stream of the proxy has.
func (q *configQuery) has(ctx context.Context, t *command.Target, p *past.Past) (views []ConfigView, err error) {
	replies, builds, err := q.Ask(ctx, t, p)
	if err != nil {
		return nil, err
	}
	own, err := process.Build()
	if err != nil {
		return nil, err
	}
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

// wouldHave returns what the proxy would be served at a version if it asked for
// everything.
func (q *configQuery) wouldHave(ctx context.Context, t *command.Target, p *past.Past, version string) ([]ConfigView, error) {
	proxy, err := q.Find(ctx, t, p)
	if err != nil {
		return nil, err
	}
	m, err := command.FindMoment(ctx, p, version)
	if err != nil {
		return nil, err
	}
	served, err := command.ServedTo(ctx, p, m.Version, proxy)
	if err != nil {
		return nil, err
	}
	v := ConfigView{Proxy: proxy.ID, Version: m.Version, Types: []configType{}}
	for t := range ident.ResourceTypes {
		c := configType{Type: t.String(), Resources: []configResource{}}
		for _, r := range served.Sets[t].Resources {
			view := viewResource(t, r)
			if slices.Contains(served.Quarantined[t], r.Name) {
				view.State = stateQuarantined
			}
			c.Resources = append(c.Resources, view)
		}
		v.Types = append(v.Types, c)
	}
	return []ConfigView{v}, nil
}

// keep keeps the resources of type only (nil: all types) with this name or, if a
// type has none, whose names contain it.
func (v *ConfigView) keep(only *ident.ResourceType, name string) error {
	if only != nil {
		v.Types = slices.DeleteFunc(v.Types, func(t configType) bool { return t.Type != only.String() })
		if len(v.Types) == 0 {
			return command.NotFound("proxy %q: has not asked for %s on this stream", v.Proxy, only)
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
	}
	if name != "" && !found {
		return command.NotFound("proxy %q: has no resource of %s whose name contains %q", v.Proxy, v.Types[0].Type, name)
	}
	return nil
}

// viewResource returns a resource as it is served.
func viewResource(t ident.ResourceType, r *xds.Resource) configResource {
	c := configResource{Name: r.Name, Sum: r.Sum.String()}
	var err error
	if c.message, c.Config, err = command.Resource(t, r); err != nil {
		c.Unreadable = err.Error()
	}
	return c
}

// compareReply makes the resources that a proxy should have, and compares them
// with those that the stream has.
func compareReply(ctx context.Context, p *past.Past, r *reportv1.ProxyReply) (ConfigView, error) {
	at := store.VersionOf(r.GetVersion())
	v := ConfigView{
		Proxy: r.GetReport().GetId(), Frontend: r.GetFrontend(), Stream: streamName(r.GetReport()),
		Version: at, Types: []configType{},
	}
	if at.IsZero() || len(r.GetTypes()) == 0 {
		return v, nil // it has just connected, and asked for nothing yet
	}
	proxy, err := command.ProxyOf(r)
	if err != nil {
		return v, err
	}
	served, err := command.ServedTo(ctx, p, at, proxy)
	if err != nil {
		return v, fmt.Errorf("the version that %s serves: %w", r.GetFrontend(), err)
	}
	for _, c := range r.GetTypes() {
		t, ok := ident.ResourceTypeOf(c.GetTypeUrl())
		if !ok {
			continue // a type of a later version of meshlog
		}
		compared := typeComparison{t: t, should: served.Sets[t], quarantined: served.Quarantined[t]}
		compared.current = slices.ContainsFunc(r.GetReport().GetTypes(), func(t *reportv1.TypeReport) bool {
			return t.GetTypeUrl() == c.GetTypeUrl() && store.VersionOf(t.GetSent()) == at
		})
		v.Types = append(v.Types, compared.compare(c))
	}
	return v, nil
}

// typeComparison compares the resources of a type that a stream should have with
// those that it has.
type typeComparison struct {
	t           ident.ResourceType
	should      *xds.Set
	quarantined []string
	current     bool // the stream was sent everything up to the version
}

func (c *typeComparison) compare(content *reportv1.TypeContent) configType {
	view := configType{Type: c.t.String(), Resources: []configResource{}}
	has := map[string]*reportv1.ResourceContent{}
	for _, r := range content.GetResources() {
		has[r.GetName()] = r
	}
	for _, r := range c.should.Resources {
		h := has[r.Name]
		if h == nil && !content.GetWildcard() {
			view.NotAsked++
			continue
		}
		of := viewResource(c.t, r)
		of.State, of.Sent = c.state(r, h), fmt.Sprintf("%x", h.GetSum())
		view.Resources = append(view.Resources, of)
		delete(has, r.Name)
	}
	for name, h := range has {
		view.Resources = append(view.Resources, configResource{Name: name, State: c.state(nil, h), Sent: fmt.Sprintf("%x", h.GetSum())})
	}
	slices.SortFunc(view.Resources, func(a, b configResource) int { return strings.Compare(a.Name, b.Name) })
	return view
}

// state compares r, the resource that the stream should have, with h, what its
// frontend reports; nil: there is none.
func (c *typeComparison) state(r *xds.Resource, h *reportv1.ResourceContent) string {
	should := ""
	if r != nil {
		should = r.Sum.String()
	}
	has := h.GetSent() && fmt.Sprintf("%x", h.GetSum()) == should
	switch {
	case h.GetHeldBack():
		return stateHeldBack
	case h.GetLingering():
		return stateLingering
	case !has && !c.current:
		return stateStale
	case (has || r == nil) && slices.Contains(c.quarantined, h.GetName()):
		return stateQuarantined
	case !has:
		return stateDiffers
	case !h.GetApplied():
		return stateSent
	case r == nil:
		return stateAbsent
	}
	return stateAcked
}
