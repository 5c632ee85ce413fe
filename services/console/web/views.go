package web

import (
	"cmp"
	"context"
	"slices"
	"strings"
	"time"

	"meshlog.dev/proto/ident"
	"meshlog.dev/services/internal/bus"
	"meshlog.dev/services/operate/command"
	"meshlog.dev/services/operate/explain"
	"meshlog.dev/services/operate/history"
	"meshlog.dev/services/operate/inspect"
	"meshlog.dev/services/operate/past"
)

// views are the sorts of pages by path.
var views = map[string]view{
	"/{$}":      {"Overview", "overview.html", overview, true},
	"/timeline": {"Timeline", "timeline.html", timeline, true},
	"/version":  {"Version", "version.html", version, false},
	"/objects":  {"Objects", "objects.html", objects, true},
	"/object":   {"Object", "object.html", object, false},
	"/fleet":    {"Fleet", "fleet.html", fleet, true},
	"/proxy":    {"Proxy", "proxy.html", proxyPage, true},
	"/why":      {"Why", "why.html", whyPage, false},
	"/sources":  {"Sources", "sources.html", sourcesPage, true},
	"/acted":    {"Done", "acted.html", acted, true},
	"/rollouts": {"Rollouts", "rollouts.html", rollouts, true},
	"/problems": {"Problems", "problems.html", problems, true},
}

// sourceRow is a source with its cells.
type sourceRow struct {
	command.Source
	StateCell, SyncedCell command.Cell
	Notes                 []string
}

func sourcesPage(_ context.Context, p *page) (any, error) {
	rows := []sourceRow{}
	for _, s := range p.Mesh.Sources {
		rows = append(rows, sourceRow{s, inspect.SourceState(&s), inspect.SourceSynced(&s), inspect.SourceNotes(&s, p.Now)})
	}
	return rows, nil
}

// problemsData is what a page of problems shows.
type problemsData struct {
	Problems    Paged[command.Diagnostic]
	Holds       []holdRow
	Words       []command.Word
	Quarantines []quarantineRow
}

type holdRow struct {
	ID, Source, Reason string
	Keys               uint32
}

type quarantineRow struct {
	ID, Type, Resource, Piece, Client, Reason string
	Since                                     time.Time
	LastGood, Closed                          bool
}

// problems shows those of the version, and of the present also what watchers report.
func problems(ctx context.Context, p *page) (any, error) {
	all := p.Mesh.Problems
	if p.At != "" {
		all = inspect.DiagnosticsOf(new(bus.Reports), command.Diagnostics(p.moment.Manifest.GetDiagnostics(), ""))
	}
	if want := p.Param("q"); want != "" {
		all = slices.DeleteFunc(slices.Clone(all), func(d command.Diagnostic) bool {
			return !strings.Contains(strings.ToLower(d.String()+" "+d.Object+" "+d.Code), strings.ToLower(want))
		})
	}
	v := problemsData{Problems: paged(all, p.Param("page"))}
	if p.moment.Version.IsZero() {
		return v, nil
	}
	c, err := p.mesh.Content(ctx, p.moment)
	if err != nil {
		return nil, err
	}
	holds, quarantines, err := command.HeldBack(c.Rows())
	if err != nil {
		return nil, err
	}
	for _, h := range holds {
		v.Holds = append(v.Holds, holdRow{h.GetId(), h.GetSource() + "/" + h.GetInstance(), h.GetReason(), h.GetKeys()})
	}
	for _, q := range quarantines {
		v.Quarantines = append(v.Quarantines, quarantineRow{
			q.GetId(), command.TypeName(q.GetTypeUrl()), q.GetName(), q.GetPiece(), q.GetClient(), q.GetReason(), command.Stamp(q.GetSince().AsTime()),
			q.GetLastGood(), q.GetClosed(),
		})
	}
	v.Words, err = command.Words(c.Rows())
	return v, err
}

// objectRow is an object in a list.
type objectRow struct {
	ident.Key
	Served bool
	Over   []string
}

// JSONKey returns the key for addresses.
func (r objectRow) JSONKey() past.Key { return past.Key(r.Key) }

func filterOf(p *page) *command.Objects {
	o := &command.Objects{}
	for name, into := range map[string]*[]string{"kind": &o.Kinds, "namespace": &o.Namespaces, "name": &o.Names, "source": &o.Sources} {
		if v := strings.TrimSpace(p.Param(name)); v != "" {
			*into = []string{v}
		}
	}
	return o
}

func objects(ctx context.Context, p *page) (any, error) {
	c, err := p.mesh.Content(ctx, p.moment)
	if err != nil {
		return nil, err
	}
	keys := filterOf(p).Select(c.Keys())
	if q := strings.ToLower(p.Param("q")); q != "" {
		keys = slices.DeleteFunc(keys, func(k ident.Key) bool { return !strings.Contains(strings.ToLower(k.String()), q) })
	}
	sorted(keys, p.Param("sort"), map[string]func(a, b ident.Key) int{
		"kind":      func(a, b ident.Key) int { return strings.Compare(a.Kind, b.Kind) },
		"namespace": func(a, b ident.Key) int { return strings.Compare(a.Namespace, b.Namespace) },
		"name":      func(a, b ident.Key) int { return strings.Compare(a.Name, b.Name) },
		"source": func(a, b ident.Key) int {
			return cmp.Or(strings.Compare(a.Source, b.Source), strings.Compare(a.Instance, b.Instance))
		},
	})
	of := paged(keys, p.Param("page"))
	v := Paged[objectRow]{All: of.All, First: of.First, Last: of.Last, Page: of.Page, Pages: of.Pages}
	for _, k := range of.Rows {
		v.Rows = append(v.Rows, objectRow{k, c.Served(k), c.Over(k)})
	}
	return v, nil
}

// objectData is an object with its history.
type objectData struct {
	Key      past.Key
	Standing *history.Standing // nil: the version does not have it
	Document string
	Missing  string
	Events   Paged[*past.KeyEvent] // the newest first
	Copies   []past.Key            // of other sources
	Used     *usedData             // nil: the version does not have it
}

func object(ctx context.Context, p *page) (any, error) {
	asked := p.Param("key")
	only := command.Objects{}
	if s := p.Param("source"); s != "" {
		only.Sources = []string{s}
	}
	selected, err := command.ParseKey(asked, only)
	if err != nil {
		return nil, err
	}
	c, err := p.mesh.Content(ctx, p.moment)
	if err != nil {
		return nil, err
	}
	v := objectData{}
	keys := selected.Select(c.Keys())
	if len(keys) == 0 {
		known, err := past.Keys(ctx, p.mesh.Past)
		if err != nil {
			return nil, err
		}
		if keys, err = selected.Find(asked, known, "the page of objects lists what a version has"); err != nil {
			return nil, err
		}
		v.Missing = "This version does not have it."
	}
	k := keys[max(0, slices.IndexFunc(keys, c.Served))]
	v.Key = past.Key(k)
	for _, o := range keys {
		if o != k {
			v.Copies = append(v.Copies, past.Key(o))
		}
	}
	if v.Missing == "" {
		if v.Standing, err = c.Standing(ctx, k); err != nil {
			return nil, err
		}
		if v.Document, err = v.Standing.Document(); err != nil {
			v.Missing = "Cannot be shown: " + err.Error()
		}
		v.Used = used(ctx, p, c, k)
	}
	events, err := past.Of(ctx, p.mesh.Past, []ident.Key{k}, func(int64, int64) {})
	if err != nil {
		return nil, err
	}
	slices.Reverse(events)
	v.Events = paged(events, p.Param("page"))
	p.Title = k.Kind + " " + k.Name
	return v, nil
}

// versionData is a version and what it changed.
type versionData struct {
	*history.VersionView
	Before  ident.Position
	Objects *history.DiffView
	Of      string // a proxy whose xDS differs
	XDS     *history.DiffView
	Error   string // why XDS is absent
	Proxies []string
}

func version(ctx context.Context, p *page) (any, error) {
	if p.moment.Manifest == nil {
		return nil, command.NotFound("position %s was never published: the timeline lists the versions", p.moment.Version)
	}
	v := versionData{VersionView: history.VersionOf(p.moment.Manifest), Of: p.Param("proxy")}
	v.Explain(ctx, p.mesh.Past)
	p.Title = "Version " + v.Version.String()
	for _, x := range p.Mesh.Proxies {
		if len(v.Proxies) < pageSize && !slices.Contains(v.Proxies, x.ID) {
			v.Proxies = append(v.Proxies, x.ID)
		}
	}
	from, err := history.Before(ctx, p.mesh.Past, p.moment)
	if err != nil { // the first one: everything is new
		return v, nil
	}
	v.Before = from.Version
	if v.Objects, err = history.Objects(ctx, p.mesh.Past, from, p.moment, &command.Objects{}); err != nil || v.Of == "" {
		return v, err
	}
	q := command.ProxyQuery{ID: v.Of}
	of, err := q.Find(ctx, p.mesh.Target, p.mesh.Past)
	if err == nil {
		v.XDS, err = history.Resources(ctx, p.mesh.Past, from, p.moment, of)
	}
	if err != nil {
		v.Error = err.Error()
	}
	return v, nil
}

func whyPage(ctx context.Context, p *page) (any, error) {
	q := command.ProxyQuery{ID: p.Param("proxy")}
	of, err := q.Find(ctx, p.mesh.Target, p.mesh.Past)
	if err != nil {
		return nil, err
	}
	a, err := explain.WhyAt(ctx, p.mesh.Past, p.moment, of, p.Param("resource"), p.Param("field"))
	if err == nil {
		p.Title = "Why " + a.Resource
	}
	return a, err
}
