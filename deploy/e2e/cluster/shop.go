package cluster

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"time"

	"meshlog.dev/deploy/e2e/shop"
	"meshlog.dev/deploy/testkit/program"
	"meshlog.dev/deploy/testkit/testport"
)

// The Service of the shop, and its host.
const (
	Namespace = "demo"
	Service   = "shop"
	Host      = "shop.demo.svc.cluster.local"
)

// The files of the shop, in the order in which they are applied.
var files = []string{"shop.yaml", gateway, routes}

const (
	gateway = "gateway.yaml"
	routes  = "routes.yaml"
)

// Shop is the configuration that a user applies: deploy/e2e/demo/kubernetes, on
// free ports.
type Shop struct {
	// Path is the directory with the files.
	Path  string
	Edges []Edge

	routes string // as in the tree, for all edges
}

// Edge is where the Envoys with a label, app, accept requests.
type Edge struct {
	App  string
	Port int
}

// URL returns the address for requests.
func (e Edge) URL() string { return fmt.Sprintf("http://127.0.0.1:%d/", e.Port) }

// NewShop copies the files to dir/kubernetes, with a Gateway for the Envoys of
// each label.
func NewShop(dir string, apps ...string) (*Shop, error) {
	root, err := program.Root()
	if err != nil {
		return nil, err
	}
	s := &Shop{Path: filepath.Join(dir, "kubernetes")}
	for _, app := range apps {
		port, err := testport.TCP()
		if err != nil {
			return nil, err
		}
		s.Edges = append(s.Edges, Edge{app, port})
	}
	if err := os.MkdirAll(s.Path, 0o700); err != nil {
		return nil, err
	}
	for _, name := range files {
		b, err := os.ReadFile(filepath.Join(root, "deploy", "e2e", "demo", "kubernetes", name))
		if err != nil {
			return nil, err
		}
		text := string(b)
		switch name {
		case gateway:
			text = s.gateways(text)
		case routes:
			text = strings.Replace(text, "gateways: [edge]", "gateways: ["+strings.Join(apps, ", ")+"]", 1)
			s.routes = text
		}
		if err := os.WriteFile(filepath.Join(s.Path, name), []byte(text), 0o600); err != nil {
			return nil, err
		}
	}
	return s, nil
}

// gateways repeats a Gateway for each edge.
func (s *Shop) gateways(text string) string {
	var all []string
	for _, e := range s.Edges {
		one := strings.NewReplacer("{name: edge,", "{name: "+e.App+",", "{app: edge}", "{app: "+e.App+"}").Replace(text)
		all = append(all, shop.Ports(one, 10000, e.Port))
	}
	return strings.Join(all, "---\n")
}

// Apply applies all files.
func (s *Shop) Apply(ctx context.Context, c *Cluster) error {
	for _, name := range files {
		if err := c.ApplyFile(ctx, filepath.Join(s.Path, name)); err != nil {
			return err
		}
	}
	return nil
}

// ApplyService applies the Service and its versions, without routes to them.
func (s *Shop) ApplyService(ctx context.Context, c *Cluster) error {
	return c.ApplyFile(ctx, filepath.Join(s.Path, files[0]))
}

// DeleteRoutes deletes the routes.
func (s *Shop) DeleteRoutes(ctx context.Context, c *Cluster) error { return c.Delete(ctx, s.routes) }

// Weigh applies the routes with new weights, as a field manager. It returns the time
// at which it began.
func (s *Shop) Weigh(ctx context.Context, c *Cluster, manager string, v1, v2 int) (time.Time, error) {
	text := shop.Weighted(s.routes, v1, v2)
	if err := os.WriteFile(filepath.Join(s.Path, routes), []byte(text), 0o600); err != nil {
		return time.Time{}, err
	}
	at := time.Now()
	return at, c.ApplyAs(ctx, manager, text)
}
