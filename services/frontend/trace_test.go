package frontend

import (
	"testing"
	"time"

	"meshlog.dev/proto/ident"
)

// For an untraced version, a response or an ACK costs one lookup and no allocation.
func TestUntracedCostsNothing(t *testing.T) {
	var r recentVersions
	for seq := range uint64(2 * keptVersions) {
		r.add(versionTimes{version: ident.Position{Epoch: 1, Seq: seq}, had: time.Now(), observed: time.Now()})
	}
	m, newest, sent := NewMetrics(), ident.Position{Epoch: 1, Seq: 2*keptVersions - 1}, time.Now()
	allocations := testing.AllocsPerRun(100, func() {
		by := r.find(newest)
		by.trace.response(ident.EDS, "proxy")
		m.sent(ident.EDS, 100, sent, by)
		by.trace.answer("proxy", false)
		m.acked(ident.EDS, sent, by)
	})
	if allocations != 0 {
		t.Errorf("a response and its ACK allocate %.0f times", allocations)
	}
	if r.find(ident.Position{Epoch: 1, Seq: keptVersions - 1}) != nil {
		t.Errorf("more than %d versions are kept", keptVersions)
	}
}

func BenchmarkUntraced(b *testing.B) {
	var r recentVersions
	newest := ident.Position{Epoch: 1, Seq: 1}
	r.add(versionTimes{version: newest, had: time.Now(), observed: time.Now()})
	m, sent := NewMetrics(), time.Now()
	b.ReportAllocs()
	for b.Loop() {
		by := r.find(newest)
		by.trace.response(ident.EDS, "proxy")
		m.sent(ident.EDS, 100, sent, by)
		by.trace.answer("proxy", false)
		m.acked(ident.EDS, sent, by)
	}
}

func TestLag(t *testing.T) {
	at := func(epoch, seq uint64) ident.Position { return ident.Position{Epoch: epoch, Seq: seq} }
	start := time.Unix(1_800_000_000, 0)
	after := func(s int) time.Time { return start.Add(time.Duration(s) * time.Second) }
	var l lag
	want := func(when string, now time.Time, d time.Duration, records uint64) {
		t.Helper()
		if gotD, gotR := l.behind(now); gotD != d || gotR != records {
			t.Errorf("%s: behind by %s and %d records, want %s and %d", when, gotD, gotR, d, records)
		}
	}
	l.serves(start, at(1, 10))
	l.headIs(start, at(1, 10))
	want("at the head", after(1), 0, 0)
	l.headIs(after(1), at(1, 20))
	l.headIs(after(3), at(1, 30))
	want("two versions behind", after(4), 3*time.Second, 20)
	l.serves(after(4), at(1, 20))
	want("one version behind", after(5), time.Second, 10)
	l.serves(after(5), at(1, 30))
	want("at the head again", after(9), 0, 0)
	l.headIs(after(9), at(2, 5))
	want("an epoch behind", after(10), time.Second, 5)
	l.serves(after(10), at(2, 7)) // the report of the head is late
	want("ahead of the reported head", after(11), 0, 0)
}
