package floor

import (
	"slices"
	"testing"

	"meshlog.dev/deploy/e2e/rig"
)

func TestMeasure(t *testing.T) {
	nats, err := rig.StartNATS(t.Context(), t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(nats.Kill)
	key, err := nats.Admin()
	if err != nil {
		t.Fatal(err)
	}
	took, err := Measure(t.Context(), nats.URL(), key, 20)
	if err != nil {
		t.Fatal(err)
	}
	if len(took) != 20 || slices.Min(took) <= 0 {
		t.Errorf("20 changes took %v", took)
	}
	slices.Sort(took)
	t.Logf("p50 %v, longest %v", took[10], took[19])
	if err := nats.Stop(); err != nil {
		t.Error(err)
	}
}
