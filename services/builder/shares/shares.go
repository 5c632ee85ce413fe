// Package shares counts how many bytes of the log the records of each shard take,
// so that one shard that fills the log is found before the log is full (BUS-6).
//
// It counts every record, also those that no builder can decode. Nothing is
// stored: the log itself says what is on it.
package shares

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"sync"

	"github.com/prometheus/client_golang/prometheus"

	"meshlog.dev/proto/ident"
	reportv1 "meshlog.dev/proto/meshlog/report/v1"
)

// span is how many records one count covers. Records expire in the order of the
// log, so a count is dropped as a whole once its last record has expired.
const span = 1024

// A process that watches all instances of a source may write under invented ones.
const (
	// maxInstances is how many instances of a source are counted one by one; records
	// of others are of the instance Others.
	maxInstances = 1000
	// Others is no instance: it has characters that none has.
	Others = "(others)"
	// maxReported is how many shares a report and the metrics have, the largest ones.
	maxReported = 100
	// maxName is how much of the name of a source or an instance is kept, in bytes.
	maxName = 256
)

// Shares counts. It is safe for concurrent use.
type Shares struct {
	mu      sync.Mutex
	spans   map[uint64]map[ident.Shard]uint64 // by sequence / span
	sums    map[ident.Shard]uint64
	of      map[string]int // the number of instances in sums, by source
	next    uint64         // the sequence up to which all records are counted
	last    uint64         // of the log
	bytes   uint64         // of the log
	most    uint64         // that the log may hold; 0: no limit
	counted bool           // all records were counted once
}

// New returns an empty count.
func New() *Shares {
	s := &Shares{}
	s.Reset()
	return s
}

// Reset forgets all records: the log may be another one.
func (s *Shares) Reset() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.spans, s.sums, s.of = map[uint64]map[ident.Shard]uint64{}, map[ident.Shard]uint64{}, map[string]int{}
	s.next, s.counted = 0, false
}

// Add counts a record.
func (s *Shares) Add(seq uint64, shard ident.Shard, bytes uint64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	at := s.spans[seq/span]
	if at == nil {
		at = map[ident.Shard]uint64{}
		s.spans[seq/span] = at
	}
	shard = s.counts(shard)
	at[shard] += bytes
	s.sums[shard] += bytes
	s.next = seq
	s.counted = s.counted || seq >= s.last
}

// counts returns the shard as which the records of a shard count. mu is held.
func (s *Shares) counts(shard ident.Shard) ident.Shard {
	if _, known := s.sums[shard]; known {
		return shard
	}
	shard.Source = shard.Source[:min(len(shard.Source), maxName)]
	if s.of[shard.Source] >= maxInstances || len(shard.Instance) > maxName {
		shard.Instance = Others
	}
	if _, known := s.sums[shard]; !known {
		s.of[shard.Source]++
	}
	return shard
}

// Log notes the size of the log, how much it may hold, and its first and last
// record. Records before first have expired.
func (s *Shares) Log(bytes, most, first, last uint64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.bytes, s.most, s.last = bytes, most, last
	s.counted = s.counted || s.next >= last
	for n, at := range s.spans {
		if (n+1)*span > first {
			continue
		}
		for shard, bytes := range at {
			if s.sums[shard] -= bytes; s.sums[shard] == 0 {
				delete(s.sums, shard)
				s.of[shard.Source]--
			}
		}
		delete(s.spans, n)
	}
}

// Of returns how many bytes the records of a shard take; 0 until all records of
// the log were counted.
func (s *Shares) Of(shard ident.Shard) uint64 {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.counted {
		return 0
	}
	return s.sums[shard]
}

// share is the part of the log of one writer.
type share struct {
	shard ident.Shard
	bytes uint64
}

// sorted returns the largest shares, the largest first. mu is held.
func (s *Shares) sorted() (all []share) {
	for _, shard := range slices.SortedFunc(maps.Keys(s.sums), func(a, b ident.Shard) int {
		return cmp.Or(cmp.Compare(s.sums[b], s.sums[a]), cmp.Compare(a.Source, b.Source), cmp.Compare(a.Instance, b.Instance))
	}) {
		if all = append(all, share{shard, s.sums[shard]}); len(all) == maxReported {
			break
		}
	}
	return all
}

// alert is the part of the log above which a shard or a source is reported.
const alert = 0.5

// Report adds the shares to a builder's report, and Warnings.
func (s *Shares) Report(r *reportv1.BuilderReport) {
	s.mu.Lock()
	defer s.mu.Unlock()
	r.LogBytes, r.LogMaxBytes = s.bytes, s.most
	for _, sh := range s.sorted() {
		r.LogShares = append(r.LogShares, &reportv1.LogShare{Source: sh.shard.Source, Instance: sh.shard.Instance, Bytes: sh.bytes})
	}
	r.Warnings = append(r.Warnings, s.warnings()...)
}

// Warnings returns a line for each shard that takes half of the log, and for each
// source whose shards do so together.
func (s *Shares) Warnings() []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.warnings()
}

func (s *Shares) warnings() (all []string) {
	if s.most == 0 {
		return nil
	}
	half := uint64(alert * float64(s.most))
	warn := func(name string, bytes uint64) {
		all = append(all, fmt.Sprintf("%s takes %d of the %d MiB that the log may hold, and the log holds %d: when it is full, no process can write. "+
			"See what changes so often with `meshlog log`; if its watcher is not yours any more, remove its user from the bus; make room with `meshlog streams --log-mib N --apply`",
			name, bytes>>20, s.most>>20, s.bytes>>20))
	}
	sources, named := map[string]uint64{}, map[string]bool{}
	for shard, bytes := range s.sums {
		sources[shard.Source] += bytes
	}
	for _, sh := range s.sorted() {
		if sh.shard != (ident.Shard{}) && sh.bytes >= half {
			named[sh.shard.Source] = true
			warn(sh.shard.String(), sh.bytes)
		}
	}
	// One process may write for all instances of a source.
	for _, source := range slices.Sorted(maps.Keys(sources)) {
		if source != "" && !named[source] && sources[source] >= half {
			warn(source+"/*", sources[source])
		}
	}
	return all
}

var bytesDesc = prometheus.NewDesc("meshlog_builder_log_share_bytes",
	"Bytes of the log that the records of a source take. At half of what the log may hold: `meshlog status` says what to do before it is full.", []string{"source"}, nil)

// Describe implements prometheus.Collector.
func (s *Shares) Describe(ch chan<- *prometheus.Desc) { ch <- bytesDesc }

// Collect implements prometheus.Collector.
func (s *Shares) Collect(ch chan<- prometheus.Metric) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, sh := range s.sorted() {
		if sh.shard == (ident.Shard{}) {
			continue
		}
		ch <- prometheus.MustNewConstMetric(bytesDesc, prometheus.GaugeValue, float64(sh.bytes), sh.shard.String())
	}
}
