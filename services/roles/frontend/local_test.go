package frontend

import (
	"bytes"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"meshlog.dev/deploy/testkit/certtest"
	"meshlog.dev/services/frontend/keys"
)

// KEY-7: a frontend that has the directory of its watcher needs no watcher for the keys in
// it. It uses a key only if it is the one of the version, and reads only those of the
// watcher's shard and that nobody else can read.
func TestKeysOfThisMachine(t *testing.T) {
	dir := t.TempDir()
	x := KeyExchange{SumsFile: certtest.WriteFile(t, t.TempDir(), "hmac", sums), Certificates: dir, Instance: shard.Instance}
	must(t, x.Check(), x.Verify())
	s := DefaultSettings()
	options, err := x.Keys(&s)
	must(t, err)
	put := func(name string, content []byte) (path string) {
		at := filepath.Join(dir, "shop", name)
		must(t, os.MkdirAll(at, 0o755))
		return certtest.WriteFile(t, at, localField, content)
	}
	read := func(k keys.Key) ([]byte, error) { return options.local(t.Context(), k) }

	k, content := newKey("web")
	path := put("web", content)
	if got, err := read(k); err != nil || !bytes.Equal(got, content) {
		t.Errorf("reads %d bytes, %v", len(got), err)
	}
	other, of, above, none := k, k, k, k
	other.Shard.Source = "kubernetes" // it may have the HMAC from the log
	of.Shard.Instance = "other"
	above.Namespace, above.Name = "..", filepath.Base(dir)
	must(t, os.WriteFile(filepath.Join(dir, localField), content, 0o600))
	none.Name = "none"
	path2 := k
	path2.Name = "../shop/web"
	for what, k := range map[string]keys.Key{"another source": other, "another instance": of, "a directory above": above, "a path": path2, "nothing": none} {
		if got, err := read(k); got != nil || err != nil {
			t.Errorf("%s: %d bytes, %v", what, len(got), err)
		}
	}
	must(t, os.Chmod(path, 0o640))
	if got, err := read(k); got != nil || err == nil || !strings.Contains(err.Error(), "run: chmod 600 '"+path+"'") {
		t.Errorf("a key that others may read: %d bytes, %v", len(got), err)
	}
	must(t, os.Chmod(path, 0o600))
	pipe, _ := newKey("pipe")
	must(t, os.MkdirAll(filepath.Join(dir, "shop", "pipe"), 0o755), syscall.Mkfifo(filepath.Join(dir, "shop", "pipe", localField), 0o600))
	if got, err := read(pipe); got != nil || err == nil {
		t.Errorf("a pipe: %d bytes, %v", len(got), err)
	}
	large, _ := newKey("large")
	put("large", make([]byte, maxLocal+1))
	if got, err := read(large); got != nil || err == nil {
		t.Errorf("a large file: %d bytes, %v", len(got), err)
	}

	// The file has another key than the version names.
	replaced, _ := newKey("replaced")
	put("replaced", content)
	o := &Options{Data: t.TempDir(), Keys: options}
	store := o.keyStore(quiet, &busLink{ready: make(chan struct{})}, nil)
	defer run(t, store.Run)()
	store.Want([]keys.Key{k, replaced})
	waitFor(t, store, k, content)
	if _, state := store.Get(replaced); state == keys.Here {
		t.Error("a key is used that the version does not name")
	}
}
