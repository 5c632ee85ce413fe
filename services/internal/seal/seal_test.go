package seal_test

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"meshlog.dev/services/internal/seal"
)

func newKey(t *testing.T, secret string) *seal.Key {
	t.Helper()
	k, err := seal.NewKey([]byte(strings.Repeat(secret, 32)))
	if err != nil {
		t.Fatal(err)
	}
	return k
}

const canary = "-----BEGIN PRIVATE KEY-----\nthe canary\n"

// KEY-8: on disk a key is sealed, and only its owner may read the file.
func TestFile(t *testing.T) {
	k, path := newKey(t, "a"), filepath.Join(t.TempDir(), "key")
	for _, content := range []string{canary, "", strings.Repeat("x", 1<<20)} {
		if err := k.WriteFile(path, []byte(content)); err != nil {
			t.Fatal(err)
		}
		got, err := k.ReadFile(path)
		if err != nil || string(got) != content {
			t.Fatalf("read %d bytes of %d, %v", len(got), len(content), err)
		}
	}
	if err := k.WriteFile(path, []byte(canary)); err != nil {
		t.Fatal(err)
	}
	raw, err := os.ReadFile(path)
	if err != nil || bytes.Contains(raw, []byte("canary")) || !seal.IsSealed(raw) {
		t.Errorf("the file has %q, %v", raw, err)
	}
	info, err := os.Stat(path)
	if err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("the file's mode is %v, %v", info.Mode(), err)
	}
	if all, err := os.ReadDir(filepath.Dir(path)); err != nil || len(all) != 1 {
		t.Errorf("the directory has %v, %v", all, err)
	}
	if again, err := k.Seal([]byte(canary)); err != nil || bytes.Equal(again, raw) {
		t.Errorf("sealed twice, the bytes are equal; %v", err)
	}
}

// KEY-8: with a wrong seal key nothing is read, and the error says so.
func TestWrongKey(t *testing.T) {
	a, b, path := newKey(t, "a"), newKey(t, "b"), filepath.Join(t.TempDir(), "key")
	if err := a.WriteFile(path, []byte(canary)); err != nil {
		t.Fatal(err)
	}
	got, err := b.ReadFile(path)
	want := fmt.Sprintf("%s: was sealed with the seal key %s, and the given one is %s", path, a.ID(), b.ID())
	if got != nil || err == nil || !strings.Contains(err.Error(), want) {
		t.Errorf("read %q, %v; want %q", got, err, want)
	}
}

// Any changed bit, in the header too, makes a sealed file unreadable.
func TestDamaged(t *testing.T) {
	k := newKey(t, "a")
	sealed, err := k.Seal([]byte(canary))
	if err != nil {
		t.Fatal(err)
	}
	for i := range sealed {
		changed := bytes.Clone(sealed)
		changed[i] ^= 1
		if got, err := k.Open(changed); err == nil || got != nil {
			t.Errorf("byte %d changed: opened %q", i, got)
		}
	}
	for n := range sealed {
		if got, err := k.Open(sealed[:n]); err == nil || got != nil {
			t.Errorf("cut to %d bytes: opened %q", n, got)
		}
	}
	last := bytes.Clone(sealed)
	last[len(last)-1] ^= 1
	if _, err := k.Open(last); err == nil || !strings.Contains(err.Error(), "is damaged: the seal key is the right one") {
		t.Errorf("the error is %v", err)
	}
	if _, err := k.Open([]byte(canary)); !errors.Is(err, seal.ErrNotSealed) {
		t.Errorf("opening a clear file: %v", err)
	}
}

// Of several processes that create a file, one succeeds.
func TestCreateOnce(t *testing.T) {
	k, path := newKey(t, "a"), filepath.Join(t.TempDir(), "key")
	var all sync.WaitGroup
	results := make([]error, 8)
	for i := range results {
		all.Go(func() { results[i] = k.CreateFile(path, []byte{byte(i)}) })
	}
	all.Wait()
	content, err := k.ReadFile(path)
	if err != nil || len(content) != 1 {
		t.Fatalf("the file has %v, %v", content, err)
	}
	for i, err := range results {
		if mine := i == int(content[0]); mine != (err == nil) || !mine && !errors.Is(err, fs.ErrExist) {
			t.Errorf("process %d: %v, and the content is of process %d", i, err, content[0])
		}
	}
}

// Files that are written to a directory at the same time are all there when each call
// returns, and each call fails if the directory cannot take them.
func TestDir(t *testing.T) {
	k, d := newKey(t, "a"), &seal.Dir{Path: t.TempDir()}
	write := func() []error {
		var all sync.WaitGroup
		errs := make([]error, 50)
		for i := range errs {
			all.Go(func() {
				name := fmt.Sprint(i)
				if errs[i] = d.Write(k, name, []byte(name)); errs[i] != nil {
					return
				}
				got, err := k.ReadFile(filepath.Join(d.Path, name))
				if err == nil && string(got) != name {
					err = fmt.Errorf("it has %q", got)
				}
				errs[i] = err
			})
		}
		all.Wait()
		return errs
	}
	for i, err := range write() {
		if err != nil {
			t.Errorf("file %d: %v", i, err)
		}
	}
	files, err := os.ReadDir(d.Path)
	if err != nil || len(files) != 50 {
		t.Errorf("%d files, %v", len(files), err)
	}
	if err := os.RemoveAll(d.Path); err != nil {
		t.Fatal(err)
	}
	for i, err := range write() {
		if !errors.Is(err, fs.ErrNotExist) {
			t.Errorf("file %d without a directory: %v", i, err)
		}
	}
}

func TestKeyFile(t *testing.T) {
	dir := t.TempDir()
	write := func(name, content string, mode fs.FileMode) string {
		path := filepath.Join(dir, name)
		if err := errors.Join(os.WriteFile(path, []byte(content), 0o600), os.Chmod(path, mode)); err != nil {
			t.Fatal(err)
		}
		return path
	}
	secret := strings.Repeat("s", 32)
	k, err := seal.ReadKey(write("good", secret, 0o400))
	if err != nil {
		t.Fatal(err)
	}
	lines, err := seal.ReadKey(write("line", secret+"\n", 0o440))
	if err != nil || lines.ID() != k.ID() {
		t.Errorf("with a newline it is another key: %v", err)
	}
	binary := secret[1:] + "\n" // 32 random bytes may end like this
	if _, err := seal.ReadKey(write("binary", binary, 0o400)); err != nil {
		t.Error(err)
	}
	for want, path := range map[string]string{
		"short: has 31 bytes":               write("short", secret[1:], 0o400),
		"open: every user may open it":      write("open", secret, 0o444),
		"large: is larger than 4096 bytes":  write("large", strings.Repeat(secret, 129), 0o400),
		"none: no such file or directory":   filepath.Join(dir, "none"),
		"empty: has 0 bytes, and a seal ke": write("empty", "", 0o400),
	} {
		_, err := seal.ReadKey(path)
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v", want, err)
		} else if strings.Contains(err.Error(), secret[1:]) {
			t.Errorf("the error repeats the key: %v", err)
		}
	}
}
