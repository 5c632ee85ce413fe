// Package streams holds the settings of the streams that a builder creates.
// `meshlog streams` and `meshlog import` use the same.
package streams

import (
	"cmp"
	"slices"
	"time"

	"meshlog.dev/events/natslog"
	"meshlog.dev/services/builder"
	"meshlog.dev/services/internal/audit"
	"meshlog.dev/services/internal/bus"
	"meshlog.dev/services/internal/cakv"
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

// Sizes are the settings that operators choose, by the flags of a builder or of
// `meshlog streams`.
type Sizes struct {
	Replicas     int
	History      time.Duration // of the log and the versions
	LogBytes     int64
	AuditHistory time.Duration
	AuditBytes   int64
}

// All returns the streams of a mesh as a builder makes them.
func All(domain string, s Sizes) []bus.StreamConfig {
	log := Log(domain, s.Replicas, s.History, s.LogBytes)
	chain := natsfeed.StreamOptions{Replicas: s.Replicas, MaxAge: s.History}
	return []bus.StreamConfig{
		log.Config(), chain.Config(), chain.BlobConfig(), bus.LeaseConfig(s.Replicas), s.Audit().Config(), cakv.Config(s.Replicas),
	}
}

// Audit returns the settings of the stream of the audit.
func (s Sizes) Audit() audit.StreamOptions {
	return audit.StreamOptions{Replicas: s.Replicas, History: s.AuditHistory, Bytes: s.AuditBytes}
}
