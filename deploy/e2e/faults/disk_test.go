//go:build faults && linux

package faults

import (
	"context"
	"path/filepath"
	"testing"

	"meshlog.dev/deploy/e2e/rig"
)

// The disk of a builder or a frontend is full: the process continues without it,
// and uses it again when there is room.
func TestDiskFull(t *testing.T) {
	disks := map[string]*rig.SmallDisk{}
	one := onOne("", 2, 0)
	m := start(t, func(ctx context.Context, dir, config string) (*rig.Mesh, error) {
		for _, name := range []string{"builder-1", "builder-2", "frontend-1", "frontend-2"} {
			d, err := rig.MountSmallDisk(filepath.Join(dir, name), 16)
			if err != nil {
				return nil, err
			}
			t.Cleanup(func() { must(t, d.Unmount()) })
			disks[name] = d
		}
		return one(ctx, dir, config)
	})
	full := func(t *testing.T, names ...string) {
		for _, name := range names {
			must(t, disks[name].Fill())
		}
		m.saveBulk(t) // may be more than fits in a file's free pages
		m.hasBulk(t)
		m.loseBulk(t)
		m.approve(t)
		m.flows(t)
	}
	free := func(t *testing.T, names ...string) {
		for _, name := range names {
			must(t, disks[name].Free())
		}
	}
	m.fault(t, "the leader's", func(t *testing.T) {
		leader, _ := m.leader(t)
		full(t, leader.Name)
		var r rig.BuilderReport
		must(t, leader.Debug(m.ctx, "builder", &r))
		if r.Leader {
			t.Errorf("%s still leads", leader.Name)
		}
		free(t, leader.Name)
	})
	m.fault(t, "both builders' disks", func(t *testing.T) {
		full(t, "builder-1", "builder-2")
		free(t, "builder-1", "builder-2")
	})
	m.fault(t, "both builders' disks, and they are killed", func(t *testing.T) {
		full(t, "builder-1", "builder-2")
		for _, s := range m.Builders {
			s.Kill()
			must(t, s.Restart())
		}
		m.flows(t)
		free(t, "builder-1", "builder-2")
	})
	m.fault(t, "both frontends' disks", func(t *testing.T) {
		full(t, "frontend-1", "frontend-2")
		free(t, "frontend-1", "frontend-2")
	})
	m.fault(t, "a frontend's disk, and it is killed", func(t *testing.T) {
		full(t, "frontend-1")
		m.killed(t, m.Frontends[0])
		free(t, "frontend-1")
	})
}
