package rollback

import (
	"errors"
	"log/slog"
	"path/filepath"
	"testing"

	"meshlog.dev/events"
	"meshlog.dev/services/internal/bus"
	"meshlog.dev/services/internal/process"
	"meshlog.dev/services/operate/command"
	"meshlog.dev/services/operate/operatetest"
)

// A plan writes nothing. DoUnchanged writes only if the log has no record since, and the sum of a
// plan says whether it still changes the same.
func TestPlan(t *testing.T) {
	m := operatetest.Start(t, map[string]string{"a.yaml": service("a", "10.0.0.1")})
	var versions []struct{ Version string }
	must(t, m, &versions, "versions")
	save(t, m, "a.yaml", service("a", "10.0.0.2"))

	conn, err := bus.ConnectWait(t.Context(), bus.ConnectOptions{URL: filepath.Join(m.Data, bus.FileName), Role: bus.Operator(), Name: "test", Log: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(conn.Close)
	target := command.On(conn, process.DefaultDomain)
	t.Cleanup(func() {
		if err := target.Close(); err != nil {
			t.Error(err)
		}
	})
	mesh, err := Open(t.Context(), target)
	if err != nil {
		t.Fatal(err)
	}
	plan := func() *Plan {
		t.Helper()
		p, err := mesh.Plan(t.Context(), Intent{Act: ActRollback, Version: versions[0].Version, Objects: []string{"ServiceEntry/demo/a"}, Reason: "test"})
		if err != nil {
			t.Fatal(err)
		}
		return p
	}
	last := func() uint64 {
		t.Helper()
		b, err := mesh.log.Bounds(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		return b.Last
	}

	first := plan()
	if first.At.Seq != last() || first.Seq != 0 {
		t.Fatalf("the plan knows the log to %s and wrote %d; the log ends at %d", first.At, first.Seq, last())
	}
	save(t, m, "b.yaml", service("b", "10.0.0.3"))
	before := last()
	if err := first.DoUnchanged(t.Context()); !errors.Is(err, events.ErrConflict) || last() != before || first.Seq != 0 {
		t.Errorf("after another record: %v, record %d, the log went on from %d to %d", err, first.Seq, before, last())
	}
	again := plan()
	if again.Sum() != first.Sum() {
		t.Error("another object changed, and the sum of the plan did too")
	}
	save(t, m, "a.yaml", service("a", "10.0.0.9"))
	changed := plan()
	if changed.Sum() == first.Sum() {
		t.Error("the object changed, and the sum of the plan did not")
	}
	if err := changed.DoUnchanged(t.Context()); err != nil || changed.Seq != last() || changed.Version.IsZero() {
		t.Errorf("a plan of the whole log: %v, record %d, version %s; the log ends at %d", err, changed.Seq, changed.Version, last())
	}
	if p := plan(); p.Nothing == "" {
		t.Errorf("rolled back already: %+v", p.Changes)
	}
}

// The command of an intent is one that a shell takes as it is written.
func TestIntentCommand(t *testing.T) {
	for want, i := range map[string]Intent{
		"meshlog rollback 1.2 VirtualService/shop/cart --reason ...":           {Act: ActRollback, Version: "1.2", Objects: []string{"VirtualService/shop/cart"}},
		"meshlog rollback 'latest~1' --namespace shop --reason 'it'\\''s bad'": {Act: ActRollback, Version: "latest~1", Namespace: "shop", Reason: "it's bad"},
		"meshlog pin 1.2 --proxies namespace=shop,app=cart --reason ...":       {Act: ActPin, Version: "1.2", Proxies: "namespace=shop,app=cart"},
		"meshlog freeze '$(id)/x' --reason ...":                                {Act: ActFreeze, Source: "$(id)/x"},
		"meshlog release rollback-1":                                           {Act: ActRelease, ID: "rollback-1"},
		"meshlog unpin pin-1":                                                  {Act: ActUnpin, ID: "pin-1"},
		"meshlog approve hold-1":                                               {Act: ActApprove, ID: "hold-1"},
	} {
		if got := i.Command(); got != want {
			t.Errorf("got %s, want %s", got, want)
		}
	}
}
