package command

import (
	"errors"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/protobuf/types/known/timestamppb"
	reportv1 "meshlog.dev/proto/meshlog/report/v1"
	"meshlog.dev/services/internal/process"
)

var at = time.Date(2026, 11, 21, 12, 0, 0, 0, time.UTC)

func TestParseQuota(t *testing.T) {
	for _, c := range []struct {
		text    string
		streams uint32
		want    uint32
	}{
		{"100%", 7, 7}, {"95%", 20, 19}, {"95%", 21, 20}, {"50%", 0, 1}, {"0.1%", 10, 1}, {"3", 100, 3}, {"0", 100, 0},
	} {
		q, err := ParseQuota(c.text)
		if err != nil {
			t.Fatal(err)
		}
		if got := q.Of(c.streams); got != c.want {
			t.Errorf("%s of %d are %d, want %d", c.text, c.streams, got, c.want)
		}
	}
	for _, text := range []string{"", "x", "x%", "0%", "101%", "-1", "1.5"} {
		if _, err := ParseQuota(text); !errors.As(err, new(*process.UsageError)) {
			t.Errorf("--for %q: %v, want an error of the caller", text, err)
		}
	}
}

// REG-15: what a watcher of a registry reports is shown.
func TestREG15Report(t *testing.T) {
	var v Source
	v.addReport(&reportv1.WatcherReport{State: "following", Registry: &reportv1.RegistryReport{
		Services: 3, Instances: 9, Doubted: "why", Polled: 2, Swept: 1, Remedy: "what", OldestRead: timestamppb.New(at), Error: "err", ErrorTime: timestamppb.New(at),
	}})
	want := &Registry{Services: 3, Instances: 9, Doubted: "why", Polled: 2, Swept: 1, Remedy: "what", OldestRead: Stamp(at), Error: "err", ErrorTime: Stamp(at)}
	if diff := cmp.Diff(want, v.Registry); diff != "" {
		t.Error(diff)
	}
}

// AGG-7: a source that its process does not list any more is not configured, is frozen, and
// has no watcher; another process that watches it counts.
func TestNotConfigured(t *testing.T) {
	gone, other := &reportv1.WatcherReport{State: "not configured", Holder: "w1"}, &reportv1.WatcherReport{State: "following", Holder: "w2", Keys: 2}
	v := Source{State: StateSilent}
	v.addReport(gone)
	v.freeze(2)
	if v.State != StateNotConfigured || v.Holder != "w1" || !v.Frozen || v.Objects != 2 || v.HasWatcher() {
		t.Errorf("got %+v", v)
	}
	for _, reports := range [][]*reportv1.WatcherReport{{gone, other}, {other, gone}} {
		v := Source{State: StateSilent}
		for _, r := range reports {
			v.addReport(r)
		}
		v.freeze(2)
		if v.State != "following" || v.Holder != "w2" || v.Frozen || !v.HasWatcher() {
			t.Errorf("with another watcher: %+v", v)
		}
	}
}

// A standby is listed beside the watcher that publishes.
func TestHearWatchers(t *testing.T) {
	var v Source
	v.addReport(&reportv1.WatcherReport{State: "standby", Holder: "w2"})
	v.addReport(&reportv1.WatcherReport{State: "listing", Holder: "w1", Keys: 3, Partial: true, Listed: timestamppb.New(at)})
	if diff := cmp.Diff(Source{State: "listing", Holder: "w1", Standbys: []string{"w2"}, Objects: 3, Partial: true, Listed: Stamp(at), Problems: []Diagnostic{}}, v); diff != "" {
		t.Error(diff)
	}
}
