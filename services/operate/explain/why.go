package explain

import (
	"context"
	"encoding/json"
	"errors"
	"maps"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"meshlog.dev/proto/ident"
	"meshlog.dev/services/mesh/index"
	"meshlog.dev/services/mesh/why"
	"meshlog.dev/services/mesh/world"
	"meshlog.dev/services/mesh/xds"
	"meshlog.dev/services/operate/command"
)

// types are the words for types of resources, as `proxy-config` has them.
var types = map[string]ident.ResourceType{
	"cluster": ident.CDS, "endpoint": ident.EDS, "listener": ident.LDS, "route": ident.RDS, "filter": ident.ECDS, "secret": ident.SDS,
}

// Answer says why a proxy has a resource.
type Answer struct {
	Proxy    string          `json:"proxy"`
	Version  ident.Position  `json:"version"`
	Type     string          `json:"type"`
	Resource string          `json:"resource"`
	Field    string          `json:"field,omitempty"`
	Value    json.RawMessage `json:"value"`
	// Quarantine is what is served in place of the resource, or of a piece of it.
	Quarantine *overlayView `json:"quarantine,omitempty"`
	// Fields are the leaves of the value; absent if there are many.
	Fields []fieldView `json:"fields,omitempty"`
	Leaves int         `json:"leaves"`
	// Objects made the value. Read is the number of further objects that generation read.
	Objects []makerView `json:"objects"`
	Read    int         `json:"read"`
}

type fieldView struct {
	Path  string          `json:"path"`
	Value json.RawMessage `json:"value"`
	Set   []setterView    `json:"set"` // none: meshlog's own default, or several objects
	// Several are fields of equal value of which each suffices.
	Several []setterView `json:"several,omitempty"`
	// IsName: the value is the name of the resource.
	IsName bool `json:"isName,omitempty"`
	// Within is the innermost field around a default that an object brought, and Brought what
	// in the object did.
	Within  string       `json:"within,omitempty"`
	Brought []setterView `json:"brought,omitempty"`
}

type setterView struct {
	Object  string `json:"object,omitempty"` // absent: the proxy's node
	Field   string `json:"field"`
	Value   string `json:"value,omitempty"`
	Default bool   `json:"default,omitempty"` // the object does not set the field
}

type makerView struct {
	objectView
	Whole  bool     `json:"whole,omitempty"`  // without the object there is no such resource
	Fields []string `json:"fields,omitempty"` // that would differ without the object
}

// Why returns the command `why`.
func Why() *cobra.Command {
	cmd := &cobra.Command{
		Use: "why [PROXY] RESOURCE [FIELD]", Short: "Show which objects made a resource of a proxy, and which field set which",
		Args: command.Args(1, 3, "RESOURCE"),
		Long: `Show which objects made a resource of a proxy, or a field of it: for each field what set it,
and for each object the record that carried it, its file and line or field manager, and
when.

RESOURCE is cluster/NAME, endpoint/NAME, listener/NAME, route/NAME or filter/NAME, with
the names that ` + "`meshlog proxy-config`" + ` prints. FIELD is a path as ` + "`meshlog diff --proxy`" + `
prints it. An element of a list can be named by its name: virtual_hosts[shop.example:80].

The resource is made again without each object, and with other values in each of its
fields: what changes the field has set it. Nothing is sent to the proxy.

With --node, a file with Envoy's bootstrap or its node, the proxy need not be connected,
and the mesh need not run: --data and --archive are enough. The archive of
a mesh that ran also knows the proxies that were connected, by their names.

` + command.MomentForms,
		Example: `  meshlog why edge-1 'cluster/outbound|80||shop.example'
  meshlog why edge-1 'cluster/outbound|80||shop.example' connect_timeout
  meshlog why edge-1 route/http.80 'virtual_hosts[shop.example:80].routes[0].route.timeout'
  meshlog why edge-1 'endpoint/outbound|80||shop.example' 'endpoints[0].lb_endpoints[0]' -o json
  meshlog why --archive mesh.archive --node envoy.yaml listener/0.0.0.0_80 --version "14:02"`,
	}
	f := bindFlags(cmd)
	return command.Past(cmd, func(ctx context.Context, e *command.Env, args []string) error {
		id, args, err := proxyOf(f, args)
		if err != nil {
			return err
		}
		t, name, err := resourceOf(args[0])
		if err != nil {
			return err
		}
		g, err := f.open(ctx, e, id)
		if err != nil {
			return err
		}
		q := why.Question{World: g.world, Proxy: g.proxy, Type: t, Resource: name}
		if len(args) == 2 {
			q.Field = args[1]
		}
		v, err := g.why(ctx, q)
		if err != nil {
			return err
		}
		e.Print(v, func() { v.show(e.Output) })
		return nil
	})
}

func bindFlags(cmd *cobra.Command) *flags {
	return &flags{
		version: cmd.Flags().String("version", "", "explain the configuration at this `version`"),
		node:    cmd.Flags().String("node", "", "`file` with Envoy's bootstrap, or its node: explain what such a proxy is served"),
	}
}

// proxyOf takes PROXY from the arguments of `why`, which may leave it out if there is a file.
func proxyOf(f *flags, args []string) (id string, rest []string, err error) {
	_, _, isResource := strings.Cut(args[0], "/")
	switch {
	case isResource && *f.node != "" && len(args) < 3:
		return "", args, nil
	case len(args) == 1:
		if isResource {
			return "", nil, command.Usage("PROXY is missing: give its id, which `meshlog proxy-status` lists, or --node FILE")
		}
		return "", nil, command.Usage("RESOURCE is missing: cluster/NAME, endpoint/NAME, listener/NAME, route/NAME or filter/NAME")
	}
	return args[0], args[1:], nil
}

// resourceOf reads TYPE/NAME.
func resourceOf(s string) (ident.ResourceType, string, error) {
	word, name, ok := strings.Cut(s, "/")
	t, known := types[strings.TrimSuffix(word, "s")]
	if !ok || !known || name == "" {
		return 0, "", command.Usage("resource %q: want cluster/NAME, endpoint/NAME, listener/NAME, route/NAME or filter/NAME", s)
	}
	return t, name, nil
}

// why answers a question.
func (g *ground) why(ctx context.Context, q why.Question) (*Answer, error) {
	a, err := why.Why(q)
	switch {
	case errors.Is(err, why.ErrNoResource):
		return nil, command.NotFound("%s has no %s %q at %s; `meshlog proxy-config` lists what it has", g.proxy.ID, q.Type.Message(), q.Resource, g.moment.Version)
	case errors.Is(err, why.ErrNoField):
		return nil, command.NotFound("%w", err)
	case err != nil:
		return nil, err
	}
	v := &Answer{
		Proxy: g.proxy.ID, Version: g.moment.Version, Type: q.Type.Message(), Resource: q.Resource,
		Field: a.Field, Value: json.RawMessage(a.Value), Leaves: a.Leaves, Read: a.Read, Objects: []makerView{},
	}
	v.Quarantine = g.quarantine(q)
	var keys []ident.Key
	for _, o := range a.Objects {
		keys = append(keys, o.Key)
	}
	objects, err := g.objects(ctx, keys)
	if err != nil {
		return nil, err
	}
	for i, o := range a.Objects {
		v.Objects = append(v.Objects, makerView{objects[i], o.Whole, o.Fields})
	}
	for _, c := range a.Causes {
		f := fieldView{Path: c.Path, Value: json.RawMessage(c.Value), Set: viewSetters(c.Set), Within: c.Within, IsName: c.IsName}
		if len(c.Several) > 0 {
			f.Several = viewSetters(c.Several)
		}
		if len(c.Brought) > 0 {
			f.Brought = viewSetters(c.Brought)
		}
		v.Fields = append(v.Fields, f)
	}
	return v, nil
}

func viewSetters(all []why.Setter) []setterView {
	views := []setterView{}
	for _, s := range all {
		v := setterView{Field: s.Field, Value: s.Value, Default: s.Default}
		switch {
		case s.Default:
			v.Object = s.Key.Kind
		case !s.Node:
			v.Object = s.Key.String()
		}
		views = append(views, v)
	}
	return views
}

// quarantine returns the overlay that replaces a resource or a piece of it; nil: none does.
func (g *ground) quarantine(q why.Question) *overlayView {
	quarantines := func(o world.Overlay) bool {
		return slices.ContainsFunc(o.Values, func(v ident.OverlayValue) bool { return v.Resource != nil })
	}
	if !slices.ContainsFunc(slices.Collect(maps.Values(g.overlays)), quarantines) {
		return nil
	}
	pc := index.NewPushContext(g.world)
	class := index.Classify(pc, g.proxy)
	c := xds.NewCatalog(pc)
	_, names := c.Replace(q.Type, c.Set(class.Only(q.Type), q.Type), pc.Replacements(q.Type, class.Release(q.Type)))
	if !slices.Contains(names, q.Resource) {
		return nil
	}
	for _, id := range slices.Sorted(maps.Keys(g.overlays)) {
		o := g.overlays[id]
		if slices.ContainsFunc(o.Values, func(v ident.OverlayValue) bool { return v.Resource != nil && v.Resource.Name == q.Resource }) {
			return viewOverlay(o)
		}
	}
	return nil
}

func (v *Answer) show(out *command.Output) {
	title := v.Type + " " + v.Resource
	if v.Field != "" {
		title += " " + v.Field
	}
	out.Line("%s of %s at %s", title, v.Proxy, v.Version)
	if q := v.Quarantine; q != nil {
		out.Line("%s", out.Paint("It, or a piece of it, is replaced by "+q.String(), command.Yellow))
	}
	if len(v.Fields) > 0 {
		out.Line("")
		t := command.Rows{Head: []string{"FIELD", "VALUE", "SET BY"}}
		for _, f := range v.Fields {
			by := f.by()
			t.Add(f.Path, command.Brief(f.Value), by[0])
			for _, more := range by[1:] {
				t.Add(command.Cell{Text: " "}, command.Cell{Text: " "}, more)
			}
		}
		out.Rows(&t)
	} else {
		out.Line("It has %d fields; with FIELD, such as one of those below, the command says what set each.", v.Leaves)
	}
	if len(v.Objects) == 0 {
		return
	}
	out.Line("")
	t := objectRows()
	for i := range v.Objects {
		o := &v.Objects[i]
		o.add(&t)
		switch {
		case o.Whole:
			t.Note("without it there is no such resource")
		case len(v.Fields) == 0 && len(o.Fields) > 0:
			t.Note("without it these differ: " + command.Some(o.Fields))
		}
	}
	out.Rows(&t)
}

// by says what set a field, in lines.
func (f *fieldView) by() []string {
	var all []string
	for _, s := range f.Set {
		all = append(all, s.text(f.Value))
	}
	for _, s := range f.Several {
		all = append(all, "each of "+s.text(f.Value))
	}
	if len(all) > 0 {
		return all
	}
	if f.IsName {
		return []string{"the name of the resource"}
	}
	all = []string{"no single field: meshlog's default, or several objects"}
	for _, s := range f.Brought {
		all = append(all, "  in "+f.Within+", by "+s.text(f.Value))
	}
	return all
}

// text describes a field of an object, with its value unless it is the one given.
func (s *setterView) text(given json.RawMessage) string {
	of := s.Object + " "
	switch {
	case s.Default:
		of = "default of " + s.Object + " "
	case s.Object == "":
		of = "the proxy's "
	}
	if s.Value == "" || s.Value == string(given) {
		return of + s.Field
	}
	return of + s.Field + ": " + command.Brief([]byte(s.Value))
}
