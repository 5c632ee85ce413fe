package files_test

import (
	"os"
	"path/filepath"
	"testing"

	"meshlog.dev/services/agent/files"
)

// AGT-7: all files change at once, what was before is removed, and only the owner reads
// them unless a group may.
func TestWrite(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "out")
	for i, group := range []int{-1, os.Getegid()} {
		d, mark := files.Dir{Path: dir, Group: group}, string(rune('a'+i))
		c := files.Content{Chain: []byte("chain " + mark), Key: []byte("key " + mark), Roots: []byte("roots " + mark)}
		for range 2 { // the same again changes nothing
			if err := d.Write(c); err != nil {
				t.Fatal(err)
			}
		}
		for name, want := range map[string]string{"tls.crt": "chain ", "tls.key": "key ", "ca.crt": "roots "} {
			b, err := os.ReadFile(filepath.Join(dir, name))
			if err != nil || string(b) != want+mark {
				t.Errorf("%s: %q, %v", name, b, err)
			}
			info, err := os.Stat(filepath.Join(dir, name))
			if mode := []os.FileMode{0o600, 0o640}[i]; err != nil || info.Mode().Perm() != mode {
				t.Errorf("%s: %v, %v", name, info.Mode(), err)
			}
		}
		if entries, err := os.ReadDir(dir); err != nil || len(entries) != 5 {
			t.Errorf("%v, %v", entries, err)
		}
	}
}

// Files of others are not replaced.
func TestForeign(t *testing.T) {
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "tls.key"), []byte("mine"), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := (files.Dir{Path: dir, Group: -1}).Write(files.Content{Chain: []byte("c")}); err == nil {
		t.Error("a file of another program was replaced")
	}
	if b, _ := os.ReadFile(filepath.Join(dir, "tls.key")); string(b) != "mine" {
		t.Errorf("it has %q", b)
	}
}
