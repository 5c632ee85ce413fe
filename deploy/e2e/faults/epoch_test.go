//go:build faults

package faults

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"testing"

	"meshlog.dev/deploy/e2e/rig"
	"meshlog.dev/deploy/testkit/program"
)

// blobs is the stream of objects that are too large for a message.
const blobs = "OBJ_meshlog_blobs"

// The bus comes back with fewer records than it had acknowledged, in all streams
// or in one. An epoch begins, and the objects of the sources are served as
// before.
func TestBusForgets(t *testing.T) {
	m := start(t, onOne("", 2, 0))
	for _, c := range []struct {
		what    string
		stream  string // empty: all streams
		rewound bool   // otherwise the stream is gone
		epoch   bool   // an epoch must begin; otherwise one may
	}{
		{"everything is rewound", "", true, true},
		{"everything is gone", "", false, true},
		{"the log is rewound", rig.Events, true, true},
		{"the log is gone", rig.Events, false, true},
		{"the versions are rewound", rig.Versions, true, false},
		{"the versions are gone", rig.Versions, false, true},
		{"the lease is gone", "KV_meshlog_lease", false, false},
		{"the blobs are gone", blobs, false, true},
	} {
		m.fault(t, c.what, func(t *testing.T) {
			before := m.epoch(t)
			where := m.stream(t, c.stream)
			old := filepath.Join(t.TempDir(), "old")
			m.noReplay = m.noReplay || c.stream == blobs
			m.NATS.Kill()
			if c.rewound {
				must(t, os.CopyFS(old, os.DirFS(where)))
				must(t, m.NATS.Restart(m.ctx))
				m.flows(t)
				m.flows(t)
				m.NATS.Kill()
			}
			must(t, os.RemoveAll(where))
			if c.rewound {
				must(t, os.CopyFS(where, os.DirFS(old)))
			}
			m.log.Forget()
			m.chain.Forget()
			must(t, m.NATS.Restart(m.ctx))
			m.flows(t)
			m.cold(t, m.Frontends[0])
			for _, b := range m.Builders {
				m.cold(t, b)
			}
			if after := m.epoch(t); after < before || after == before && c.epoch {
				t.Errorf("epoch %d after %d", after, before)
			}
		})
	}
}

// cold starts a server without local data.
func (m *mesh) cold(t *testing.T, s *rig.Server) {
	t.Helper()
	s.Kill()
	must(t, os.Remove(m.file(s)))
	must(t, s.Restart())
	must(t, s.Ready(m.ctx))
}

// stream returns the directories in which NATS keeps a stream, or all streams.
func (m *mesh) stream(t *testing.T, name string) string {
	t.Helper()
	if name == "" {
		return filepath.Join(m.NATS.Data, "jetstream")
	}
	found, err := filepath.Glob(filepath.Join(m.NATS.Data, "jetstream", "*", "streams", name))
	must(t, err)
	if len(found) != 1 {
		t.Fatalf("stream %s is kept in %v", name, found)
	}
	return found[0]
}

// epoch returns the epoch of the newest version that all frontends serve.
func (m *mesh) epoch(t *testing.T) uint64 {
	t.Helper()
	var v rig.Version
	must(t, program.Until(m.ctx, "frontends that serve one epoch", func(ctx context.Context) error {
		v = rig.Version{}
		for _, s := range m.Frontends {
			var r rig.FrontendReport
			if err := s.Debug(ctx, "frontend", &r); err != nil {
				return err
			}
			if v.Epoch != 0 && v.Epoch != r.Serving.Epoch {
				return fmt.Errorf("%d and %d", v.Epoch, r.Serving.Epoch)
			}
			v = r.Serving
		}
		return nil
	}))
	return v.Epoch
}
