package builder

import (
	"slices"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"meshlog.dev/store"
	"meshlog.dev/store/memstore"
)

// resets are the ways in which a new epoch begins. Each gets the record before the rollout.
var resets = map[string]func(r *rig, d *driver, before uint64){
	"the log is rewound to before the rollout": func(r *rig, _ *driver, before uint64) { r.log.Rewind(before) },
	"the log is rewound by one record":         func(r *rig, _ *driver, _ uint64) { r.log.Rewind(r.bounds().Last - 1) },
	"the versions have expired":                func(r *rig, _ *driver, _ uint64) { r.chain.Expire() },
	"the blobs are lost": func(r *rig, d *driver, _ uint64) {
		head, err := r.chain.Head(r.t.Context())
		if err != nil {
			r.t.Fatal(err)
		}
		r.chain.Trim(head.Seq - 1)
		r.chain.LoseBlobs()
		d.BlobsLost(head.Version().Epoch)
	},
}

// epoch makes a new epoch begin, in which the source lists all again. Another builder, which
// has nothing stored, leads then.
func (r *rig) epoch(d *driver, reset func(*rig, *driver, uint64), before uint64) *driver {
	r.t.Helper()
	was := d.Position().Epoch
	reset(r, d, before)
	d.settle()
	r.list()
	d.settle()
	if now := d.Position().Epoch; now <= was {
		r.t.Fatalf("epoch %d, want one above %d", now, was)
	}
	d.Lead(false)
	next := r.stagedLeader("b1", &memstore.File{})
	next.settle()
	r.pass(time.Minute)
	return next
}

// The namespaces of proxies, as timeouts has them.
const (
	canary = iota
	_
	rest
)

// wantTimeoutsSince checks which timeouts of the cluster b the versions of epochs after one
// give proxies of a namespace, one after the other.
func (r *rig) wantTimeoutsSince(epoch uint64, of int, want ...int64) {
	r.t.Helper()
	var got []int64
	for _, m := range r.versions() {
		if v := store.VersionOf(m.GetVersion()); v.Epoch > epoch {
			got = append(got, r.timeoutsIn(r.worldAt(v))[of])
		}
	}
	if diff := cmp.Diff(want, slices.Compact(got)); diff != "" {
		r.t.Errorf("timeouts of the versions since epoch %d (-want +got):\n%s", epoch, diff)
	}
}

// M7: a rollout that runs when a new epoch begins stays at its step, and what waits keeps
// waiting. No version gives proxies that it has not reached the change, and it goes on.
func TestARolloutGoesOnInANewEpoch(t *testing.T) {
	for name, reset := range resets {
		t.Run(name, func(t *testing.T) {
			r, d := stagingB(t)
			before := r.bounds().Last
			r.cluster("b", 2)
			d.settle()
			r.cluster("b", 3)
			d.settle()
			last := d.Position().Epoch
			d = r.epoch(d, reset, before)
			r.wantTimeouts("in the new epoch", 2, 1, 1)
			wantRollouts(t, d, "running namespace=canary", "waiting none")
			r.reports(d, 3, 2)
			r.wantTimeouts("not all have applied it", 2, 1, 1)
			r.reports(d, 3, 3)
			r.wantTimeouts("second step", 2, 2, 1)
			r.pass(time.Minute)
			r.reports(d, 5, 5)
			r.wantTimeouts("what waited is the next rollout", 3, 2, 2)
			r.wantTimeoutsSince(last, rest, 1, 2)
			if w := d.Report().GetWarnings(); len(w) > 0 {
				t.Errorf("warnings %v", w)
			}
		})
	}
}

// M7: what a rollout that was stopped keeps in service stays in a new epoch, until the source
// offers another value. That is a new rollout.
func TestAStoppedRolloutStaysStoppedInANewEpoch(t *testing.T) {
	for name, reset := range resets {
		t.Run(name, func(t *testing.T) {
			r, d := stagingB(t)
			before := r.bounds().Last
			r.cluster("b", 2)
			d.settle()
			r.reports(d, 2, 1, r.rejects("canary"))
			r.wantTimeouts("stopped", 1, 1, 1)
			last := d.Position().Epoch
			d = r.epoch(d, reset, before)
			r.wantTimeouts("in the new epoch", 1, 1, 1)
			wantStopped(t, d, "stopped none")
			r.wantTimeoutsSince(last, canary, 1)
			r.cluster("b", 4)
			d.settle()
			r.wantTimeouts("another value", 4, 1, 1)
			r.reports(d, 2, 2)
			r.pass(time.Minute)
			r.reports(d, 3, 3)
			r.wantTimeouts("after the last step", 4, 4, 4)
		})
	}
}
