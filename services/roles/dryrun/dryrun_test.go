package dryrun_test

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"meshlog.dev/services/roles/dryrun"
	"meshlog.dev/services/watcher/file"
)

const (
	good = `apiVersion: networking.istio.io/v1
kind: ServiceEntry
metadata: {name: shop, namespace: demo}
spec:
  hosts: [shop.internal]
  location: MESH_INTERNAL
  resolution: STATIC
  ports: [{number: 80, name: http, protocol: HTTP}]
  endpoints: [{address: 127.0.0.1}]
`
	nowhere = `apiVersion: networking.istio.io/v1
kind: VirtualService
metadata: {name: shop, namespace: demo}
spec:
  hosts: [shop.internal]
  http:
  - route:
    - destination: {host: shop.internal, subset: v3}
`
)

func TestDirectory(t *testing.T) {
	for name, c := range map[string]struct {
		files  map[string]string
		want   []string // a part of each line
		failed int
	}{
		"nothing": {},
		"good":    {files: map[string]string{"shop.yaml": good}},
		"a problem that the watcher finds": {
			map[string]string{"shop.yaml": good, "sub/broken.yaml": "a: b: c\n"},
			[]string{"error    sub/broken.yaml:1:"}, 1,
		},
		"a problem that the fold finds": {
			map[string]string{"shop.yaml": strings.Replace(good, "STATIC", "STATIK", 1)},
			[]string{`error    shop.yaml:7: spec.resolution: `}, 1,
		},
		"a problem that the gate finds": {
			map[string]string{"shop.yaml": good, "route.yaml": nowhere},
			[]string{`no DestinationRule of "shop.internal" has a subset "v3"; correct the destination, or add what it names`}, 0,
		},
		"the worst first": {
			map[string]string{"a.yaml": nowhere, "shop.yaml": good, "z.yaml": "a: b: c\n"},
			[]string{"error    z.yaml:1:", "warning  "}, 1,
		},
	} {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			for name, content := range c.files {
				path := filepath.Join(dir, name)
				if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
					t.Fatal(err)
				}
				if err := os.WriteFile(path, []byte(content), 0o600); err != nil {
					t.Fatal(err)
				}
			}
			problems, err := dryrun.Problems(t.Context(), file.New(dir))
			if err != nil {
				t.Fatal(err)
			}
			var out strings.Builder
			if failed := dryrun.Print(&out, problems); failed != c.failed {
				t.Errorf("%d errors, want %d", failed, c.failed)
			}
			lines := strings.Split(strings.TrimSuffix(out.String(), "\n"), "\n")
			if out.Len() == 0 {
				lines = nil
			}
			if diff := cmp.Diff(len(c.want), len(lines)); diff != "" {
				t.Fatalf("lines: %s\n%s", diff, &out)
			}
			for i, want := range c.want {
				if !strings.Contains(lines[i], want) {
					t.Errorf("line %q does not say %q", lines[i], want)
				}
			}
		})
	}
}

func TestDirectoryThatCannotBeRead(t *testing.T) {
	_, err := dryrun.Problems(t.Context(), file.New(filepath.Join(t.TempDir(), "x")))
	if err == nil || !strings.Contains(err.Error(), "no such file or directory") {
		t.Errorf("error: %v", err)
	}
}
