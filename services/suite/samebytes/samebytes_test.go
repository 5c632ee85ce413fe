package samebytes

import (
	"errors"
	"flag"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"meshlog.dev/services/operate/past"
)

var (
	update   = flag.Bool("update", false, "rewrite the digests")
	linesDir = flag.String("lines", "", "write the digest of every resource, and the resources, to this directory")
)

// sample is a world under test: a log, nodes, and the golden digests of what they
// are served.
type sample struct {
	name      string // of the files in testdata, without extension
	past      *past.Past
	documents []document
	summary   bool // the golden file has no lines for single resources
}

func (w sample) file(extension string) string { return filepath.Join("testdata", w.name+extension) }

// TestSameBytes checks that this build serves the same bytes from each log as the
// build that wrote the digests.
func TestSameBytes(t *testing.T) {
	paths := archives(t)
	if len(paths) == 0 {
		t.Fatal("testdata has no archives")
	}
	for _, path := range paths {
		name := strings.TrimSuffix(filepath.ToSlash(strings.TrimPrefix(path, "testdata/")), ".archive")
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			past, documents := openArchive(t, path)
			compare(t, sample{name: name, past: past, documents: documents})
		})
	}
}

func archives(t *testing.T) (paths []string) {
	t.Helper()
	err := filepath.WalkDir("testdata", func(path string, _ fs.DirEntry, err error) error {
		if strings.HasSuffix(path, ".archive") {
			paths = append(paths, path)
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return paths
}

// compare replays a world, and compares the digests with the golden ones.
func compare(t *testing.T, w sample) {
	if _, err := os.Stat(w.file(".nodes")); *update && errors.Is(err, fs.ErrNotExist) {
		suggestNodes(t, w)
	}
	m := newMesh()
	writer, err := newWriter(m, readNodes(t, w.file(".nodes")))
	if err != nil {
		t.Fatal(err)
	}
	if err := m.run(t.Context(), w.past, writer.version); err != nil {
		t.Fatal(err)
	}
	golden := writer.lines.String()
	if w.summary {
		golden = writer.summary.String()
	}
	check(t, w.file(".digests"), golden)
	var objects strings.Builder
	for _, d := range w.documents {
		objects.WriteString(objectsOf(d))
	}
	if len(w.documents) > 0 {
		check(t, w.file(".objects"), objects.String())
	}
	if *linesDir != "" {
		write(t, filepath.Join(*linesDir, w.name+".digests"), writer.lines.String())
		for d, text := range m.texts() {
			write(t, filepath.Join(*linesDir, "resources", d), text)
		}
	}
}

// check compares a text with a golden file.
func check(t *testing.T, path, got string) {
	t.Helper()
	if *update {
		write(t, path, got)
		return
	}
	want, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if d := difference(string(want), got); d != "" {
		t.Errorf("%s: this build serves other bytes:\n%s"+
			"If that is intended, run `go test ./services/suite/samebytes -update`, and say in the commit which digests change, and why. README.md says how to look at the bytes.", path, d)
	}
}

func write(t *testing.T, path, text string) {
	t.Helper()
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
		t.Fatal(err)
	}
}
