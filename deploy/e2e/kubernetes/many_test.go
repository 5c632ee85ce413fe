package kubernetes

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"meshlog.dev/deploy/e2e/rig"
)

// The builder's holdoff: the quiet period that it waits for, and the longest
// wait.
const (
	quiet      = 20 * time.Millisecond
	holdoffMax = 500 * time.Millisecond
)

// applied writes many objects, and counts the versions that they cause.
func (w *world) applied(ctx context.Context, t *testing.T) {
	const objects, writers = 500, 5
	before, begun := w.serving(ctx, t), w.objects(ctx, t)
	at := time.Now()
	documents := manyRoutes(writers, objects)
	errs := make([]error, writers)
	var all sync.WaitGroup
	for i, d := range documents {
		all.Go(func() { errs[i] = w.east.Apply(ctx, d) })
	}
	all.Wait()
	took := time.Since(at)
	must(t, errors.Join(errs...))
	w.untilSource(ctx, t, w.east, fmt.Sprintf("%d objects more", objects), func(s source) bool {
		return s.Objects == begun[w.east.Name]+objects
	})
	versions, pauses := w.versions(ctx, t, before), w.pauses(ctx, t, before)
	t.Logf("%d objects applied in %s: %d versions, %d pauses", objects, took.Round(time.Millisecond), versions, pauses)
	// A pause of the log longer than the quiet period ends a version.
	if most := int(took/holdoffMax) + 2 + pauses; versions > most {
		t.Errorf("%d objects applied in %s made %d versions, want %d at most", objects, took, versions, most)
	}
}

// manyRoutes returns n VirtualServices that no Envoy here uses, in parts.
func manyRoutes(parts, n int) []string {
	all := make([]strings.Builder, parts)
	for i := range n {
		fmt.Fprintf(&all[i%parts], `---
apiVersion: networking.istio.io/v1
kind: VirtualService
metadata: {name: many-%[1]d, namespace: demo}
spec: {hosts: [many-%[1]d.example.com], http: [{route: [{destination: {host: shop}}]}]}
`, i)
	}
	documents := make([]string, parts)
	for i := range all {
		documents[i] = all[i].String()
	}
	return documents
}

// versions returns how many versions were published after one.
func (w *world) versions(ctx context.Context, t *testing.T, after rig.Version) int {
	t.Helper()
	var all []rig.Published
	must(t, w.mesh.CLI(ctx, &all, "versions", "--tail", "-1"))
	for n, v := range all { // newest first
		if v.Version == after.String() {
			return n
		}
	}
	t.Fatalf("version %s is not among %d", after, len(all))
	return 0
}

// pauses returns how often the log was idle for the quiet period, since a
// version.
func (w *world) pauses(ctx context.Context, t *testing.T, after rig.Version) int {
	t.Helper()
	var records []struct{ Time time.Time }
	must(t, w.mesh.CLI(ctx, &records, "log", "--from", fmt.Sprint(after.Seq+1), "--op", "put"))
	n := 0
	for i := 1; i < len(records); i++ {
		if gap := records[i].Time.Sub(records[i-1].Time); gap >= quiet {
			n++
		}
	}
	return n
}
