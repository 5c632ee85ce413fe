//go:build faults && linux

package faults

import (
	"context"
	"fmt"
	"path/filepath"
	"testing"
	"time"

	"meshlog.dev/deploy/e2e/rig"
)

// nodeDisk is the disk size, in MiB, of a NATS server whose disk a test fills.
const nodeDisk = 64

// onThree starts a mesh on three NATS servers. If network is not nil, each process
// has its own place on it.
func onThree(folder string, network *rig.Network, builders, twins int, ofBuilders ...string) arrangement {
	return func(ctx context.Context, dir, config string) (*rig.Mesh, error) {
		var o rig.ClusterOptions
		p := rig.Parts{Builders: builders, Frontends: 2, Twins: twins, Folder: folder, OfBuilders: ofBuilders}
		if network != nil {
			var places []rig.Place
			for i := range 3 {
				place, err := network.Join(fmt.Sprintf("nats-%d", i+1))
				if err != nil {
					return nil, err
				}
				places, o.Hosts = append(places, place), append(o.Hosts, place.Host)
			}
			o.Wrap = func(node int, argv []string) []string { return places[node].Command(argv...) }
			p.Place = network.Join
		}
		var err error
		if p.Cluster, err = rig.StartNATSCluster(ctx, dir, o); err != nil {
			return nil, err
		}
		return rig.Assemble(ctx, dir, config, p)
	}
}

// wait lets a fault last.
func (m *mesh) wait(d time.Duration) {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-m.ctx.Done():
	}
}

// noticed is longer than any process takes to notice that the bus sends nothing
// any more.
const noticed = 16 * time.Second

// One of three NATS servers dies in every way, in each of the roles that it may
// have for a stream. No acknowledged record is lost, and changes continue.
func TestOneOfThreeNATS(t *testing.T) {
	m := start(t, onThree("", nil, 2, 1))
	leader := func(t *testing.T, stream string) *rig.NATS {
		n, err := m.Cluster.Leader(m.ctx, stream)
		must(t, err)
		return n
	}
	back := func(t *testing.T, n *rig.NATS) {
		must(t, n.Restart(m.ctx))
		must(t, n.Ready(m.ctx))
	}
	for _, stream := range []string{rig.Events, rig.Versions} {
		m.fault(t, "killed, the one that leads "+stream, func(t *testing.T) {
			n := leader(t, stream)
			m.later(time.Second)
			n.Kill()
			m.flows(t)
			back(t, n)
		})
		m.fault(t, "paused, the one that leads "+stream, func(t *testing.T) {
			n := leader(t, stream)
			m.later(time.Second)
			must(t, n.Pause())
			m.flows(t)
			m.wait(noticed)
			m.flows(t)
			must(t, n.Resume())
			must(t, n.Ready(m.ctx))
		})
	}
	for i, n := range m.Cluster.Nodes {
		m.fault(t, fmt.Sprintf("data deleted, %d", i+1), func(t *testing.T) {
			n.Kill()
			must(t, n.Wipe())
			m.flows(t)
			back(t, n)
			must(t, m.Cluster.CaughtUp(m.ctx, rig.Events))
			must(t, m.Cluster.CaughtUp(m.ctx, rig.Versions))
		})
	}
	m.fault(t, "all killed", func(t *testing.T) {
		m.later(time.Second)
		m.Cluster.Kill()
		m.wait(noticed)
		must(t, m.Cluster.Restart(m.ctx))
	})
	m.fault(t, "all paused", func(t *testing.T) {
		for _, n := range m.Cluster.Nodes {
			must(t, n.Pause())
		}
		m.wait(noticed)
		for _, n := range m.Cluster.Nodes {
			must(t, n.Resume())
		}
	})
	m.fault(t, "two killed", func(t *testing.T) {
		for _, n := range m.Cluster.Nodes[1:] {
			n.Kill()
		}
		m.wait(noticed)
		for _, n := range m.Cluster.Nodes[1:] {
			back(t, n)
		}
	})
}

// The disk of a NATS server fills up: of one server of three, and of all.
func TestNATSDiskFull(t *testing.T) {
	var disks []*rig.SmallDisk
	m := start(t, func(ctx context.Context, dir, config string) (*rig.Mesh, error) {
		for i := range 3 {
			d, err := rig.MountSmallDisk(filepath.Join(dir, fmt.Sprintf("nats-%d.data", i+1)), nodeDisk)
			if err != nil {
				return nil, err
			}
			t.Cleanup(func() { must(t, d.Unmount()) })
			disks = append(disks, d)
		}
		return onThree("", nil, 2, 0, "--log-mib", "16", "--audit-mib", "4")(ctx, dir, config)
	})
	for i, d := range disks {
		m.fault(t, fmt.Sprintf("of %d", i+1), func(t *testing.T) {
			must(t, d.Fill())
			m.flows(t)
			m.wait(noticed)
			m.flows(t)
			must(t, d.Free())
			n := m.Cluster.Nodes[i]
			// A server that failed to write logs that, and stays out of the
			// cluster until it is restarted.
			n.Kill()
			must(t, n.Restart(m.ctx))
			must(t, n.Ready(m.ctx))
		})
	}
	m.fault(t, "of all", func(t *testing.T) {
		for _, d := range disks {
			must(t, d.Fill())
		}
		m.wait(noticed)
		for _, d := range disks {
			must(t, d.Free())
		}
		m.Cluster.Kill()
		must(t, m.Cluster.Restart(m.ctx))
	})
}

// All processes are killed as in TestKilled, on three NATS servers.
func TestKilledOnThreeNATS(t *testing.T) {
	m := start(t, onThree("", nil, 2, 1))
	m.killEach(t)
}
