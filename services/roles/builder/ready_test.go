package builder

import (
	"strings"
	"testing"
	"time"

	"google.golang.org/protobuf/types/known/timestamppb"

	reportv1 "meshlog.dev/proto/meshlog/report/v1"
	snapshotv1 "meshlog.dev/proto/meshlog/snapshot/v1"
)

// BUS-4: a builder that has not been connected for 10 s is not ready, and says why.
func TestReadyWhileAway(t *testing.T) {
	at := &snapshotv1.Version{Epoch: 1, Seq: 1}
	for name, test := range map[string]struct {
		report *reportv1.BuilderReport
		want   string // empty: ready
	}{
		"connected":       {&reportv1.BuilderReport{Position: at}, ""},
		"away for 5 s":    {&reportv1.BuilderReport{Position: at, Away: timestamppb.New(time.Now().Add(-5 * time.Second)), AwayReason: "no leader"}, ""},
		"away for 11 s":   {&reportv1.BuilderReport{Position: at, Away: timestamppb.New(time.Now().Add(-11 * time.Second)), AwayReason: "no leader"}, "(11s): no leader"},
		"with a warning":  {&reportv1.BuilderReport{Position: at, Warnings: []string{"a shard fills the log"}}, ""},
		"nothing is read": {&reportv1.BuilderReport{}, "has not read the log yet"},
	} {
		err := ready(test.report)
		if test.want == "" && err != nil || test.want != "" && (err == nil || !strings.Contains(err.Error(), test.want)) {
			t.Errorf("%s: %v, want %q", name, err, test.want)
		}
	}
	if err := attention(&reportv1.BuilderReport{Warnings: []string{"a shard fills the log"}}); err == nil {
		t.Error("/readyz does not show the warning")
	}
}
