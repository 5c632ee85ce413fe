package faults

import (
	"context"
	"fmt"
	"strings"
	"testing"

	"meshlog.dev/deploy/testkit/program"
)

// bulk is more services than fit in one atomic batch of the bus. No Envoy here
// uses them.
const (
	bulk     = 600
	bulkFile = "bulk.yaml"
)

const bulkYAML = `---
apiVersion: networking.istio.io/v1
kind: ServiceEntry
metadata: {name: bulk-%[1]d, namespace: bulk}
spec:
  hosts: [bulk-%[1]d.internal]
  exportTo: ["."]
  ports: [{number: 80, name: http, protocol: HTTP}]
  resolution: STATIC
  endpoints: [{address: 192.0.2.1}]
`

// saveBulk saves all of them at once.
func (m *mesh) saveBulk(t *testing.T) {
	t.Helper()
	var text strings.Builder
	for i := range bulk {
		fmt.Fprintf(&text, bulkYAML, i)
	}
	_, err := m.writer.dir.Save(bulkFile, text.String())
	must(t, err)
}

// hasBulk waits until the watcher has published all of them.
func (m *mesh) hasBulk(t *testing.T) {
	t.Helper()
	must(t, m.Watcher.UntilAlive(m.ctx, "the watcher to publish every object", func(ctx context.Context) error {
		var r struct {
			Keys, Pending int `json:",string"`
		}
		err := m.Watcher.Debug(ctx, "watcher-file-default", &r)
		if err == nil && (r.Keys < bulk || r.Pending > 0) {
			err = fmt.Errorf("it has published %d objects, %d are pending", r.Keys-r.Pending, r.Pending)
		}
		return err
	}))
	m.flows(t) // earlier changes are served, too
}

// hold is a removal that the guard holds (meshlog approve).
type hold struct{ ID string }

// held waits until the guard holds as many removals as wanted.
func (m *mesh) held(t *testing.T, want int) (holds []hold) {
	t.Helper()
	must(t, program.Until(m.ctx, fmt.Sprintf("%d holds", want), func(ctx context.Context) error {
		err := m.CLI(ctx, &holds, "approve")
		if err == nil && len(holds) != want {
			err = fmt.Errorf("holds: %v", holds)
		}
		return err
	}))
	return holds
}

// loseBulk removes all of them at once, and waits until the guard holds the
// removal.
func (m *mesh) loseBulk(t *testing.T) {
	t.Helper()
	must(t, m.writer.dir.Remove(bulkFile))
}

// approve approves the held removal.
func (m *mesh) approve(t *testing.T) {
	t.Helper()
	for _, h := range m.held(t, 1) {
		var done any
		must(t, m.CLI(m.ctx, &done, "approve", h.ID))
	}
	m.held(t, 0)
}
