package faultsim

import (
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"testing"

	"meshlog.dev/events/archive"
	past "meshlog.dev/services/internal/history"
	"meshlog.dev/store/memstore"
)

var archives = flag.String("archives", "", "write an archive of the log of schedules to this directory")

// archived is how many schedules are archived, with the sets of faults by turns.
const archived = 28

// TestArchive writes archives for services/internal/samebytes, which keeps them.
func TestArchive(t *testing.T) {
	if *archives == "" {
		return
	}
	for seed := range archived {
		set := turns[seed%len(turns)]
		s, err := run(plan{seed: uint64(seed), faults: faultSets[set]})
		if err != nil {
			t.Fatal(err)
		}
		path := filepath.Join(*archives, fmt.Sprintf("%02d-%s.archive", seed, set))
		if err := export(t, s, path); err != nil {
			t.Errorf("%s: %v", path, err)
		}
	}
}

func export(t *testing.T, s *sim, path string) error {
	ctx := t.Context()
	plan, err := past.PlanExport(ctx, &past.Past{Name: "simulation", Log: s.log, Versions: memstore.NewChain(), Blobs: s.chain}, 0)
	if err != nil {
		return err
	}
	f, err := os.Create(path)
	if err != nil {
		return err
	}
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
