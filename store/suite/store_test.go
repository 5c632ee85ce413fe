package suite

import (
	"errors"
	"fmt"
	"iter"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"meshlog.dev/proto/ident"
	"meshlog.dev/store"
)

// Disk holds a store while no process has it open.
type Disk interface {
	// Open opens the store; the suite closes it before it opens it again.
	Open(t *testing.T, r store.Retention) store.Store
	// Crashes opens the store, calls write, and for each step of IO yields disks
	// in the states in which a crash at that step may leave them.
	Crashes(t *testing.T, r store.Retention, write func(store.Store)) iter.Seq2[string, Disk]
}

var storeTests = []struct {
	name string
	run  func(t *testing.T, disk Disk)
}{
	{"a new store is empty", testEmpty},
	{"committed versions are read back", testCommitAndRead},
	{"a commit after another version is a conflict", testConflict},
	{"one of several racing commits wins", testRacers},
	{"invalid commits are refused", testRefused},
	{"versions may skip positions and epochs", testJump},
	{"the side table is saved and cleared", testSide},
	{"retention by number of versions", testRetentionByCount},
	{"retention by age", testRetentionByAge},
	{"a reopened store has its versions", testReopen},
	{"a closed store returns errors", testClosed},
	{"a crash in a commit leaves all of it or nothing", testCrashInCommit},
	{"a crash in SaveSide leaves all of it or nothing", testCrashInSide},
}

func open(t *testing.T, disk Disk, r store.Retention) store.Store {
	t.Helper()
	s := disk.Open(t, r)
	t.Cleanup(func() { s.Close() })
	return s
}

// commit commits versions after latest and returns the last of them.
func commit(t *testing.T, s store.Store, latest store.Stored, versions ...store.Stored) store.Stored {
	t.Helper()
	for _, v := range versions {
		must(t, s.Commit(t.Context(), latest.Version(), commitOf(latest, v)))
		latest = v
	}
	return latest
}

// wantVersions fails unless s holds exactly versions, oldest first.
func wantVersions(t *testing.T, s store.Store, versions ...store.Stored) {
	t.Helper()
	ctx := t.Context()
	wantManifests(t, s.Manifests(ctx), versions...)
	latest, err := s.Latest(ctx)
	if len(versions) == 0 {
		if !errors.Is(err, store.ErrEmpty) {
			t.Fatalf("latest: %v, want ErrEmpty", err)
		}
		return
	}
	must(t, err)
	same(t, "latest", latest, versions[len(versions)-1])
	for _, want := range versions {
		got, err := s.At(ctx, want.Version())
		must(t, err)
		same(t, "at "+want.Version().String(), got, want)
	}
}

// wantManifests fails unless manifests yields exactly those of versions, newest
// first.
func wantManifests(t *testing.T, manifests iter.Seq2[*store.Manifest, error], versions ...store.Stored) {
	t.Helper()
	n := len(versions)
	for m, err := range manifests {
		must(t, err)
		n--
		if n < 0 || store.VersionOf(m.GetVersion()) != versions[n].Version() {
			t.Fatalf("manifests: version %s does not come next", store.VersionOf(m.GetVersion()))
		}
	}
	if n != 0 {
		t.Fatalf("manifests: %d of %d versions are not there, the oldest ones", n, len(versions))
	}
}

func side(t *testing.T, s store.Store) map[string]string {
	t.Helper()
	m := make(map[string]string)
	last := ""
	for row, err := range s.Side(t.Context()) {
		must(t, err)
		if row.Key < last {
			t.Fatalf("side table: %q after %q", row.Key, last)
		}
		last = row.Key
		m[row.Key] = string(row.Value)
	}
	return m
}

func wantSide(t *testing.T, s store.Store, want map[string]string) {
	t.Helper()
	if diff := cmp.Diff(want, side(t, s)); diff != "" {
		t.Fatalf("side table (-want +got):\n%s", diff)
	}
}

func testEmpty(t *testing.T, disk Disk) {
	s := open(t, disk, store.Retention{})
	wantVersions(t, s)
	wantSide(t, s, map[string]string{})
	_, err := s.At(t.Context(), ident.Position{Epoch: 1, Seq: 1})
	wantErr(t, "at a version that is not there", err, store.ErrNotFound)
}

func testCommitAndRead(t *testing.T, disk Disk) {
	s := open(t, disk, store.Retention{})
	versions := history(20)
	// A version without a row, and one that changes nothing.
	last := versions[len(versions)-1]
	gone := rows{}
	for key := range content(last.Snapshot) {
		gone[key] = nil
	}
	empty := next(last, ident.Position{Epoch: 1, Seq: 100}, gone)
	still := next(empty, ident.Position{Epoch: 1, Seq: 101}, nil)
	versions = append(versions, empty, still, next(still, ident.Position{Epoch: 2, Seq: 3}, rows{"key": is("")}))
	commit(t, s, store.Stored{}, versions...)
	wantVersions(t, s, versions...)
}

func testConflict(t *testing.T, disk Disk) {
	s := open(t, disk, store.Retention{})
	v := history(3)
	commit(t, s, store.Stored{}, v[0], v[1])
	for _, prev := range []ident.Position{{}, v[0].Version(), v[2].Version()} {
		c := commitOf(v[1], v[2])
		c.Side = rows{"side": is("")}.delta()
		wantErr(t, fmt.Sprintf("commit after %s", prev), s.Commit(t.Context(), prev, c), store.ErrConflict)
	}
	wantVersions(t, s, v[0], v[1])
	wantSide(t, s, map[string]string{})
}

func testRacers(t *testing.T, disk Disk) {
	s := open(t, disk, store.Retention{})
	first := history(1)[0]
	commit(t, s, store.Stored{}, first)
	const racers = 8
	var wg sync.WaitGroup
	errs := make([]error, racers)
	for i := range racers {
		wg.Go(func() {
			v := next(first, ident.Position{Epoch: 1, Seq: uint64(10 + i)}, rows{"winner": is("%d", i)})
			errs[i] = s.Commit(t.Context(), first.Version(), commitOf(first, v))
		})
	}
	wg.Wait()
	won := 0
	for i, err := range errs {
		switch {
		case err == nil:
			won++
			latest, err := s.Latest(t.Context())
			must(t, err)
			if got, _ := latest.Snapshot.Get("winner"); string(got) != fmt.Sprint(i) {
				t.Errorf("racer %d won, the content is of %q", i, got)
			}
		case !errors.Is(err, store.ErrConflict):
			t.Errorf("racer %d: %v, want ErrConflict", i, err)
		}
	}
	if won != 1 {
		t.Errorf("%d of %d racers committed after the same version", won, racers)
	}
}

func testRefused(t *testing.T, disk Disk) {
	s := open(t, disk, store.Retention{})
	v := history(3)
	commit(t, s, store.Stored{}, v[0], v[1])
	for _, tt := range []struct {
		name  string
		spoil func(c *store.Commit)
	}{
		{"an older version", func(c *store.Commit) { c.Manifest = v[0].Manifest }},
		{"the same version", func(c *store.Commit) { c.Manifest = v[1].Manifest }},
		{"no manifest", func(c *store.Commit) { c.Manifest = nil }},
		{"another content", func(c *store.Commit) { c.Snapshot = v[0].Snapshot }},
		{"a delta to another content", func(c *store.Commit) { c.Delta = store.Delta{} }},
		{"rows out of order", func(c *store.Commit) {
			c.Side = store.Delta{Put: []store.Row{{Key: "b"}, {Key: "a"}}}
		}},
		{"a key put and removed", func(c *store.Commit) {
			c.Side = store.Delta{Put: []store.Row{{Key: "a"}}, Remove: []string{"a"}}
		}},
	} {
		c := commitOf(v[1], v[2])
		tt.spoil(&c)
		if err := s.Commit(t.Context(), v[1].Version(), c); err == nil || errors.Is(err, store.ErrConflict) {
			t.Errorf("%s: commit returned %v", tt.name, err)
		}
	}
	wantVersions(t, s, v[0], v[1])
	wantSide(t, s, map[string]string{})
	commit(t, s, v[1], v[2])
	wantVersions(t, s, v...)
}

// A replica skips versions that it did not see, and epochs.
func testJump(t *testing.T, disk Disk) {
	s := open(t, disk, store.Retention{})
	v := history(30)
	epoch := next(store.Stored{}, ident.Position{Epoch: 7, Seq: 2}, rows{"all": is("new"), "always": is("same")})
	epoch.Manifest.Previous = store.VersionProto(ident.Position{Epoch: 6, Seq: 9})
	commit(t, s, store.Stored{}, v[4], v[20], v[21], epoch)
	wantVersions(t, s, v[4], v[20], v[21], epoch)
}

func testSide(t *testing.T, disk Disk) {
	s := open(t, disk, store.Retention{})
	v := history(2)
	must(t, s.SaveSide(t.Context(), rows{"b": is("1"), "a": is("2"), "\x00": is("")}.delta()))
	wantSide(t, s, map[string]string{"a": "2", "b": "1", "\x00": ""})

	c := commitOf(store.Stored{}, v[0])
	c.Side = rows{"b": nil, "c": is("3"), "nothing": nil}.delta()
	must(t, s.Commit(t.Context(), ident.Position{}, c))
	wantSide(t, s, map[string]string{"a": "2", "c": "3", "\x00": ""})
	wantVersions(t, s, v[0])

	if err := s.SaveSide(t.Context(), store.Delta{Remove: []string{"c", "a"}}); err == nil {
		t.Error("a delta out of order was saved")
	}
	must(t, s.ClearSide(t.Context()))
	wantSide(t, s, map[string]string{})
	must(t, s.SaveSide(t.Context(), rows{"d": is("4")}.delta()))
	commit(t, s, v[0], v[1])
	s.Close()

	s = open(t, disk, store.Retention{})
	wantSide(t, s, map[string]string{"d": "4"})
	wantVersions(t, s, v...)
}

func testRetentionByCount(t *testing.T, disk Disk) {
	v := history(12)
	var latest store.Stored
	for _, step := range []struct{ keep, from, to, oldest int }{{3, 0, 10, 7}, {1, 10, 11, 10}, {5, 11, 12, 10}} {
		s := open(t, disk, store.Retention{Versions: step.keep})
		latest = commit(t, s, latest, v[step.from:step.to]...)
		wantVersions(t, s, v[step.oldest:step.to]...)
		_, err := s.At(t.Context(), v[step.oldest-1].Version())
		wantErr(t, "at a version that was dropped", err, store.ErrNotFound)
		must(t, s.Close())
	}
}

func testRetentionByAge(t *testing.T, disk Disk) {
	v := history(60)
	s := open(t, disk, store.Retention{Age: 10 * time.Second})
	commit(t, s, store.Stored{}, v[0], v[5], v[10])
	wantVersions(t, s, v[0], v[5], v[10])
	commit(t, s, v[10], v[11])
	wantVersions(t, s, v[5], v[10], v[11])
	commit(t, s, v[11], v[59])
	wantVersions(t, s, v[59])
}

func testReopen(t *testing.T, disk Disk) {
	v := history(9)
	var latest store.Stored
	for i := range v {
		s := open(t, disk, store.Retention{})
		wantVersions(t, s, v[:i]...)
		latest = commit(t, s, latest, v[i])
		must(t, s.Close())
	}
	wantVersions(t, open(t, disk, store.Retention{}), v...)
}

func testClosed(t *testing.T, disk Disk) {
	s := open(t, disk, store.Retention{})
	v := history(2)
	commit(t, s, store.Stored{}, v[0])
	must(t, s.SaveSide(t.Context(), rows{"a": is("1")}.delta()))
	must(t, s.Close())
	ctx := t.Context()
	_, latest := s.Latest(ctx)
	_, at := s.At(ctx, v[0].Version())
	for name, err := range map[string]error{
		"Commit": s.Commit(ctx, v[0].Version(), commitOf(v[0], v[1])), "SaveSide": s.SaveSide(ctx, store.Delta{}),
		"ClearSide": s.ClearSide(ctx), "Latest": latest, "At": at,
	} {
		if err == nil {
			t.Errorf("%s of a closed store returned no error", name)
		}
	}
	wantOnlyError(t, "Manifests", s.Manifests(ctx))
	wantOnlyError(t, "Side", s.Side(ctx))
}

// wantOnlyError wants an iteration that yields one error and then ends.
func wantOnlyError[V any](t *testing.T, name string, all iter.Seq2[V, error]) {
	t.Helper()
	n := 0
	for _, err := range all {
		if n++; err == nil {
			t.Errorf("%s of a closed store yields a value", name)
		}
	}
	if n != 1 {
		t.Errorf("%s of a closed store yields %d times, want one error", name, n)
	}
}

func testCrashInCommit(t *testing.T, disk Disk) {
	v := history(8)
	s := open(t, disk, store.Retention{Versions: 5})
	commit(t, s, store.Stored{}, v[:6]...)
	must(t, s.SaveSide(t.Context(), rows{"cursor": is("5"), "only": is("old")}.delta()))
	must(t, s.Close())

	olds, news := 0, 0
	for step, left := range disk.Crashes(t, store.Retention{Versions: 5}, func(s store.Store) {
		c := commitOf(v[5], v[6])
		c.Side = rows{"cursor": is("6"), "only": nil}.delta()
		must(t, s.Commit(t.Context(), v[5].Version(), c))
	}) {
		t.Run(step, func(t *testing.T) {
			s := open(t, left, store.Retention{Versions: 5})
			latest, err := s.Latest(t.Context())
			must(t, err)
			if latest.Version() == v[5].Version() {
				olds++
				wantVersions(t, s, v[1:6]...)
				wantSide(t, s, map[string]string{"cursor": "5", "only": "old"})
				commit(t, s, v[5], v[6])
			} else {
				news++
				wantSide(t, s, map[string]string{"cursor": "6"})
			}
			wantVersions(t, s, v[2:7]...)
			commit(t, s, v[6], v[7])
			must(t, s.Close())
			wantVersions(t, open(t, left, store.Retention{Versions: 5}), v[3:8]...)
		})
	}
	if olds == 0 || news == 0 {
		t.Errorf("crashes left the old version %d times, the new one %d times: they were not in the commit", olds, news)
	}
}

func testCrashInSide(t *testing.T, disk Disk) {
	v := history(1)
	s := open(t, disk, store.Retention{})
	commit(t, s, store.Stored{}, v[0])
	must(t, s.SaveSide(t.Context(), rows{"a": is("1"), "b": is("1")}.delta()))
	must(t, s.Close())
	before, after := map[string]string{"a": "1", "b": "1"}, map[string]string{"b": "2", "c": "2"}
	for step, left := range disk.Crashes(t, store.Retention{}, func(s store.Store) {
		must(t, s.SaveSide(t.Context(), rows{"a": nil, "b": is("2"), "c": is("2")}.delta()))
	}) {
		t.Run(step, func(t *testing.T) {
			s := open(t, left, store.Retention{})
			wantVersions(t, s, v[0])
			if got := side(t, s); !cmp.Equal(got, before) && !cmp.Equal(got, after) {
				t.Errorf("side table is %v, neither the old nor the new one", got)
			}
		})
	}
}
