package fold

import (
	"errors"
	"flag"
	"fmt"
	"iter"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/tools/txtar"

	"meshlog.dev/events"
	"meshlog.dev/proto/ident"
)

var update = flag.Bool("update", false, "rewrite the expected output of the scenarios")

// Each file of testdata is a scenario: a comment that cites the rule, a log, and
// what the fold does with it ("told"). The section "rules" names the rules that
// the scenario proves necessary: without one of them the output is different.
func TestScenarios(t *testing.T) {
	files, err := filepath.Glob("testdata/*.txtar")
	if err != nil || len(files) == 0 {
		t.Fatalf("no scenarios: %v", err)
	}
	for _, file := range files {
		t.Run(strings.TrimSuffix(filepath.Base(file), ".txtar"), func(t *testing.T) {
			archive, err := txtar.ParseFile(file)
			if err != nil {
				t.Fatal(err)
			}
			sections, err := sectionsOf(archive)
			if err != nil {
				t.Fatal(err)
			}
			got := run(t, New("A", testJudge("A")), sections["log"], checkRestored(t))
			if *update {
				rewrite(t, file, archive, got)
				return
			}
			if diff := cmp.Diff(sections["told"], got); diff != "" {
				t.Errorf("the output differs (-want +got); -update accepts it:\n%s", diff)
			}
		})
	}
}

// sectionsOf returns the sections of a scenario by name.
func sectionsOf(archive *txtar.Archive) (map[string]string, error) {
	sections := map[string]string{}
	for _, f := range archive.Files {
		_, twice := sections[f.Name]
		if !slices.Contains([]string{"log", "rules", "told"}, f.Name) || twice || len(f.Data) == 0 {
			return nil, fmt.Errorf("-- %s --: want log, told and perhaps rules, once each, and not empty", f.Name)
		}
		sections[f.Name] = string(f.Data)
	}
	if sections["log"] == "" {
		return nil, errors.New("the scenario has no log")
	}
	return sections, nil
}

// A scenario with an empty or unknown section fails. The output of run is never
// empty, so a scenario without "told" fails as well.
func TestEmptySection(t *testing.T) {
	for _, text := range []string{
		"", "-- told --\nx\n", "-- log --\n-- told --\n", "-- log --\nbegin s\n-- told --\n",
		"-- log --\nbegin s\n-- rule --\nx\n", "-- log --\nbegin s\n-- log --\nbegin s\n",
	} {
		if sections, err := sectionsOf(txtar.Parse([]byte(text))); err == nil {
			t.Errorf("%q passes as %q", text, sections)
		}
	}
	if run(t, New("A", testJudge("A")), "", nil) == "" {
		t.Error("a fold without records has no output")
	}
}

// rewrite writes the scenario with told as its expected output.
func rewrite(t *testing.T, file string, archive *txtar.Archive, told string) {
	t.Helper()
	next := &txtar.Archive{Comment: archive.Comment}
	for _, f := range archive.Files {
		if f.Name != "told" {
			next.Files = append(next.Files, f)
		}
	}
	next.Files = append(next.Files, txtar.File{Name: "told", Data: []byte(told)})
	if err := os.WriteFile(file, txtar.Format(next), 0o644); err != nil {
		t.Fatal(err)
	}
}

// checkRestored checks that a fold restored from the rows of f, and a clone of f, do exactly
// the same as f with the next record, that the clone leaves f as it is, and that the
// checkpoints of f add up to its rows.
func checkRestored(t *testing.T) func(*Fold, events.Record, iter.Seq2[string, []byte]) {
	saved := table{}
	return func(f *Fold, rec events.Record, base iter.Seq2[string, []byte]) {
		t.Helper()
		if rec.Seq%3 != 0 { // so that some checkpoints cover several records
			saved.apply(f.Checkpoint())
			if diff := diffRows(collect(f.Rows()), collect(saved.rows())); diff != "" {
				t.Fatalf("before %d: checkpoints do not add up to the rows:\n%s", rec.Seq, diff)
			}
		}
		restored := restore(t, f)
		twin := restore(t, f)
		compareStep(t, rec, base, twin, restored)
		rows, state := collect(f.Rows()), writeState(f)
		compareStep(t, rec, base, restore(t, f), f.Clone())
		if diff := diffRows(rows, collect(f.Rows())) + cmp.Diff(state, writeState(f)); diff != "" {
			t.Fatalf("before %d: a record that a clone has applied changes the fold:\n%s", rec.Seq, diff)
		}
		live := restore(t, twin) // the state after the record can be restored, too
		if diff := diffRows(collect(twin.Rows()), collect(live.Rows())); diff != "" {
			t.Fatalf("after %d: %s", rec.Seq, diff)
		}
	}
}

func restore(t *testing.T, f *Fold) *Fold {
	t.Helper()
	restored, err := Restore(f.build, f.judge, each(collect(f.Rows())))
	if err != nil {
		t.Fatal(err)
	}
	return restored
}

// compareStep applies a record to two folds and checks that they do the same.
func compareStep(t *testing.T, rec events.Record, base iter.Seq2[string, []byte], a, b *Fold) {
	t.Helper()
	changeA, problemsA, errA := a.Apply(rec, base)
	changeB, problemsB, errB := b.Apply(rec, base)
	if (errA == nil) != (errB == nil) {
		t.Fatalf("record %d: %v, %v", rec.Seq, errA, errB)
	}
	if diff := cmp.Diff(changeA, changeB); diff != "" {
		t.Fatalf("record %d: changes differ:\n%s", rec.Seq, diff)
	}
	if diff := cmp.Diff(problemsA, problemsB); diff != "" {
		t.Fatalf("record %d: diagnostics differ:\n%s", rec.Seq, diff)
	}
	if diff := diffRows(collect(a.Rows()), collect(b.Rows())); diff != "" {
		t.Fatalf("record %d: rows differ:\n%s", rec.Seq, diff)
	}
	if diff := cmp.Diff(writeState(a), writeState(b)); diff != "" {
		t.Fatalf("record %d: states differ:\n%s", rec.Seq, diff)
	}
}

func shardA() ident.Shard { return ident.Shard{Source: "file", Instance: "a"} }
