// Package streams holds the settings of the streams that a builder creates.
// `meshlog streams` and `meshlog import` use the same.
package streams

import (
	"cmp"
	"slices"
	"time"

	"meshlog.dev/events/natslog"
	"meshlog.dev/services/builder"
	"meshlog.dev/services/internal/bus"
	"meshlog.dev/store/natsfeed"
)

// The settings of a builder whose flags give none.
const (
	DefaultHistory  = 8 * 24 * time.Hour
	DefaultLogBytes = 4 << 30
)

// Log returns the settings of the log's stream. Records stay for longer than the
// promised history, by two of the intervals at which a checkpoint of the fold is
// due, so that the oldest version of that history can be folded from one.
func Log(domain string, replicas int, history time.Duration, logBytes int64) natslog.StreamOptions {
	return natslog.StreamOptions{
		Options: natslog.Options{Domain: domain}, Replicas: replicas,
		MaxAge: history + 2*builder.CheckpointEvery(history), MaxBytes: logBytes,
	}
}

// History returns the history that streams promise: the age of the versions; the
// log is kept longer.
func History(states []bus.StreamState) time.Duration {
	i := slices.IndexFunc(states, func(s bus.StreamState) bool { return s.Name == natsfeed.Stream })
	return cmp.Or(states[i].Is.MaxAge, DefaultHistory)
}

// All returns the streams of a mesh as a builder makes them.
func All(domain string, replicas int, history time.Duration, logBytes int64) []bus.StreamConfig {
	log := Log(domain, replicas, history, logBytes)
	chain := natsfeed.StreamOptions{Replicas: replicas, MaxAge: history}
	return []bus.StreamConfig{log.Config(), chain.Config(), chain.BlobConfig(), bus.LeaseConfig(replicas)}
}
