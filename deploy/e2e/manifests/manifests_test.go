// Package manifests tests deploy/kubernetes: a real API server accepts the
// manifests, and the deployment that they describe works.
package manifests

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/yaml"

	"meshlog.dev/deploy/e2e/rig"
	"meshlog.dev/deploy/testkit/program"
)

// patience bounds each wait; none comes close to it.
const patience = 2 * time.Minute

// TestMain puts all tests on a network of their own, for their pods.
func TestMain(m *testing.M) {
	if err := rig.Isolate(); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	os.Exit(m.Run())
}

// tree returns the directory of the manifests.
func tree(t *testing.T) string {
	t.Helper()
	root, err := program.Root()
	must(t, err)
	return filepath.Join(root, "deploy", "kubernetes")
}

// kustomize builds tools/kustomize, and returns a function that renders a
// directory as `kubectl apply -k` does.
func kustomize(t *testing.T) (render func(dir string) string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Minute) // it may have to be compiled
	defer cancel()
	bin := filepath.Join(t.TempDir(), "kustomize")
	build := exec.CommandContext(ctx, "go", "build", "-o", bin, ".")
	build.Dir = filepath.Join(tree(t), "..", "e2e", "tools", "kustomize")
	build.Env = append(os.Environ(), "GOWORK=off")
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("go build in %s: %v (run `make tools`, which fetches its modules)\n%s", build.Dir, err, out)
	}
	return func(dir string) string {
		t.Helper()
		var stderr strings.Builder
		cmd := exec.CommandContext(t.Context(), bin, dir)
		cmd.Stderr = &stderr
		out, err := cmd.Output()
		if err != nil {
			t.Fatalf("kustomize %s: %v\n%s", dir, err, stderr.String())
		}
		return string(out)
	}
}

// own writes a kustomization that refers to the tree, as a user writes one.
func own(t *testing.T, resources, components []string) (dir string) {
	t.Helper()
	dir = t.TempDir()
	var b strings.Builder
	b.WriteString("apiVersion: kustomize.config.k8s.io/v1beta1\nkind: Kustomization\n")
	list := func(key string, names []string) {
		if len(names) == 0 {
			return
		}
		fmt.Fprintf(&b, "%s:\n", key)
		for _, name := range names {
			path, err := filepath.Rel(dir, filepath.Join(tree(t), name))
			must(t, err)
			fmt.Fprintf(&b, "  - %s\n", path)
		}
	}
	list("resources", resources)
	list("components", components)
	must(t, os.WriteFile(filepath.Join(dir, "kustomization.yaml"), []byte(b.String()), 0o600))
	return dir
}

// parse splits documents.
func parse(t *testing.T, text string) (all []*unstructured.Unstructured) {
	t.Helper()
	d := yaml.NewYAMLOrJSONDecoder(strings.NewReader(text), 4096)
	for {
		u := &unstructured.Unstructured{}
		if err := d.Decode(&u.Object); errors.Is(err, io.EOF) {
			return all
		} else if err != nil {
			t.Fatal(err)
		}
		if len(u.Object) > 0 {
			all = append(all, u)
		}
	}
}

// as converts an object, or a part of one, to its Go type.
func as[T any](t *testing.T, from map[string]any) *T {
	t.Helper()
	to := new(T)
	must(t, runtime.DefaultUnstructuredConverter.FromUnstructuredWithValidation(from, to, true))
	return to
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}
