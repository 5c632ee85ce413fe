package faultsim

import (
	"context"
	"crypto/sha256"
	"errors"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"meshlog.dev/events"
	"meshlog.dev/events/archive"
	"meshlog.dev/services/operate/past"
	"meshlog.dev/store/memstore"
)

var archives = flag.String("archives", "", "write the logs of the archived schedules to this directory, and their digests to testdata")

// archived is the number of archived schedules. They take the sets of faults in
// turn.
const archived = 28

// logDigests has a line for each archived schedule.
const logDigests = "testdata/logs.digests"

// TestArchivedSchedules compares the logs of some schedules with the archives of
// services/suite/samebytes: equal logs mean that every process took the same
// steps and wrote the same records. Other steps are no error, but a change that
// only moves or renames code must not cause them. To accept the new logs:
//
//	go test ./services/suite/faultsim -run ArchivedSchedules -archives $PWD/services/suite/samebytes/testdata/faultsim
//	go test ./services/suite/samebytes -update
func TestArchivedSchedules(t *testing.T) {
	var got strings.Builder
	for seed := range archived {
		set := turns[seed%len(turns)]
		s, err := run(plan{seed: uint64(seed), faults: faultSets[set]})
		if err != nil {
			t.Fatal(err)
		}
		fmt.Fprintf(&got, "%02d %s: %d records, %d versions, %x\n", seed, set, len(s.records()), len(s.ever), logDigest(t, s))
		if *archives == "" {
			continue
		}
		if err := export(t.Context(), s, filepath.Join(*archives, fmt.Sprintf("%02d-%s.archive", seed, set))); err != nil {
			t.Fatal(err)
		}
	}
	if *archives != "" {
		if err := os.WriteFile(logDigests, []byte(got.String()), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(logDigests)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(string(want), got.String()); diff != "" {
		t.Errorf("schedules have other logs than before (-want +got):\n%s", diff)
	}
}

// logDigest covers everything in the records except prose.
func logDigest(t *testing.T, s *sim) []byte {
	t.Helper()
	h := sha256.New()
	for _, r := range s.records() {
		if o, ok := r.Event.Body.(*events.Overlay); ok {
			without := *o
			without.Reason = ""
			r.Event.Body = &without
		}
		b, err := events.Encode(r.Event)
		if err != nil {
			t.Fatal(err)
		}
		fmt.Fprintf(h, "%d %d %d\n", r.Seq, r.Time.UnixNano(), len(b))
		h.Write(b)
	}
	return h.Sum(nil)[:8]
}

// export writes an archive of the log without versions; a fold of the log makes
// their content again. It writes none if retention has removed the records and the
// checkpoint that a fold begins with.
func export(ctx context.Context, s *sim, path string) error {
	p := &past.Past{Name: "simulation", Log: s.log, Versions: memstore.NewChain(), Blobs: s.chain}
	if _, err := past.BeginAtFloor(ctx, p); errors.Is(err, past.ErrTooOld) {
		return os.RemoveAll(path)
	}
	plan, err := past.PlanExport(ctx, p, 0)
	if err != nil {
		return err
	}
	f, err := os.Create(path)
	if err != nil {
		return err
	}
	defer f.Close()
	w, err := archive.NewWriter(f, plan.First)
	if err != nil {
		return err
	}
	if err := plan.Write(ctx, w, nil); err != nil {
		return err
	}
	if err := w.Close(); err != nil {
		return err
	}
	return f.Close()
}
