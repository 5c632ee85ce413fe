package builderup

import (
	"testing"
	"time"
)

// Who has lost its blobs says so once, under the epoch in which they were there.
func TestKeeperSeesBlobsMadeAnew(t *testing.T) {
	first := time.Unix(1_800_000_000, 0)
	again := first.Add(time.Minute)
	type look struct {
		made  time.Time
		epoch uint64
	}
	for _, c := range []struct {
		name  string
		looks []look
		want  uint64 // 0: nothing is said
	}{
		{"they stay", []look{{first, 1}, {first, 1}, {first, 2}}, 0},
		{"they are made anew", []look{{first, 1}, {again, 1}, {again, 1}}, 1},
		{"an epoch has begun since", []look{{first, 1}, {again, 2}}, 1},
		{"before the first look", []look{{again, 1}}, 1},
		{"before the log was read", []look{{again, 0}, {again, 0}, {again, 3}, {again, 3}}, 3},
	} {
		epoch := uint64(0)
		k := &keeper{blobsMade: first, epoch: func() uint64 { return epoch }, lost: make(chan uint64, 10)}
		for _, l := range c.looks {
			epoch = l.epoch
			k.saw(l.made)
		}
		close(k.lost)
		var got []uint64
		for e := range k.lost {
			got = append(got, e)
		}
		if c.want == 0 && len(got) > 0 || c.want > 0 && (len(got) != 1 || got[0] != c.want) {
			t.Errorf("%s: says %v, want %d", c.name, got, c.want)
		}
	}
}
