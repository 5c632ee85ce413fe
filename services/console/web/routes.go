package web

import (
	"cmp"
	"context"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"sync"
	"unicode/utf8"

	"meshlog.dev/services/mesh/proxy"
	"meshlog.dev/services/operate/command"
	"meshlog.dev/services/operate/inspect"
	"meshlog.dev/store"
)

// Limits of a page of routes: routes, and endpoints of a cluster.
const (
	routesShown    = 20
	endpointsShown = 4
)

// routeScene makes what proxies are served, and keeps the routes that it read last: those of a
// large mesh take long to read.
type routeScene struct {
	command.Scene
	mu   sync.Mutex
	last []*inspect.Routes
}

// routesKept is how many proxies' routes stay in memory.
const routesKept = 4

func (s *routeScene) routes(content *store.Snapshot, of *proxy.Proxy) (*inspect.Routes, error) {
	served, err := s.Served(content, of)
	if err != nil {
		return nil, err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, r := range s.last {
		if same, ok := r.After(served); ok {
			return same, nil
		}
	}
	r, err := inspect.RoutesOf(served)
	if err != nil {
		return nil, err
	}
	if s.last = append(s.last, r); len(s.last) > routesKept {
		s.last = slices.Delete(s.last, 0, 1)
	}
	return r, nil
}

// routesData is where the calls of a proxy go.
type routesData struct {
	Proxy   string
	Proxies []string // to choose from
	Paths   Paged[routeRow]
	Graph   routeGraph
}

// routeRow is a route with its clusters.
type routeRow struct {
	inspect.RoutePath
	Clusters []clusterRow
}

// More is how many further domains the host has.
func (r *routeRow) More() int { return max(0, len(r.Domains)-1) }

// About is what objects about the host may have in their names; empty: the host names none.
func (r *routeRow) About() string {
	if r.HostField == "" { // a listener
		return ""
	}
	label, _, _ := strings.Cut(strings.TrimPrefix(r.Host, "*."), ".")
	if label, _, _ = strings.Cut(label, ":"); label == "*" {
		return ""
	}
	return label
}

type clusterRow struct {
	inspect.RouteCluster
	Weight      uint32
	Left        int  // endpoints that are not shown
	Connections bool // it gets connections, not requests
}

// State says what is wrong with a cluster, and where its endpoints come from.
func (c *clusterRow) State() string {
	end := "503"
	if c.Connections {
		end = "closed"
	}
	switch {
	case c.Missing:
		return "no such cluster: " + end
	case len(c.Endpoints) == 0 && c.From == "":
		return "no endpoints: " + end
	}
	return c.From
}

// routesPage draws the routes of a proxy.
func (s *Server) routesPage(w http.ResponseWriter, r *http.Request) {
	s.view(w, r, view{title: "Routes", file: "routes.html", make: s.routes})
}

func (s *Server) routes(ctx context.Context, p *page) (any, error) {
	v := &routesData{Proxy: p.Param("proxy")}
	for i := range p.Mesh.Proxies {
		if id := p.Mesh.Proxies[i].ID; len(v.Proxies) < pageSize && !slices.Contains(v.Proxies, id) {
			v.Proxies = append(v.Proxies, id)
		}
	}
	if v.Proxy == "" && len(v.Proxies) > 0 {
		v.Proxy = v.Proxies[0]
	}
	if v.Proxy == "" {
		return v, nil
	}
	q := command.ProxyQuery{ID: v.Proxy}
	of, err := q.Find(ctx, p.mesh.Target, p.mesh.Past)
	if err != nil {
		return nil, err
	}
	return v, v.take(ctx, p, &s.scene, of)
}

// take takes the routes of a proxy that the address names.
func (v *routesData) take(ctx context.Context, p *page, from *routeScene, of *proxy.Proxy) error {
	c, err := p.mesh.Content(ctx, p.moment)
	if err != nil {
		return err
	}
	routes, err := from.routes(c.Rows(), of)
	if err != nil {
		return err
	}
	paths := routes.Paths
	if host := strings.ToLower(strings.TrimSpace(p.Param("host"))); host != "" {
		paths = slices.DeleteFunc(slices.Clone(paths), func(r inspect.RoutePath) bool { return !r.Matches(host) })
	}
	some := pagedBy(paths, p.Param("page"), routesShown)
	v.Paths = Paged[routeRow]{All: some.All, First: some.First, Last: some.Last, Page: some.Page, Pages: some.Pages}
	for _, path := range some.Rows {
		row := routeRow{RoutePath: path}
		for _, to := range path.To {
			cluster, err := routes.Cluster(to.Cluster)
			if err != nil {
				return err
			}
			left := max(0, len(cluster.Endpoints)-endpointsShown)
			cluster.Endpoints = cluster.Endpoints[:len(cluster.Endpoints)-left]
			row.Clusters = append(row.Clusters, clusterRow{cluster, to.Weight, left, path.HostField == ""})
		}
		v.Paths.Rows = append(v.Paths.Rows, row)
	}
	v.Graph.draw(p, v.Proxy, v.Paths.Rows)
	return nil
}

// routeGraph is a drawing with four columns: hosts, routes, clusters, endpoints.
type routeGraph struct {
	Width, Height int
	Nodes         []*routeNode
	Edges         []routeEdge
	at            map[string]*routeNode
}

// routeNode is a box with a text.
type routeNode struct {
	X, Y, W, H int
	Text       string // short enough for the box
	Title      string
	To         string // address; empty: it is no link
	Class      string
	column     int
	wanted     int // the sum of the middles of the nodes that lead here, and their number
	from       int
}

// MidY is the middle of a node, and TextY the base line of its text.
func (n *routeNode) MidY() int  { return n.Y + n.H/2 }
func (n *routeNode) TextY() int { return n.Y + n.H/2 + 4 }
func (n *routeNode) TextX() int { return n.X + 8 }

// routeEdge is a line between two nodes.
type routeEdge struct {
	From, To *routeNode
	Label    string
}

// Path is the line, as SVG has it.
func (e routeEdge) Path() string {
	x1, y1, x2, y2 := e.From.X+e.From.W, e.From.MidY(), e.To.X, e.To.MidY()
	return fmt.Sprintf("M%d %dC%d %d %d %d %d %d", x1, y1, (x1+x2)/2, y1, (x1+x2)/2, y2, x2, y2)
}

// LabelX and LabelY are the place of the label.
func (e routeEdge) LabelX() int { return e.To.X - 26 }
func (e routeEdge) LabelY() int { return e.To.MidY() - 4 }

// The measures of the drawing, in its own units. A letter of the font of the boxes is
// letterWidth wide.
const (
	boxWidth, boxHeight, boxGap = 250, 26, 8
	columnGap                   = 40
	letterWidth                 = 8 // at most
)

func (g *routeGraph) node(column int, key, text, to, class string) *routeNode {
	key = fmt.Sprint(column, " ", key)
	if n := g.at[key]; n != nil {
		return n
	}
	n := &routeNode{X: column * (boxWidth + columnGap), W: boxWidth, H: boxHeight, Text: short(text), Title: text, To: to, Class: class, column: column}
	g.at[key] = n
	g.Nodes = append(g.Nodes, n)
	return n
}

// short cuts a text to what fits into a box.
func short(text string) string {
	const most = (boxWidth - 16) / letterWidth
	if utf8.RuneCountInString(text) <= most {
		return text
	}
	return string([]rune(text)[:most-1]) + "…"
}

func (g *routeGraph) edge(from, to *routeNode, label string) {
	if !slices.ContainsFunc(g.Edges, func(e routeEdge) bool { return e.From == from && e.To == to }) {
		g.Edges = append(g.Edges, routeEdge{from, to, label})
	}
}

// draw adds the nodes and edges of routes, and places them.
func (g *routeGraph) draw(p *page, proxy string, rows []routeRow) {
	g.at = map[string]*routeNode{}
	why := func(resource, field string) string {
		return p.To("/why", "proxy", proxy, "resource", resource, "field", field)
	}
	for _, r := range rows {
		host := g.node(0, r.Resource+" "+r.HostField+r.Host, r.Host, why(r.Resource, r.HostField), "host")
		route := g.node(1, r.Resource+" "+r.Field+r.Match+r.Host, r.Match, why(r.Resource, r.Field), "route")
		g.edge(host, route, "")
		if len(r.Clusters) == 0 {
			g.edge(route, g.node(2, "end "+r.Ends, cmp.Or(r.Ends, "nowhere"), "", "end"), "")
		}
		for _, c := range r.Clusters {
			label := ""
			if c.Weight > 0 {
				label = fmt.Sprint(c.Weight)
			}
			if c.Missing {
				g.edge(route, g.node(2, c.Name, c.Name, "", "missing"), label)
				g.edge(g.node(2, c.Name, c.Name, "", "missing"), g.node(3, c.State(), c.State(), "", "missing"), "")
				continue
			}
			cluster := g.node(2, c.Name, c.Name, why("cluster/"+c.Name, ""), "cluster")
			g.edge(route, cluster, label)
			g.endpoints(cluster, &c, why("endpoint/"+c.Name, ""))
		}
	}
	g.place()
}

func (g *routeGraph) endpoints(cluster *routeNode, c *clusterRow, why string) {
	for _, e := range c.Endpoints {
		class, text := "endpoint", e.Address
		if e.Health != "HEALTHY" {
			class, text = "missing", e.Address+" "+e.Health
		}
		g.edge(cluster, g.node(3, e.Address+" "+e.Health, text, why, class), "")
	}
	switch {
	case c.Left > 0:
		g.edge(cluster, g.node(3, "more "+c.Name, fmt.Sprintf("and %d more", c.Left), why, "endpoint"), "")
	case len(c.Endpoints) == 0 && c.From != "":
		g.edge(cluster, g.node(3, "from "+c.From, c.From, "", "end"), "")
	case len(c.Endpoints) == 0:
		g.edge(cluster, g.node(3, c.State(), c.State(), "", "missing"), "")
	}
}

// place gives each node a height: near to the middle of the nodes that lead to it, below those
// of its column that came before.
func (g *routeGraph) place() {
	g.Width = 4*boxWidth + 3*columnGap
	for column := range 4 {
		next := 0
		for _, n := range g.Nodes {
			if n.column != column {
				continue
			}
			if n.from > 0 {
				next = max(next, n.wanted/n.from-boxHeight/2)
			}
			n.Y = next
			next += boxHeight + boxGap
			g.Height = max(g.Height, next)
			for _, e := range g.Edges {
				if e.From == n {
					e.To.wanted, e.To.from = e.To.wanted+n.MidY(), e.To.from+1
				}
			}
		}
	}
}
