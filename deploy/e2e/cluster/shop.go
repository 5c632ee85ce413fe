package cluster

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"meshlog.dev/deploy/e2e/rig"
	"meshlog.dev/deploy/e2e/shop"
)

// The Service of the shop, and its host.
const (
	Namespace = "demo"
	Service   = "shop"
	Host      = "shop.demo.svc.cluster.local"
)

// The files of the shop, in the order in which they are applied.
var files = []string{"shop.yaml", "gateway.yaml", routes}

const routes = "routes.yaml"

// Shop is what a user applies: deploy/e2e/demo/kubernetes, on a free port.
type Shop struct {
	// Path is the directory with the files.
	Path string
	// Port is where Envoy takes requests.
	Port int

	routes string // as they are in the tree
}

// NewShop copies the files to dir/kubernetes.
func NewShop(dir string) (*Shop, error) {
	root, err := rig.Root()
	if err != nil {
		return nil, err
	}
	s := &Shop{Path: filepath.Join(dir, "kubernetes")}
	if s.Port, err = rig.FreePort(); err != nil {
		return nil, err
	}
	if err := os.MkdirAll(s.Path, 0o700); err != nil {
		return nil, err
	}
	for _, name := range files {
		b, err := os.ReadFile(filepath.Join(root, "deploy", "e2e", "demo", "kubernetes", name))
		if err != nil {
			return nil, err
		}
		if name == routes {
			s.routes = string(b)
		}
		text := shop.Ports(string(b), 10000, s.Port)
		if err := os.WriteFile(filepath.Join(s.Path, name), []byte(text), 0o600); err != nil {
			return nil, err
		}
	}
	return s, nil
}

// URL is where Envoy takes requests.
func (s *Shop) URL() string { return fmt.Sprintf("http://127.0.0.1:%d/", s.Port) }

// Apply applies all files.
func (s *Shop) Apply(ctx context.Context, c *Cluster) error {
	for _, name := range files {
		if err := c.ApplyFile(ctx, filepath.Join(s.Path, name)); err != nil {
			return err
		}
	}
	return nil
}

// Weigh applies the routes with other weights, as a field manager, and returns
// when it began to.
func (s *Shop) Weigh(ctx context.Context, c *Cluster, manager string, v1, v2 int) (time.Time, error) {
	text := shop.Weighted(s.routes, v1, v2)
	if err := os.WriteFile(filepath.Join(s.Path, routes), []byte(text), 0o600); err != nil {
		return time.Time{}, err
	}
	at := time.Now()
	return at, c.ApplyAs(ctx, manager, text)
}
