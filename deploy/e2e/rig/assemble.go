package rig

import (
	"context"
	"fmt"
	"path/filepath"
	"slices"
	"strconv"

	"meshlog.dev/deploy/testkit/testport"
)

// Parts lists the processes that a mesh is made of, and where they run.
type Parts struct {
	// One of the two is the bus.
	NATS    *NATS
	Cluster *NATSCluster

	Builders, Frontends int
	Twins               int // standby watchers, besides the first
	// Kube lists the Kubernetes clusters to watch.
	Kube []KubeCluster
	// MCP is the address of a source of MCP-over-xDS that a bin/watcher-xds watches as
	// mcpxds/shop; empty: none.
	MCP string
	// Folder is the directory of bin/ that holds the programs.
	Folder string
	// OfBuilders, OfWatchers and OfFrontends are additional flags of builders, of the
	// watchers of the directory, and of frontends.
	OfBuilders, OfWatchers, OfFrontends []string
	// TLS has frontends serve xDS over mutual TLS only; nil: without TLS.
	TLS *TLS
	// Place returns where a process runs; nil: on this machine.
	Place func(name string) (Place, error)
}

// KubeCluster is a Kubernetes cluster that one or more bin/watcher-kube watch.
type KubeCluster struct {
	Name, Kubeconfig string
	Watchers         int
}

// Assemble runs separate processes that share only a bus and waits until they are
// ready. The watchers read the configuration directory config; if it is empty, no
// file watcher runs. The mesh owns the bus from then on. If a process does not
// become ready, Assemble ends all of them, and the bus.
func Assemble(ctx context.Context, dir, config string, p Parts) (_ *Mesh, err error) {
	m := &Mesh{dir: dir, NATS: p.NATS, Cluster: p.Cluster}
	defer func() {
		if err != nil {
			m.End()
		}
	}()
	a := assembly{Mesh: m, parts: p, access: p.NATS.Flags}
	ofBuilder := slices.Clone(p.OfBuilders)
	if p.Cluster != nil {
		a.access = p.Cluster.Flags
		ofBuilder = append(ofBuilder, "--replicas", strconv.Itoa(len(p.Cluster.Nodes)))
	}
	m.cli = a.access("operator")
	for i := range p.Builders {
		name := fmt.Sprintf("builder-%d", i+1)
		if err := a.add(&m.Builders, "builder", "builder", name, 0, append(slices.Clone(ofBuilder), "--data", filepath.Join(dir, name))...); err != nil {
			return nil, err
		}
	}
	if config != "" {
		if err := a.watch(ctx, config); err != nil {
			return nil, err
		}
	}
	for _, c := range p.Kube {
		if err := a.watchCluster(ctx, c); err != nil {
			return nil, err
		}
	}
	if p.MCP != "" {
		if err := a.add(&m.MCP, "watcher-xds", "watcher-mcpxds-shop", "watcher-xds", 0, "--mcp-source", p.MCP, "--instance", "shop"); err != nil {
			return nil, err
		}
	}
	for i := range p.Frontends {
		name := fmt.Sprintf("frontend-%d", i+1)
		port, err := testport.TCP()
		if err != nil {
			return nil, err
		}
		if err := a.add(&m.Frontends, "frontend", "frontend", name, port, append(slices.Clone(p.OfFrontends), "--data", filepath.Join(dir, name))...); err != nil {
			return nil, err
		}
	}
	return m, m.started(ctx)
}

// assembly is a mesh under construction.
type assembly struct {
	*Mesh
	parts  Parts
	access func(role string) []string
}

// add starts a program of a role.
func (a *assembly) add(to *[]*Server, program, role, name string, xds int, flags ...string) (err error) {
	s := Server{XDS: xds, TLS: a.parts.TLS}
	if a.parts.Place != nil {
		if s.Place, err = a.parts.Place(name); err != nil {
			return err
		}
	}
	started, err := startServer(filepath.Join(a.parts.Folder, program), name, a.dir, s, append(append(flags, a.access(role)...), "--id", name)...)
	if err == nil {
		a.servers, *to = append(a.servers, started), append(*to, started)
	}
	return err
}

// watch starts the watcher of a directory and its twins.
func (a *assembly) watch(ctx context.Context, config string) error {
	var watchers []*Server
	for i := range 1 + a.parts.Twins {
		name := "watcher"
		if i > 0 { // a twin finds an active watcher, and stands by
			name = fmt.Sprintf("twin-%d", i)
			if err := a.Watcher.Ready(ctx); err != nil {
				return err
			}
		}
		if err := a.add(&watchers, "watcher-file", "watcher-file-default", name, 0, append(slices.Clone(a.parts.OfWatchers), "--config", config)...); err != nil {
			return err
		}
		a.Watcher, a.Twins = watchers[0], watchers[1:]
	}
	return nil
}

// watchCluster starts the watchers of a cluster.
func (a *assembly) watchCluster(ctx context.Context, c KubeCluster) error {
	var watchers []*Server
	for i := range c.Watchers {
		if i == 1 { // the others find an active watcher, and stand by
			if err := watchers[0].Ready(ctx); err != nil {
				return err
			}
		}
		name := fmt.Sprintf("%s-%d", c.Name, i+1)
		if err := a.add(&watchers, "watcher-kube", "watcher-kubernetes-"+c.Name, name, 0, "--cluster", c.Name, "--kubeconfig", c.Kubeconfig); err != nil {
			return err
		}
	}
	a.Kube = append(a.Kube, watchers)
	return nil
}
