package file_test

import (
	"os"
	"path/filepath"
	"testing"

	"meshlog.dev/services/watcher"
	"meshlog.dev/services/watcher/file"
	"meshlog.dev/services/watcher/watchertest"
)

// TestSuite writes one file for each object, and several objects at once by renaming
// a directory.
func TestSuite(t *testing.T) {
	watchertest.Run(t, func(t *testing.T) watchertest.Source {
		top := t.TempDir()
		dir := filepath.Join(top, "mesh")
		must := func(err error) {
			t.Helper()
			if err != nil {
				t.Error(err)
			}
		}
		must(os.Mkdir(dir, 0o755))
		put := func(dir, name, value string) {
			tmp := filepath.Join(top, name)
			must(os.WriteFile(tmp, []byte(policy(name, value)), 0o644))
			must(os.Rename(tmp, filepath.Join(dir, name+".yaml")))
		}
		return watchertest.Source{
			Watcher: func() watcher.Watcher { return file.New(dir) },
			Put:     func(name, value string) { put(dir, name, value) },
			Delete:  func(name string) { must(os.Remove(filepath.Join(dir, name+".yaml"))) },
			PutAll: func(values map[string]string) {
				stage := filepath.Join(top, "stage")
				must(os.Mkdir(stage, 0o755))
				for name, value := range values {
					put(stage, name, value)
				}
				must(os.Rename(stage, filepath.Join(dir, "many")))
			},
			Down: func() { must(os.Rename(dir, dir+".away")) },
			Up:   func() { must(os.Rename(dir+".away", dir)) },
		}
	})
}
