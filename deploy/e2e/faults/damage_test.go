//go:build faults

package faults

import (
	"os"
	"path/filepath"
	"testing"

	"meshlog.dev/deploy/e2e/rig"
)

// file returns the path of the file that a builder or a frontend keeps.
func (m *mesh) file(s *rig.Server) string {
	role := "builder"
	if s.XDS != 0 {
		role = "frontend"
	}
	return filepath.Join(m.Dir(), s.Name, role, "versions.db")
}

// The file of a builder or a frontend is damaged or deleted while the process is
// down. The process gets the content from the bus again.
func TestFileDamaged(t *testing.T) {
	m := start(t, onOne("", 1, 0))
	m.fault(t, "no fault, but files of more than a few pages", func(t *testing.T) {
		m.saveBulk(t)
		m.hasBulk(t)
	})
	for _, s := range []*rig.Server{m.Builders[0], m.Frontends[0]} {
		for _, harm := range []struct {
			what string
			do   func(t *testing.T, path string)
		}{
			{"cut in half", func(t *testing.T, path string) { must(t, os.Truncate(path, size(t, path)/2)) }},
			{"cut to an odd length", func(t *testing.T, path string) { must(t, os.Truncate(path, 1+m.dice.Int64N(size(t, path)))) }},
			{"emptied", func(t *testing.T, path string) { must(t, os.Truncate(path, 0)) }},
			{"removed", func(t *testing.T, path string) { must(t, os.Remove(path)) }},
			{"bit flipped", func(t *testing.T, path string) { m.flip(t, path, 0, size(t, path), 1) }},
			{"bits flipped", func(t *testing.T, path string) { m.flip(t, path, 0, size(t, path), 64) }},
			{"bits flipped at the start", func(t *testing.T, path string) { m.flip(t, path, 0, 2*4096, 4) }},
			{"replaced by zeros", func(t *testing.T, path string) { must(t, os.WriteFile(path, make([]byte, 1<<16), 0o600)) }},
		} {
			m.fault(t, s.Name+"'s "+harm.what, func(t *testing.T) {
				s.Kill()
				harm.do(t, m.file(s))
				m.saves(t)
				must(t, s.Restart())
				must(t, s.Ready(m.ctx))
			})
		}
		m.fault(t, s.Name+"'s cut while it runs", func(t *testing.T) {
			must(t, os.Truncate(m.file(s), size(t, m.file(s))/2))
			m.flows(t)
			s.Kill()
			must(t, s.Restart())
			must(t, s.Ready(m.ctx))
		})
	}
}

// flip inverts n bits of a part of a file.
func (m *mesh) flip(t *testing.T, path string, from, to int64, n int) {
	t.Helper()
	b, err := os.ReadFile(path)
	must(t, err)
	for range n {
		b[from+m.dice.Int64N(to-from)] ^= 1 << m.dice.IntN(8)
	}
	must(t, os.WriteFile(path, b, 0o600))
}
