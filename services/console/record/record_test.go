package record

import (
	"log/slog"
	"os"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/protobuf/types/known/timestamppb"

	"meshlog.dev/proto/ident"
	reportv1 "meshlog.dev/proto/meshlog/report/v1"
	"meshlog.dev/services/internal/process"
	"meshlog.dev/store"
)

func at(seq uint64) ident.Position { return ident.Position{Epoch: 1, Seq: seq} }

func open(t *testing.T, data string) *Recorder {
	t.Helper()
	r, err := Open(data, slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	return r
}

func published(seq uint64) *store.Manifest {
	return &store.Manifest{Version: store.VersionProto(at(seq)), PublishTime: timestamppb.Now()}
}

// summary is what a frontend reports: of its streams, so many have applied a version.
func summary(id string, streams uint32, seq uint64, applied, rejected uint32) *reportv1.FrontendReport {
	r := &reportv1.FrontendReport{Frontend: id, Streams: streams, Serving: store.VersionProto(at(seq)), Applied: []*reportv1.Applied{{Version: store.VersionProto(at(seq)), Streams: applied}}}
	if rejected > 0 {
		r.Verdicts = []*reportv1.Verdict{{TypeUrl: "t", Name: "n", Rejected: rejected}}
	}
	return r
}

// The times until half and until 99 % of the streams of all frontends have a version, and the
// rejections that it met, are recorded, and are there after a restart; so are the minutes.
func TestRecord(t *testing.T) {
	data := t.TempDir()
	synctest.Test(t, func(t *testing.T) {
		r := open(t, data)
		r.Report(summary("a", 60, 1, 60, 2)) // rejections of before count for no version
		r.Report(summary("b", 40, 1, 40, 0))
		<-time.After(time.Second)
		r.Published(published(2))
		<-time.After(100 * time.Millisecond)
		r.Report(summary("a", 60, 2, 30, 2))
		<-time.After(100 * time.Millisecond)
		r.Report(summary("a", 60, 2, 60, 5))
		<-time.After(time.Second)
		r.Report(summary("b", 40, 2, 40, 0))
		want := Version{Version: at(2), Half: 200 * time.Millisecond, Most: 1200 * time.Millisecond, Applied: 100, Streams: 100, NACKs: 3}
		check := func(r *Recorder) {
			t.Helper()
			got, ok := r.Version(at(2))
			got.Published, got.dirty = time.Time{}, false
			if !ok || got != want {
				t.Errorf("%v: %+v, want %+v", ok, got, want)
			}
		}
		check(r)
		if err := r.Close(); err != nil {
			t.Fatal(err)
		}
		r = open(t, data)
		check(r)
		if _, ok := r.Version(at(1)); ok {
			t.Error("a version of before is recorded")
		}
		points, err := r.Chart(time.Now(), time.Hour)
		if err != nil || len(points) != 1 || points[0].Versions != 1 || points[0].Half != want.Half || points[0].Most != want.Most || points[0].NACKs != 3 || points[0].Share != 1 {
			t.Errorf("chart %+v, %v", points, err)
		}
		if err := r.Close(); err != nil {
			t.Fatal(err)
		}
	})
}

// What is older than seven days goes, and a frontend that is gone counts no more.
func TestBounds(t *testing.T) {
	data := t.TempDir()
	synctest.Test(t, func(t *testing.T) {
		r := open(t, data)
		r.Report(summary("a", 10, 1, 10, 0))
		r.Published(published(2))
		r.Report(summary("a", 10, 2, 10, 0))
		r.flush(time.Now())
		<-time.After(kept + time.Hour)
		r.Published(published(3)) // it also begins a minute
		r.open = r.open[1:]
		if v, ok := r.Version(at(2)); ok {
			t.Errorf("%+v is still recorded", v)
		}
		if v, ok := r.Version(at(3)); !ok || v.Streams != 0 {
			t.Errorf("%v: %+v; its frontend is gone", ok, v)
		}
		versions, minutes, err := r.Since(time.Time{})
		if err != nil || len(versions) != 1 || len(minutes) != 1 {
			t.Errorf("%d versions, %d minutes, %v; want those of now only", len(versions), len(minutes), err)
		}
		if err := r.Close(); err != nil {
			t.Fatal(err)
		}
	})
}

// A damaged file is set aside, and the console begins another one.
func TestDamaged(t *testing.T) {
	data := t.TempDir()
	r := open(t, data)
	if err := r.Close(); err != nil {
		t.Fatal(err)
	}
	path := process.RecordsFile(data)
	if err := os.WriteFile(path, []byte("this is no database, but a text of some length"), 0o600); err != nil {
		t.Fatal(err)
	}
	r = open(t, data)
	defer r.Close()
	if _, err := os.Stat(path + ".damaged"); err != nil {
		t.Error(err)
	}
}
