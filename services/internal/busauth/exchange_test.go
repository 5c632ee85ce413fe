package busauth

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"meshlog.dev/proto/ident"
	"meshlog.dev/services/internal/bus"
	"meshlog.dev/services/internal/keyexchange/keyring"
)

// ofExchange reports whether a file is one of the exchange of keys.
func ofExchange(name string) bool { return name == ListName || filepath.Ext(name) == ".xk" }

// KEY-4: frontends and the watchers that keep keys have an xkey of their own, readable by
// its owner only, and the list has the public ones. Existing keys stay; a former watcher
// is not in the list.
func TestWriteExchange(t *testing.T) {
	dir := t.TempDir()
	write := func(roles []bus.Role, want map[string]string) {
		t.Helper()
		all, err := WriteUsers(dir, "mesh", roles)
		must(t, err)
		got := map[string]string{}
		for _, f := range all {
			if name := filepath.Base(f.Path); ofExchange(name) {
				got[name] = f.State
			}
		}
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("files (-want +got):\n%s", diff)
		}
	}
	list := func(name string) keyring.List {
		t.Helper()
		l, err := keyring.Ring{File: filepath.Join(dir, name)}.List()
		must(t, err)
		return l
	}
	all := append(slices.Clone(roles), clusters, bus.Watcher(ca), bus.Watcher(jwks))
	write(all, map[string]string{ListName: "new", "frontend.xk": "new", "watcher-file-default.xk": "new", "watcher-kubernetes.xk": "new"})
	for name, holds := range map[string]func(keyring.List) []string{
		"frontend.xk": keyring.List.Frontends,
		"watcher-file-default.xk": func(l keyring.List) []string {
			key, _ := l.Watcher(files)
			return []string{key}
		},
		"watcher-kubernetes.xk": func(l keyring.List) []string {
			key, _ := l.Watcher(ident.Shard{Source: "kubernetes", Instance: "eu"})
			return []string{key}
		},
	} {
		info, err := os.Stat(filepath.Join(dir, name))
		must(t, err)
		key, err := keyring.ReadSeed(filepath.Join(dir, name))
		must(t, err)
		public, err := key.PublicKey()
		must(t, err)
		if got := holds(list(name)); info.Mode() != 0o600 || !slices.Equal(got, []string{public}) {
			t.Errorf("%s: mode %v, the list has %q, want %q", name, info.Mode(), got, public)
		}
	}
	for _, shard := range []ident.Shard{ca, jwks} {
		if key, ok := list("frontend.xk").Watcher(shard); ok {
			t.Errorf("%s has the xkey %s, and keeps no keys (CA-2)", shard, key)
		}
	}
	before := list("frontend.xk")
	write(all, map[string]string{ListName: "kept", "frontend.xk": "kept", "watcher-file-default.xk": "kept", "watcher-kubernetes.xk": "kept"})
	write(roles, map[string]string{ListName: "changed", "frontend.xk": "kept", "watcher-file-default.xk": "kept", "watcher-kubernetes.xk": "unused"})
	if diff := cmp.Diff(before[:2], list("frontend.xk")); diff != "" {
		t.Errorf("the list without the former watcher (-want +got):\n%s", diff)
	}

	// A key that was deleted is replaced, in the list too.
	must(t, os.Remove(filepath.Join(dir, "frontend.xk")))
	write(roles, map[string]string{ListName: "changed", "frontend.xk": "new", "watcher-file-default.xk": "kept", "watcher-kubernetes.xk": "unused"})
	if now := list("frontend.xk"); now[0] == before[0] || now[1] != before[1] {
		t.Errorf("the list is %v, was %v", now, before)
	}

	// Files that a user has written are not overwritten.
	path := filepath.Join(dir, "frontend.xk")
	must(t, os.WriteFile(path, []byte("mine"), 0o600))
	if _, err := WriteUsers(dir, "mesh", roles); err == nil || !strings.Contains(err.Error(), "move the file away to get a new key") {
		t.Errorf("a file without a key: %v", err)
	}
	must(t, os.Remove(path), os.WriteFile(filepath.Join(dir, ListName), []byte("mine"), 0o600))
	if _, err := WriteUsers(dir, "mesh", roles); err == nil || !strings.Contains(err.Error(), "was changed since") {
		t.Errorf("a list of a user: %v", err)
	}
}
