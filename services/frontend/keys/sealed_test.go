package keys

import (
	"bytes"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"meshlog.dev/proto/ident"
)

// restart ends the Store and makes another one, with a watcher that is away.
func (r *rig) restart() {
	r.stop()
	r.away()
	r.run()
}

// KEY-8, KEY-9: a frontend that starts while all else is down has its keys at once, those
// of the same Secret in two clusters too. The files are sealed, and closed to others.
func TestRestart(t *testing.T) {
	bubble(t, func(r *rig) {
		r.sealed(filepath.Join(t.TempDir(), "keys"), "s")
		content, crt := newPEM(), []byte("a certificate")
		us := ident.Shard{Source: "kubernetes", Instance: "us"}
		all := []Key{r.has(shard, "web", "tls.key", content), r.has(us, "web", "tls.key", content), r.has(shard, "web", "tls.crt", crt)}
		r.config.OnChange = func(k Key) {
			if _, err := os.Stat(filepath.Join(r.config.Dir, k.file())); err != nil {
				t.Errorf("a key is used before its file is there: %v", err)
			}
		}
		r.run()
		r.store.Want(all)
		synctest.Wait()
		for name := range r.files() {
			info, err := os.Stat(filepath.Join(r.config.Dir, name))
			if err != nil || info.Mode().Perm() != 0o600 || !strings.HasPrefix(name, hexSum(all[0])) && !strings.HasPrefix(name, hexSum(all[2])) {
				t.Errorf("%s: mode %v, %v", name, info.Mode(), err)
			}
		}
		r.restart()
		contents := [][]byte{content, content, crt}
		for i, k := range all {
			r.wants("right after New", k, Here, contents[i])
		}
		// A proxy comes late: its key was wiped from memory, and is read from its file.
		r.store.Want(all[:1])
		r.wants("not wanted", all[1], Gone, nil)
		r.store.Want(all)
		for i, k := range all {
			r.wants("right after Want", k, Here, contents[i])
		}
		later(time.Hour)
		if n, st := len(r.requests()), r.store.Status(); n != 2 || len(st.Keys) != 3 || st.Trouble != "" || !strings.Contains(st.Disk, r.config.Seal.ID()) || !st.Keys[0].Sealed {
			t.Errorf("%d requests in all, status %+v", n, st)
		}
		r.leak(content)
	})
}

// KEY-8: the file of a key that no version names is removed after ten minutes, and is used
// until then.
func TestGrace(t *testing.T) {
	bubble(t, func(r *rig) {
		r.sealed(t.TempDir(), "s")
		content := newPEM()
		k := r.has(shard, "web", "tls.key", content)
		r.run()
		r.store.Want([]Key{k})
		synctest.Wait()
		r.away()
		r.store.Want(nil)
		later(grace - time.Second)
		r.store.Want([]Key{k})
		r.wants("wanted again within the grace", k, Here, content)
		later(2 * grace)
		r.wants("while it is wanted", k, Here, content)
		r.store.Want(nil)
		later(grace + tendEvery)
		if n := len(r.files()); n != 0 {
			t.Errorf("%d files after the grace", n)
		}
		r.store.Want([]Key{k})
		r.wants("after the grace", k, Coming, nil)
	})
	// So is a file that was read at the start, and that no proxy asks for.
	bubble(t, func(r *rig) {
		r.sealed(t.TempDir(), "s")
		k := r.has(shard, "web", "tls.key", newPEM())
		r.run()
		r.store.Want([]Key{k})
		synctest.Wait()
		r.restart()
		later(time.Hour)
		if n := len(r.files()); n != 1 {
			t.Errorf("%d files before the first Want", n)
		}
		r.store.Want(nil)
		later(grace + tendEvery)
		if n := len(r.files()); n != 0 {
			t.Errorf("%d files after the grace", n)
		}
	})
}

// KEY-8: with another seal key, or none, nothing is read and nothing is removed; the log
// says once which key is wanted, and Trouble says it until it is repaired.
func TestWrongSealKey(t *testing.T) {
	bubble(t, func(r *rig) {
		r.sealed(t.TempDir(), "s")
		content, second := newPEM(), newPEM()
		k, k2 := r.has(shard, "web", "tls.key", content), r.has(shard, "api", "tls.key", second)
		r.run()
		r.store.Want([]Key{k, k2})
		synctest.Wait()
		right, before := r.config.Seal, r.files()

		r.sealed(r.config.Dir, "t").restart()
		r.wants("with another seal key", k, Gone, nil)
		r.store.Want([]Key{k})
		later(2 * grace)
		if err := r.store.Trouble(); err == nil || !strings.Contains(err.Error(), "left as they are: 2:") || !strings.Contains(err.Error(), "was sealed with the seal key "+right.ID()) {
			t.Errorf("trouble: %v", err)
		}
		if n := bytes.Count(r.log.Bytes(), []byte("cannot open sealed files")); n != 1 {
			t.Errorf("the log says it %d times", n)
		}
		r.config.Seal = nil
		r.restart()
		if err := r.store.Trouble(); err == nil || !strings.Contains(err.Error(), "give the key that sealed it with --seal-key-file") {
			t.Errorf("trouble without a seal key: %v", err)
		}
		if !maps.EqualFunc(before, r.files(), bytes.Equal) {
			t.Error("the files were changed")
		}
		r.config.Seal = right
		r.restart()
		r.wants("with the right seal key", k, Here, content)

		// A key that comes again is sealed with the seal key that is given.
		r.sealed(r.config.Dir, "t").restart()
		r.back()
		r.store.Want([]Key{k})
		synctest.Wait()
		if err := r.store.Trouble(); err == nil || !strings.Contains(err.Error(), "left as they are: 1:") {
			t.Errorf("trouble with one file replaced: %v", err)
		}
		r.restart()
		r.wants("sealed again", k, Here, content)
		r.leak(content, second)
	})
}

// A key whose disk is full, or whose directory is away, is served from memory; status says
// so, and the store seals it when the disk takes it.
func TestNoDisk(t *testing.T) {
	bubble(t, func(r *rig) {
		dir := filepath.Join(t.TempDir(), "keys")
		if err := os.WriteFile(dir, nil, 0o600); err != nil { // in the way
			t.Fatal(err)
		}
		r.sealed(dir, "s")
		content := newPEM()
		k := r.has(shard, "web", "tls.key", content)
		r.run()
		r.store.Want([]Key{k})
		synctest.Wait()
		r.wants("without a disk", k, Here, content)
		if st := r.store.Status(); !strings.Contains(st.Trouble, "private keys in memory only: 1;") || st.Keys[0].Sealed {
			t.Errorf("status %+v", st)
		}
		r.config.Dir = t.TempDir() // for leak: the other is no directory
		r.leak(content)
		if err := os.Remove(dir); err != nil {
			t.Fatal(err)
		}
		later(tendEvery)
		if st := r.store.Status(); st.Trouble != "" || !st.Keys[0].Sealed {
			t.Errorf("after the repair: status %+v", st)
		}
		r.config.Dir = dir
		r.restart()
		r.wants("after a restart", k, Here, content)
	})
}

// KEY-8: without a seal key nothing is written, and status says so.
func TestMemoryOnly(t *testing.T) {
	bubble(t, func(r *rig) {
		content := newPEM()
		k := r.has(shard, "web", "tls.key", content)
		r.config.Dir = filepath.Join(t.TempDir(), "keys")
		r.run()
		r.store.Want([]Key{k})
		synctest.Wait()
		r.wants("in memory", k, Here, content)
		if st := r.store.Status(); !strings.HasPrefix(st.Disk, "memory only") || st.Trouble != "" || len(r.files()) != 0 {
			t.Errorf("status %+v, %d files", st, len(r.files()))
		}
		r.restart()
		r.wants("after a restart", k, Gone, nil)
	})
}

// A process that was killed between write and rename leaves a file that is not used, and
// that the next one removes. Files that were cut off, changed or renamed are not used.
func TestDamage(t *testing.T) {
	bubble(t, func(r *rig) {
		r.sealed(t.TempDir(), "s")
		content, second := newPEM(), newPEM()
		k, k2 := r.has(shard, "web", "tls.key", content), r.has(shard, "api", "tls.key", second)
		r.run()
		r.store.Want([]Key{k, k2})
		synctest.Wait()
		in := func(name string) string { return filepath.Join(r.config.Dir, name) }
		whole := r.files()[k.file()]
		damages := map[string]func() error{
			"half a file, not renamed": func() error {
				return os.Rename(in(k.file()), in("."+k.file()+".123456"))
			},
			"cut off": func() error { return os.WriteFile(in(k.file()), whole[:len(whole)/2], 0o600) },
			"changed": func() error {
				b := slices.Clone(whole)
				b[len(b)-1] ^= 1
				return os.WriteFile(in(k.file()), b, 0o600)
			},
			"empty": func() error { return os.WriteFile(in(k.file()), nil, 0o600) },
			"under the name of another key": func() error {
				return os.WriteFile(in(k.file()), r.files()[k2.file()], 0o600)
			},
			"sealed, and no key": func() error { return r.config.Seal.WriteFile(in(k.file()), []byte("something else")) },
		}
		for what, damage := range damages {
			if err := damage(); err != nil {
				t.Fatal(err)
			}
			r.restart()
			r.wants(what, k, Gone, nil)
			r.wants(what+": the other key", k2, Here, second)
			r.store.Want([]Key{k, k2})
			r.wants(what, k, Coming, nil)
			r.back()
			later(time.Second)
			r.wants(what+": when the watcher is back", k, Here, content)
			if names := slices.Sorted(maps.Keys(r.files())); len(names) != 2 || r.store.Trouble() != nil {
				t.Errorf("%s: files %q, trouble %v", what, names, r.store.Trouble())
			}
			r.leak(content, second)
		}
	})
}

// A file under the name of another key is not used while the store runs either, not even
// by a store that cannot check HMACs.
func TestSwappedFile(t *testing.T) {
	bubble(t, func(r *rig) {
		r.sealed(t.TempDir(), "s").config.Sums = nil
		k, k2 := r.has(shard, "web", "tls.key", newPEM()), r.has(shard, "api", "tls.key", newPEM())
		r.run()
		r.store.Want([]Key{k, k2})
		synctest.Wait()
		r.away()
		r.store.Want(nil)
		if err := os.Rename(filepath.Join(r.config.Dir, k2.file()), filepath.Join(r.config.Dir, k.file())); err != nil {
			t.Fatal(err)
		}
		r.store.Want([]Key{k})
		r.wants("from the file of another key", k, Coming, nil)
	})
}

// Files that were sealed under another --secret-key-file are not used, and go with time.
func TestOtherSums(t *testing.T) {
	bubble(t, func(r *rig) {
		r.sealed(t.TempDir(), "s")
		k := r.has(shard, "web", "tls.key", newPEM())
		r.run()
		r.store.Want([]Key{k})
		synctest.Wait()
		r.config.Sums = []byte("another key of the HMACs")
		r.restart()
		r.wants("under another key of the HMACs", k, Gone, nil)
		r.store.Want(nil)
		later(grace + tendEvery)
		if n := len(r.files()); n != 0 {
			t.Errorf("%d files", n)
		}
	})
}

// BenchmarkCold gets 1000 keys and seals them, as a frontend with an empty disk does.
func BenchmarkCold(b *testing.B) {
	for _, sealed := range []bool{false, true} {
		b.Run(fmt.Sprintf("sealed=%v", sealed), func(b *testing.B) {
			for b.Loop() {
				b.StopTimer()
				r := newRig(b)
				if sealed {
					r.sealed(b.TempDir(), "s")
				}
				var all []Key
				content := newPEM()
				for i := range 1000 {
					all = append(all, r.has(shard, fmt.Sprint("n", i), "tls.key", content))
				}
				came := make(chan Key, len(all))
				r.config.OnChange = func(k Key) { came <- k }
				b.StartTimer()
				r.run()
				r.store.Want(all)
				for range all {
					<-came
				}
				b.StopTimer()
				r.stop()
				b.StartTimer()
			}
		})
	}
}
