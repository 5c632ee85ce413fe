package web

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strings"

	"meshlog.dev/proto/ident"
	"meshlog.dev/services/operate/command"
	"meshlog.dev/services/operate/explain"
	"meshlog.dev/services/operate/inspect"
)

// fleetData is a table of streams, or of groups of them.
type fleetData struct {
	Types   []string
	Streams Paged[streamRow]
	Groups  []groupRow
	GroupBy string
	States  []string
}

type streamRow struct {
	*inspect.ProxyView
	Cells []command.Cell // of Types
}

type groupRow struct {
	Name                                        string
	Streams, InSync, Behind, Rejecting, Lacking int
}

func fleet(_ context.Context, p *page) (any, error) {
	v := fleetData{States: []string{"in sync", "behind", "rejecting", "lacking"}, GroupBy: p.Param("group")}
	q, not := strings.CutPrefix(strings.ToLower(p.Param("q")), "!")
	state := p.Param("state")
	var rows []*inspect.ProxyView
	types := map[ident.ResourceType]bool{}
	for i := range p.Mesh.Proxies {
		x := &p.Mesh.Proxies[i]
		if q != "" && strings.Contains(strings.ToLower(x.ID+" "+x.Namespace+" "+x.Type+" "+x.Frontend+" "+x.Group+" "+x.Version.String()), q) == not || state != "" && x.State() != state {
			continue
		}
		for _, t := range x.Types {
			if of, ok := ident.ResourceTypeOf(t.TypeURL); ok {
				types[of] = true
			}
		}
		rows = append(rows, x)
	}
	if v.GroupBy != "" {
		v.Groups = grouped(rows, v.GroupBy)
		return v, nil
	}
	sorted(rows, p.Param("sort"), map[string]func(a, b *inspect.ProxyView) int{
		"proxy":    func(a, b *inspect.ProxyView) int { return strings.Compare(a.ID, b.ID) },
		"type":     func(a, b *inspect.ProxyView) int { return strings.Compare(a.Type, b.Type) },
		"frontend": func(a, b *inspect.ProxyView) int { return strings.Compare(a.Frontend, b.Frontend) },
		"version":  func(a, b *inspect.ProxyView) int { return a.Version.Compare(b.Version) },
		"state":    func(a, b *inspect.ProxyView) int { return strings.Compare(a.State(), b.State()) },
	})
	of := paged(rows, p.Param("page"))
	v.Streams = Paged[streamRow]{All: of.All, First: of.First, Last: of.Last, Page: of.Page, Pages: of.Pages}
	var shown []ident.ResourceType
	for t := range ident.ResourceTypes {
		if types[t] {
			shown, v.Types = append(shown, t), append(v.Types, t.String())
		}
	}
	for _, x := range of.Rows {
		row := streamRow{ProxyView: x}
		for _, t := range shown {
			row.Cells = append(row.Cells, x.Cell(t, p.Now))
		}
		v.Streams.Rows = append(v.Streams.Rows, row)
	}
	return v, nil
}

// grouped counts streams by class, version, frontend or type; the largest group comes first.
func grouped(rows []*inspect.ProxyView, by string) []groupRow {
	all := map[string]*groupRow{}
	for _, x := range rows {
		name := map[string]string{"class": x.Group, "version": x.Version.String(), "frontend": x.Frontend, "type": x.Type}[by]
		name = cmp.Or(name, "-")
		if all[name] == nil {
			all[name] = &groupRow{Name: name}
		}
		g := all[name]
		g.Streams++
		switch x.State() {
		case "in sync":
			g.InSync++
		case "behind":
			g.Behind++
		case "rejecting":
			g.Rejecting++
		case "lacking":
			g.Lacking++
		}
	}
	groups := []groupRow{}
	for _, g := range all {
		groups = append(groups, *g)
	}
	slices.SortFunc(groups, func(a, b groupRow) int {
		return cmp.Or(cmp.Compare(b.Streams, a.Streams), strings.Compare(a.Name, b.Name))
	})
	return groups
}

// proxyData is a proxy: its streams, and its resources.
type proxyData struct {
	ID       string
	Streams  []streamData
	Configs  []configData
	Only     string // the type whose resources are listed; empty: they are counted
	Problems []string
	Error    string // why Configs are absent
}

type streamData struct {
	*inspect.ProxyView
	Rows []typeRow
}

type typeRow struct {
	Type, Sent, Acked string
	Cell              command.Cell
	Resources         uint32
}

type configData struct {
	Title  string
	Counts []countRow
	Head   []string
	List   Paged[resourceRow]
}

type countRow struct {
	Type      string
	Resources int
	States    string
	NotAsked  int
}

type resourceRow struct {
	Name, State, Why string
	Cells            []string
	More             bool // it is a further row of the resource above
}

func proxyPage(ctx context.Context, p *page) (any, error) {
	v := proxyData{ID: p.Param("id"), Only: p.Param("type")}
	p.Title = "Proxy " + v.ID
	for i := range p.Mesh.Proxies {
		x := &p.Mesh.Proxies[i]
		if x.ID != v.ID {
			continue
		}
		s := streamData{ProxyView: x}
		for _, t := range x.Types {
			s.Rows = append(s.Rows, typeRow{t.Type, t.Sent.String(), t.Acked.String(), t.Cell(p.Now), t.Resources})
		}
		v.Streams = append(v.Streams, s)
		v.Problems = append(v.Problems, x.Problems(p.Now)...)
	}
	if len(v.Streams) == 0 && p.mesh.Past.Live {
		return nil, command.NotFound("proxy %q: not connected to any frontend; the fleet lists the proxies that are", v.ID)
	}
	var configs []inspect.ConfigView
	var err error
	switch {
	case p.At != "":
		configs, err = inspect.WouldHave(ctx, p.mesh.Target, p.mesh.Past, v.ID, p.At)
	case p.mesh.Past.Live:
		configs, err = inspect.Has(ctx, p.mesh.Target, p.mesh.Past, v.ID)
	default: // no frontend can be asked
		configs, err = inspect.WouldHave(ctx, p.mesh.Target, p.mesh.Past, v.ID, p.Version().String())
	}
	if err != nil && len(v.Streams) == 0 {
		return nil, err
	}
	if err != nil {
		v.Error = err.Error()
	}
	for i := range configs {
		v.Configs = append(v.Configs, v.config(p, &configs[i]))
	}
	return v, nil
}

// config counts the resources, and lists those of one type.
func (v *proxyData) config(p *page, c *inspect.ConfigView) configData {
	d := configData{Title: fmt.Sprintf("%s at frontend %s, version %s", c.Stream, c.Frontend, c.Version)}
	if c.Frontend == "" {
		d.Title = fmt.Sprintf("What it would have at %s", c.Version)
	}
	for i := range c.Types {
		t := &c.Types[i]
		counts, names := map[string]int{}, []string{}
		for _, r := range t.Resources {
			if counts[r.State]++; counts[r.State] == 1 && r.State != "" {
				names = append(names, r.State)
			}
		}
		slices.Sort(names)
		for i, s := range names {
			names[i] = fmt.Sprintf("%d %s", counts[s], s)
		}
		d.Counts = append(d.Counts, countRow{t.Type, len(t.Resources), strings.Join(names, ", "), t.NotAsked})
		if t.Type != v.Only {
			continue
		}
		d.Head = t.Head()[1:]
		word := ""
		for of := range ident.ResourceTypes {
			if of.String() == t.Type {
				word = explain.ResourceWord(of)
			}
		}
		of := paged(t.Resources, p.Param("page"))
		d.List = Paged[resourceRow]{All: of.All, First: of.First, Last: of.Last, Page: of.Page, Pages: of.Pages}
		for _, r := range of.Rows {
			why := ""
			if word != "" && r.Config != nil {
				why = word + "/" + r.Name
			}
			for i, cells := range t.Cells(r) {
				row := resourceRow{Name: r.Name, State: r.State, Why: why, More: i > 0}
				for _, cell := range cells {
					row.Cells = append(row.Cells, fmt.Sprint(cell))
				}
				d.List.Rows = append(d.List.Rows, row)
			}
		}
	}
	return d
}
