package busauth

import (
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"maps"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"meshlog.dev/proto/ident"
	"meshlog.dev/services/internal/bus"
)

// states returns the states of the files of the bus, by name.
func states(all []File) map[string]string {
	m := map[string]string{}
	for _, f := range all {
		if name := filepath.Base(f.Path); !ofExchange(name) {
			m[name] = f.State
		}
	}
	return m
}

func TestWriteUsers(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "auth")
	read := func(name string) string {
		t.Helper()
		b, err := os.ReadFile(filepath.Join(dir, name))
		if err != nil {
			t.Fatal(err)
		}
		return string(b)
	}
	write := func(roles []bus.Role, want map[string]string) {
		t.Helper()
		got, err := WriteUsers(dir, "mesh", roles)
		if err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(want, states(got)); diff != "" {
			t.Errorf("files (-want +got):\n%s", diff)
		}
	}
	keys := func(conf, each string, others map[string]string) map[string]string {
		m := map[string]string{"auth.conf": conf}
		for _, name := range []string{"admin.nk", "builder.nk", "frontend.nk", "operator.nk", "watcher-file-default.nk"} {
			m[name] = each
		}
		maps.Copy(m, others)
		return m
	}
	write(roles, keys("new", "new", nil))
	conf, key := read("auth.conf"), read("builder.nk")
	for _, name := range []string{"builder.nk", "admin.nk"} {
		info, err := os.Stat(filepath.Join(dir, name))
		if err != nil || info.Mode() != 0o600 {
			t.Errorf("the mode of %s is %v, %v", name, info.Mode(), err)
		}
	}
	write(roles, keys("kept", "kept", nil))

	// A former watcher keeps its account, without a user.
	write(roles[:3], keys("changed", "kept", map[string]string{"watcher-file-default.nk": "unused"}))
	if !strings.Contains(read("auth.conf"), "  \"W-file-default\" {\n    limits { max_connections: 16, max_subscriptions: 64, max_payload: 600KB }\n    users: [\n    ]\n    exports: [\n") {
		t.Errorf("the former watcher's account is not there, or has a user:\n%s", read("auth.conf"))
	}
	write(roles, keys("changed", "kept", nil))
	if read("auth.conf") != conf || read("builder.nk") != key {
		t.Error("writing the same users again changed them")
	}

	// An account that is new to running servers is announced: it needs two reloads.
	write(append(roles, clusters), keys("extended", "kept", map[string]string{"watcher-kubernetes.nk": "new"}))
	write(roles, keys("changed", "kept", map[string]string{"watcher-kubernetes.nk": "unused"}))
	write(append(roles, clusters), keys("changed", "kept", map[string]string{"watcher-kubernetes.nk": "kept"}))
	must(t, os.Remove(filepath.Join(dir, "watcher-kubernetes.nk")), os.Remove(filepath.Join(dir, "auth.conf")))
	write(roles, keys("new", "kept", nil))

	// So is the file of an older build, with one account for all.
	old := "authorization { users: [] }\n"
	sum := sha256.Sum256([]byte(old))
	must(t, os.WriteFile(filepath.Join(dir, "auth.conf"), []byte(sumMark+hex.EncodeToString(sum[:])+"\n"+old), 0o600))
	write(roles, keys("replaced", "kept", nil))

	// A key that was deleted is replaced.
	must(t, os.Remove(filepath.Join(dir, "builder.nk")))
	write(roles, keys("changed", "kept", map[string]string{"builder.nk": "new"}))

	// WriteUsers never overwrites a file that a user has written.
	for _, content := range []string{"mine", read("auth.conf") + "\n"} {
		if err := os.WriteFile(filepath.Join(dir, "auth.conf"), []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
		if _, err := WriteUsers(dir, "mesh", roles); err == nil || !strings.Contains(err.Error(), "was changed since") {
			t.Errorf("a file of a user: %v", err)
		}
		if read("auth.conf") != content {
			t.Error("a file of a user was overwritten")
		}
	}
	for _, r := range []bus.Role{bus.Watcher(ident.Shard{Source: "a", Instance: "b-c"}), bus.Watchers("a-b-c"), bus.Watcher(ident.Shard{Source: "a-b", Instance: "c"})} {
		same := t.TempDir()
		for _, other := range []bus.Role{bus.Watcher(ident.Shard{Source: "a", Instance: "b-c"}), bus.Watchers("a-b-c")} {
			if other == r {
				continue
			}
			if _, err := WriteUsers(same, "mesh", []bus.Role{r, other}); err == nil || !strings.Contains(err.Error(), "which is or was a watcher of this mesh") {
				t.Errorf("%v and %v have one key: %v", r, other, err)
			}
			// Nor does one inherit the key of the other.
			if _, err := WriteUsers(same, "mesh", []bus.Role{r}); err != nil {
				t.Fatal(err)
			}
			if _, err := WriteUsers(same, "mesh", []bus.Role{other}); err == nil || !strings.Contains(err.Error(), "watcher-a-b-c.nk") {
				t.Errorf("%v gets the key of the former %v: %v", other, r, err)
			}
		}
	}
	if _, err := WriteUsers(dir, "mesh", append(roles, roles[0])); err == nil || !strings.Contains(err.Error(), "builder: is named twice") {
		t.Errorf("a role twice: %v", err)
	}
}

// The advice to move a file away is only given if the file holds no key. Servers may
// know a key that cannot be read.
func TestWriteUsersKeepsKeys(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, roles[0].KeyName())
	if err := os.WriteFile(path, []byte("no key"), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := WriteUsers(dir, "mesh", roles); err == nil || !strings.Contains(err.Error(), "move the file away") {
		t.Errorf("a file without a key: %v", err)
	}
	if err := errors.Join(os.Remove(path), os.Mkdir(path, 0o700)); err != nil {
		t.Fatal(err)
	}
	if _, err := WriteUsers(dir, "mesh", roles); err == nil || strings.Contains(err.Error(), "move the file away") {
		t.Errorf("a file that cannot be read: %v", err)
	}
}

func TestWriteCertificates(t *testing.T) {
	dir, now := t.TempDir(), time.Now()
	write := func(now time.Time, names []string, want map[string]string) {
		t.Helper()
		got, err := WriteCertificates(dir, names, now)
		if err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(want, states(got)); diff != "" {
			t.Errorf("files (-want +got):\n%s", diff)
		}
	}
	all := func(certs string) map[string]string {
		return map[string]string{"ca.pem": "kept", "ca.key": "kept", "server.pem": certs, "server.key": "kept", "client.pem": certs, "client.key": "kept"}
	}
	write(now, []string{"a", "127.0.0.1"}, map[string]string{
		"ca.pem": "new", "ca.key": "new", "server.pem": "new", "server.key": "new", "client.pem": "new", "client.key": "new",
	})
	write(now, []string{"a", "127.0.0.1"}, all("kept"))
	other := all("kept")
	other["server.pem"] = "changed"
	write(now, []string{"b", "127.0.0.1"}, other)
	write(now.AddDate(0, 11, 15), []string{"b", "127.0.0.1"}, all("changed"))
	if err := os.Remove(filepath.Join(dir, "ca.key")); err != nil {
		t.Fatal(err)
	}
	if _, err := WriteCertificates(dir, []string{"b"}, now); err == nil || !strings.Contains(err.Error(), "your own authority") {
		t.Errorf("without the authority's key: %v", err)
	}
}
