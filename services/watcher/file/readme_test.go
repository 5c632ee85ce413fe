package file_test

import (
	"context"
	"os"
	"regexp"
	"testing"

	"meshlog.dev/services/internal/kind"
	"meshlog.dev/services/internal/model"
	"meshlog.dev/services/watcher"
	"meshlog.dev/services/watcher/file"
)

// TestReadme takes the examples of the README at their word.
func TestReadme(t *testing.T) {
	readme, err := os.ReadFile("../README.md")
	if err != nil {
		t.Fatal(err)
	}
	blocks := regexp.MustCompile("(?s)```yaml\n(.*?)```").FindAllSubmatch(readme, -1)
	dir := t.TempDir()
	for i, b := range blocks {
		if err := os.WriteFile(dir+"/"+string(rune('a'+i))+".yaml", b[1], 0o644); err != nil {
			t.Fatal(err)
		}
	}
	ctx, cancel := context.WithCancel(t.Context())
	s := examples{t: t, cancel: cancel}
	_ = file.New(dir).Run(ctx, &s)
	if s.good != 4 {
		t.Errorf("%d good objects in %d examples, want 4", s.good, len(blocks))
	}
}

type examples struct {
	t      *testing.T
	cancel func()
	good   int
}

func (s *examples) List(_ context.Context, l watcher.Listing) error {
	for _, o := range l.Objects {
		k, _ := kind.ByName(o.Kind)
		m, err := k.Decode(o.Payload.Type, o.Payload.Bytes)
		if err != nil {
			s.t.Errorf("%s: %v", o.Origin, err)
			continue
		}
		for _, p := range k.Validate(m) {
			s.t.Errorf("%s: %+v", o.Origin, p)
		}
		s.good++
	}
	s.cancel()
	return nil
}

func (s *examples) Change(context.Context, []watcher.Object) error { return nil }

func (s *examples) Problems(origin string, ds []model.Diagnostic) {
	for _, d := range ds {
		s.t.Errorf("%s: %+v", origin, d)
	}
}
