// Package record keeps what only a process that watches a mesh can know: how fast versions reach
// the proxies, and how many rejections they meet. Acknowledgements are reports, and reports are
// not on the log, so what nobody recorded is not known later.
//
// It learns from the summaries that frontends send by themselves, on a change at most once a
// second: times are as exact as that.
package record

import (
	"context"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"time"

	"go.etcd.io/bbolt"

	"meshlog.dev/proto/ident"
	reportv1 "meshlog.dev/proto/meshlog/report/v1"
	"meshlog.dev/services/internal/process"
	"meshlog.dev/services/operate/command"
	"meshlog.dev/store"
)

// Bounds of what is kept: a version takes some 200 bytes, a minute some 100.
const (
	kept         = 7 * 24 * time.Hour
	keptVersions = 50_000
	openVersions = 256 // that proxies may still be getting; older ones stay as they are
	maxFrontends = 4096
	maxVerdicts  = 1024 // of a frontend
)

// silent is the time after which a frontend that does not report is gone: they report every 10 s.
const silent = 35 * time.Second

// Version is how a version reached the proxies. A zero time: not while it was recorded.
type Version struct {
	Version   ident.Position `json:"-"` // the key has it
	Published time.Time      `json:"published"`
	Half      time.Duration  `json:"half,omitempty"` // from Published until 50 % of the streams had it
	Most      time.Duration  `json:"most,omitempty"` // until 99 % had it
	Applied   uint32         `json:"applied"`        // streams that have it or a newer one
	Streams   uint32         `json:"streams"`
	NACKs     uint32         `json:"nacks"` // rejections that came while frontends served it

	dirty bool
}

// Minute is a mesh in one minute.
type Minute struct {
	Time      time.Time `json:"time"` // its begin
	Versions  int       `json:"versions"`
	Errors    int       `json:"errors"` // problems of the newest version
	Warnings  int       `json:"warnings"`
	Applied   uint32    `json:"applied"` // streams that had the newest version, at its end
	Streams   uint32    `json:"streams"`
	Rejecting uint32    `json:"rejecting"` // streams with a rejected resource
}

// frontend is what a frontend reported last.
type frontend struct {
	at       time.Time
	report   *reportv1.FrontendReport
	rejected map[verdict]uint32
}

// verdict names a resource that clients reject.
type verdict struct{ resource, name, sum, client, class string }

// Recorder records. It is safe for concurrent use.
type Recorder struct {
	db    *bbolt.DB
	log   *slog.Logger
	start time.Time

	mu        sync.Mutex
	frontends map[string]*frontend
	open      []*Version // oldest first
	minute    Minute
}

// Open opens the file in a data directory, or begins one; a damaged file is set aside.
func Open(data string, log *slog.Logger) (*Recorder, error) {
	path := process.RecordsFile(data)
	if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
		return nil, fmt.Errorf("data directory: %w", err)
	}
	db, damage, err := openFile(path)
	if err != nil {
		return nil, fmt.Errorf("open %s: %w", path, err)
	}
	if damage != nil {
		log.Warn("what was recorded cannot be read, and is set aside", "file", path, "reason", damage)
	}
	return &Recorder{db: db, log: log, start: time.Now(), frontends: map[string]*frontend{}}, nil
}

// Close writes what is not written yet, and closes the file.
func (r *Recorder) Close() error {
	r.flush(time.Now())
	return r.db.Close()
}

// early is how much older than the recorder a version may be that counts as new: clocks differ.
const early = time.Second

// Published begins to record a version, unless it is older than the recorder.
func (r *Recorder) Published(m *store.Manifest) {
	at := command.PublishedAt(m)
	if at.Before(r.start.Add(-early)) {
		return
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	now := time.Now()
	r.roll(now)
	r.minute.Versions++
	r.minute.Errors, r.minute.Warnings = 0, 0
	for _, d := range command.Diagnostics(m.GetDiagnostics(), "") {
		switch d.Severity {
		case "error":
			r.minute.Errors++
		case "warning":
			r.minute.Warnings++
		}
	}
	r.open = append(r.open, &Version{Version: store.VersionOf(m.GetVersion()), Published: at.UTC(), dirty: true})
	if len(r.open) > openVersions {
		r.write(r.open[:len(r.open)-openVersions])
		r.open = slices.Clone(r.open[len(r.open)-openVersions:])
	}
	r.measure(now)
}

// Report takes the report or the summary of a frontend.
func (r *Recorder) Report(report *reportv1.FrontendReport) {
	r.mu.Lock()
	defer r.mu.Unlock()
	now := time.Now()
	r.roll(now)
	id := report.GetFrontend()
	f := r.frontends[id]
	switch {
	case report.GetLeaving():
		delete(r.frontends, id)
		return
	case f == nil && len(r.frontends) == maxFrontends:
		return
	}
	rejected := map[verdict]uint32{}
	for _, v := range report.GetVerdicts() {
		if n := v.GetRejected(); n > 0 && len(rejected) < maxVerdicts {
			rejected[verdict{v.GetTypeUrl(), v.GetName(), string(v.GetSum()), v.GetClient(), string(v.GetClass())}] += n
		}
	}
	if f != nil { // else it is not known which of them are new
		r.blame(store.VersionOf(report.GetServing()), f.rejected, rejected)
	}
	r.frontends[id] = &frontend{now, &reportv1.FrontendReport{Streams: report.GetStreams(), Applied: report.GetApplied()}, rejected}
	r.measure(now)
}

// blame counts new rejections for the version that the frontend serves.
func (r *Recorder) blame(serving ident.Position, before, after map[verdict]uint32) {
	i := slices.IndexFunc(r.open, func(v *Version) bool { return v.Version == serving })
	if i < 0 {
		return
	}
	for k, n := range after {
		if n > before[k] {
			r.open[i].NACKs += n - before[k]
			r.open[i].dirty = true
		}
	}
}

// measure counts the streams that have each open version, and writes what a version has reached.
func (r *Recorder) measure(now time.Time) {
	var reached []*Version
	for _, v := range r.open {
		half, most := v.Half, v.Most
		applied, streams := r.count(v.Version)
		if applied != v.Applied || streams != v.Streams {
			v.Applied, v.Streams, v.dirty = applied, streams, true
		}
		if streams == 0 {
			continue
		}
		took := max(now.Sub(v.Published), time.Millisecond)
		if v.Half == 0 && 2*uint64(applied) >= uint64(streams) {
			v.Half, v.dirty = took, true
		}
		if v.Most == 0 && 100*uint64(applied) >= 99*uint64(streams) {
			v.Most, v.dirty = took, true
		}
		if half != v.Half || most != v.Most {
			reached = append(reached, v)
		}
	}
	if len(reached) > 0 {
		r.write(reached)
	}
}

// count returns how many streams have applied a version, and how many there are.
func (r *Recorder) count(v ident.Position) (applied, streams uint32) {
	for _, f := range r.frontends {
		applied, streams = applied+command.Applied(f.report, v), streams+f.report.GetStreams()
	}
	return min(applied, streams), streams
}

// roll writes the minute that has ended, and begins the next.
func (r *Recorder) roll(now time.Time) {
	begin := now.UTC().Truncate(time.Minute)
	if r.minute.Time.Equal(begin) {
		return
	}
	for id, f := range r.frontends {
		if now.Sub(f.at) > silent {
			delete(r.frontends, id)
		}
	}
	last := r.minute
	r.minute = Minute{Time: begin, Errors: last.Errors, Warnings: last.Warnings}
	if !last.Time.IsZero() {
		r.write(nil, r.sampled(last))
	}
	if err := r.db.Update(func(tx *bbolt.Tx) error { return prune(tx, begin.Add(-kept)) }); err != nil {
		r.log.Warn("old records of the console cannot be removed", "error", err)
	}
}

// sampled returns a minute with what its end was like.
func (r *Recorder) sampled(m Minute) Minute {
	if len(r.open) > 0 {
		m.Applied, m.Streams = r.count(r.open[len(r.open)-1].Version)
	} else {
		_, m.Streams = r.count(ident.Position{})
		m.Applied = m.Streams
	}
	for _, f := range r.frontends {
		most := uint32(0)
		for _, n := range f.rejected {
			most = max(most, n)
		}
		m.Rejecting += most
	}
	return m
}

// writeEvery is how much of counts a sudden end of the process costs; times are written at once.
const writeEvery = 5 * time.Second

// Run writes what is recorded, at intervals, until ctx is done.
func (r *Recorder) Run(ctx context.Context) error {
	t := time.NewTicker(writeEvery)
	defer t.Stop()
	for {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-t.C:
			r.flush(time.Now())
		}
	}
}

func (r *Recorder) flush(now time.Time) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.roll(now)
	r.write(r.open, r.sampled(r.minute))
}

// Version returns what is recorded of a version; false: nothing.
func (r *Recorder) Version(v ident.Position) (Version, bool) {
	r.mu.Lock()
	for _, o := range r.open {
		if o.Version == v {
			defer r.mu.Unlock()
			return *o, true
		}
	}
	r.mu.Unlock()
	return r.read(v)
}
