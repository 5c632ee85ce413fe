package keyring

import (
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"meshlog.dev/proto/ident"
)

func newPublic(t *testing.T, dir string) string {
	t.Helper()
	path := filepath.Join(dir, "seed")
	seed, err := NewSeed()
	if err == nil {
		err = os.WriteFile(path, seed, 0o600)
	}
	if err != nil {
		t.Fatal(err)
	}
	key, err := ReadSeed(path)
	if err != nil {
		t.Fatal(err)
	}
	public, err := key.PublicKey()
	if err != nil {
		t.Fatal(err)
	}
	return public
}

// KEY-4: a list tells the keys of frontends from those of watchers, and a shard's own key
// comes before that of its source.
func TestList(t *testing.T) {
	var keys [3]string
	for i := range keys {
		keys[i] = newPublic(t, t.TempDir())
	}
	eu, us := ident.Shard{Source: "kubernetes", Instance: "eu"}, ident.Shard{Source: "kubernetes", Instance: "us"}
	l, err := Parse(append([]byte("# a comment\n\n"), List{{Key: keys[0]}, {ident.Shard{Source: "kubernetes"}, keys[1]}, {eu, keys[2]}}.Format()...))
	if err != nil {
		t.Fatal(err)
	}
	if got := l.Frontends(); !slices.Equal(got, keys[:1]) {
		t.Errorf("frontends: %q", got)
	}
	for shard, want := range map[ident.Shard]string{eu: keys[2], us: keys[1], {Source: "file", Instance: "default"}: "", {}: ""} {
		if got, ok := l.Watcher(shard); got != want || ok != (want != "") {
			t.Errorf("%s: %q, %v, want %q", shard, got, ok, want)
		}
	}
	for _, bad := range []string{"builder " + keys[0], "/x " + keys[0], "file/ " + keys[0], "frontend", "frontend UABC"} {
		if l, err := Parse([]byte("\n" + bad + "\n")); err == nil || !strings.Contains(err.Error(), "line 2: ") {
			t.Errorf("%q: %v, %v", bad, l, err)
		}
	}
}

// Errors name the file and what to do.
func TestVerify(t *testing.T) {
	dir := t.TempDir()
	r := Ring{File: filepath.Join(dir, "seed")}
	if err := r.Verify(); !errors.Is(err, os.ErrNotExist) || !strings.Contains(err.Error(), r.File) || !strings.Contains(err.Error(), "`meshlog bus-auth` writes the list beside") {
		t.Errorf("no files: %v", err)
	}
	public := newPublic(t, dir)
	list := filepath.Join(dir, ListName)
	if err := os.WriteFile(list, []byte("frontend "+public+"\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := r.Verify(); err != nil {
		t.Errorf("good files: %v", err)
	}
	if err := errors.Join(os.WriteFile(r.File, []byte(public), 0o600), os.WriteFile(list, []byte("frontend SX"), 0o600)); err != nil {
		t.Fatal(err)
	}
	err := r.Verify()
	if err == nil || !strings.Contains(err.Error(), r.File+": holds no seed") || !strings.Contains(err.Error(), list+": line 1: frontend has no public xkey") {
		t.Errorf("bad files: %v", err)
	}
	if err != nil && strings.Contains(err.Error(), "SX\n") {
		t.Errorf("the error repeats the file: %v", err)
	}
}
