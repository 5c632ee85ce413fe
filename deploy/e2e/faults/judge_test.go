package faults

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"testing"
	"time"

	"meshlog.dev/deploy/e2e/rig"
	"meshlog.dev/deploy/testkit/program"
)

// judge stops the changes, waits until the mesh is idle, and checks the promises.
// Then changes continue.
func (m *mesh) judge(t *testing.T) {
	t.Helper()
	for _, e := range m.envoys {
		if d := e.routes.Stalled(); d > time.Second {
			t.Logf("%s: updates paused for %.1f s", e.name, d.Seconds())
		}
	}
	m.writer.mu.Lock()
	defer m.writer.mu.Unlock()
	must(t, m.writer.err)
	start := time.Now()
	m.settled(t)
	took := time.Since(start)

	if err := m.log.Check(m.ctx); err != nil {
		t.Error(err)
	}
	if err := m.chain.Check(m.ctx); err != nil {
		t.Error(err)
	}
	versions := m.oneChain(t)
	if !m.noReplay {
		// verify folds the log again: every version matches its records.
		var verified any
		if err := m.CLI(m.ctx, &verified, "verify"); err != nil {
			t.Error(err)
		}
	}
	requests := 0
	for _, e := range m.envoys {
		for _, f := range []*rig.Flow{e.routes, e.extra} {
			tally, err := f.Reset()
			if err != nil {
				t.Errorf("%s: %v", e.name, err)
			}
			requests += tally.Sent
		}
		if n, err := e.Rejected(m.ctx); err != nil || n != 0 {
			t.Errorf("%s rejected %d responses, %v", e.name, n, err)
		}
	}
	t.Logf("%d requests, none failed; %d records, %d versions; at rest %.1f s after the last save", requests, m.log.Seen(), versions, took.Seconds())
}

// settle stops the changes, waits until the mesh is idle, and lets changes go on.
func (m *mesh) settle(t *testing.T) {
	t.Helper()
	m.writer.mu.Lock()
	defer m.writer.mu.Unlock()
	m.settled(t)
}

// settled waits until every Envoy routes by the files saved last, and all
// frontends and Envoys agree on the version. The caller holds the lock of the
// writer, so that no file is saved.
func (m *mesh) settled(t *testing.T) {
	t.Helper()
	want := m.writer.last
	for _, e := range m.envoys {
		must(t, program.Until(m.ctx, e.name+" to route by the files saved last", func(ctx context.Context) error {
			got := [filesOfConfig]int{routesFile: e.routes.Revision(), extraFile: e.extra.Revision()}
			var err error
			if got[shopFile], err = e.endpointWeight(ctx); err == nil && got != want {
				err = fmt.Errorf("it has revisions %d, the saved ones are %d", got, want)
			}
			return err
		}))
	}
	must(t, program.Until(m.ctx, "all frontends to serve one version", m.agreed))
}

// agreed returns nil if all frontends serve the newest version, with the same
// root, and both Envoys have acknowledged all their responses.
func (m *mesh) agreed(ctx context.Context) error {
	var newest []rig.Published
	if err := m.CLI(ctx, &newest, "versions", "-n", "1"); err != nil {
		return err
	}
	if len(newest) != 1 {
		return errors.New("there is no version")
	}
	roots := map[string]string{}
	for _, s := range m.Frontends {
		var r rig.FrontendReport
		if err := s.Debug(ctx, "frontend", &r); err != nil {
			return err
		}
		if v := r.Serving.String(); v != newest[0].Version {
			return fmt.Errorf("%s serves %s, the newest is %s", s.Name, v, newest[0].Version)
		}
		roots[r.Root] = s.Name
	}
	if len(roots) != 1 {
		return fmt.Errorf("frontends serve different roots for one version: %v", roots)
	}
	var proxies []rig.ProxyStatus
	if err := m.CLI(ctx, &proxies, "proxy-status"); err != nil {
		return err
	}
	synced := map[string]int{}
	for _, p := range proxies {
		if !slices.ContainsFunc(m.envoys, func(e *proxy) bool { return e.name == p.ID }) {
			continue
		}
		for _, typ := range p.Types {
			if typ.Status != "SYNCED" && typ.Status != "NOT SENT" || len(typ.HeldBack) > 0 {
				return fmt.Errorf("%s: %s is %s, held back %v", p.ID, typ.Type, typ.Status, typ.HeldBack)
			}
		}
		synced[p.ID]++
	}
	for _, e := range m.envoys {
		if synced[e.name] != 1 {
			return fmt.Errorf("%s is connected to %d frontends", e.name, synced[e.name])
		}
	}
	return nil
}

// oneChain demands that versions follow one another, and that no version changed
// its root. It returns the number of versions.
func (m *mesh) oneChain(t *testing.T) int {
	t.Helper()
	var all []rig.Published
	must(t, m.CLI(m.ctx, &all, "versions", "-n", "-1"))
	for i, v := range all {
		if root, ok := m.roots[v.Version]; ok && root != v.Root {
			t.Errorf("version %s had root %s, and has %s", v.Version, root, v.Root)
		}
		m.roots[v.Version] = v.Root
		if i+1 < len(all) && v.Previous != all[i+1].Version {
			t.Errorf("version %s names %s as its predecessor, which is %s", v.Version, v.Previous, all[i+1].Version)
		}
	}
	return len(all)
}

// endpointWeight returns the weight of the endpoints of shop.yaml, which is its
// revision.
func (p *proxy) endpointWeight(ctx context.Context) (int, error) {
	var dump struct {
		Configs []struct {
			Endpoints []struct {
				Config struct {
					Name      string `json:"cluster_name"`
					Endpoints []struct {
						LB []struct {
							Weight int `json:"load_balancing_weight"`
						} `json:"lb_endpoints"`
					}
				} `json:"endpoint_config"`
			} `json:"dynamic_endpoint_configs"`
		}
	}
	if err := p.ConfigDump(ctx, &dump); err != nil {
		return 0, err
	}
	weights := map[int]bool{}
	for _, c := range dump.Configs {
		for _, e := range c.Endpoints {
			if e.Config.Name != "outbound|80|v1|shop.internal" && e.Config.Name != "outbound|80|v2|shop.internal" {
				continue
			}
			for _, locality := range e.Config.Endpoints {
				for _, lb := range locality.LB {
					weights[lb.Weight] = true
				}
			}
		}
	}
	if len(weights) != 1 {
		return 0, fmt.Errorf("%s has endpoints of the weights %v", p.name, weights)
	}
	for w := range weights {
		return w, nil
	}
	return 0, nil
}
