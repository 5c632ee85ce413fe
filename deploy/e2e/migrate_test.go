package e2e

import (
	"context"
	"os"
	"path/filepath"
	"testing"

	"github.com/google/go-cmp/cmp"

	"meshlog.dev/deploy/e2e/rig"
)

// These tests follow "Migration" in deploy/nats/README.md, from servers of an earlier
// build, which have one account for all, to accounts (BUS-2).

// migration is a mesh on one server of an earlier build, and what it has published.
type migration struct {
	*fixture
	dir, config string
	log         []logged
	versions    []published
}

type logged struct {
	Seq uint64 `json:"seq"`
}

type published struct {
	Version string `json:"version"`
	Root    string `json:"root"`
}

func older(t *testing.T) *migration {
	m := new(migration)
	m.fixture = start(t, func(ctx context.Context, dir, config string) (*rig.Mesh, error) {
		m.dir, m.config = dir, config
		nats, err := rig.StartOlderNATS(ctx, dir)
		if err != nil {
			return nil, err
		}
		return rig.Assemble(ctx, dir, config, rig.Parts{NATS: nats, Builders: 1, Frontends: 1})
	})
	m.shift(50, 50)
	m.log, m.versions = m.told(m.mesh)
	return m
}

// told returns the log and the versions, oldest first.
func (m *migration) told(mesh *rig.Mesh) (log []logged, versions []published) {
	m.Helper()
	m.must(mesh.CLI(m.ctx, &log, "log", "-n", "1000"))
	m.must(mesh.CLI(m.ctx, &versions, "versions", "-n", "1000"))
	return log, versions
}

// stop ends all processes but Envoy.
func (m *migration) stop() {
	m.Helper()
	for _, s := range m.mesh.Servers() {
		m.must(s.Stop())
	}
	if m.mesh.NATS != nil {
		m.must(m.mesh.NATS.Stop())
	}
}

// kept demands that everything of before the migration is there, and that changes
// arrive at Envoy.
func (m *migration) kept() {
	m.Helper()
	log, versions := m.told(m.mesh)
	if len(log) < len(m.log) || len(versions) < len(m.versions) {
		m.Fatalf("%d records and %d versions are left of %d and %d", len(log), len(versions), len(m.log), len(m.versions))
	}
	before := func(v published) bool {
		for _, old := range m.versions {
			if old == v {
				return true
			}
		}
		return false
	}
	found := 0
	for _, v := range versions {
		if before(v) {
			found++
		}
	}
	if found != len(m.versions) {
		m.Errorf("%d of %d versions are left:\n%v\nwere\n%v", found, len(m.versions), versions, m.versions)
	}
	seqs := func(of []logged) (all []uint64) {
		for _, r := range of {
			all = append(all, r.Seq)
		}
		return all
	}
	if diff := cmp.Diff(seqs(m.log), seqs(log)[:len(m.log)]); diff != "" {
		m.Errorf("records (-before +after):\n%s", diff)
	}
}

// again starts the processes again, on another bus. Envoy keeps its configuration
// meanwhile; the new frontend has another port, so another Envoy joins.
func (m *migration) again(p rig.Parts) {
	m.Helper()
	p.Builders, p.Frontends = 1, 1
	mesh, err := rig.Assemble(m.ctx, m.dir, m.config, p)
	m.must(err)
	m.Cleanup(mesh.End)
	m.mesh = mesh
	m.envoy.Kill()
	m.envoy, err = mesh.Join(m.ctx, rig.EnvoyConfig{Node: node, Cluster: "demo"}, m.shop.Port)
	m.must(err)
	m.Cleanup(m.envoy.Kill)
}

// One server: the directory of its streams gets the account's name.
func TestMigrationOfOneServer(t *testing.T) {
	m := older(t)
	store := m.mesh.NATS.Data
	m.stop()
	m.must(os.Rename(filepath.Join(store, "jetstream", "$G"), filepath.Join(store, "jetstream", "MESHLOG")))
	nats, err := rig.StartNATS(m.ctx, m.dir)
	m.must(err)
	m.again(rig.Parts{NATS: nats})
	m.kept()
	m.shift(20, 80)
}

// A cluster: the log moves as an archive.
func TestMigrationOfCluster(t *testing.T) {
	m := older(t)
	archive := filepath.Join(m.dir, "mesh.archive")
	_, err := m.mesh.Show(m.ctx, "export", archive)
	m.must(err)
	m.stop()
	m.must(os.RemoveAll(m.mesh.NATS.Data))
	c, err := rig.StartNATSCluster(m.ctx, m.dir, rig.ClusterOptions{})
	m.must(err)
	m.Cleanup(c.Kill)
	var imported struct{ First, Last uint64 }
	m.must(c.AsAdmin(m.ctx, &imported, "import", archive, "--replicas", "3"))
	if imported.First != 1 || imported.Last < uint64(len(m.log)) {
		t.Errorf("imported: %+v", imported)
	}
	m.again(rig.Parts{Cluster: c})
	m.kept()
	m.shift(20, 80)
}
