package watcher_test

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"meshlog.dev/deploy/testkit/certtest"
	"meshlog.dev/services/roles/watcher"
)

// KEY-7: a directory of credentials needs the key of the HMACs, and --check reports what is
// wrong with a credential as a builder would.
func TestDirectories(t *testing.T) {
	dir := t.TempDir()
	secrets := watcher.Secrets{KeyFile: certtest.WriteFile(t, t.TempDir(), "hmac", []byte("a key of sixteen bytes")), Public: true}
	pair := certtest.NewCA("ca").Server("web", time.Now().Add(time.Hour))
	web := filepath.Join(dir, "shop", "web")
	if err := os.MkdirAll(web, 0o755); err != nil {
		t.Fatal(err)
	}
	certtest.WriteFile(t, web, "tls.crt", pair.Cert)
	certtest.WriteFile(t, web, "tls.key", pair.Key)
	d := watcher.Directories{Config: t.TempDir(), Certificates: dir}
	for name, c := range map[string]struct {
		directories watcher.Directories
		secrets     watcher.Secrets
		want        string
	}{
		"good":               {d, secrets, ""},
		"no certificates":    {watcher.Directories{Config: d.Config}, watcher.Secrets{}, ""},
		"no key":             {d, watcher.Secrets{}, "--certificates needs the key of the HMACs: give its file with --secret-key-file"},
		"no such directory":  {watcher.Directories{Config: d.Config, Certificates: filepath.Join(dir, "x")}, secrets, "no such file or directory"},
		"a file":             {watcher.Directories{Config: d.Config, Certificates: filepath.Join(web, "tls.crt")}, secrets, "--certificates not a directory"},
		"not even documents": {watcher.Directories{Certificates: dir}, secrets, "--config is missing"},
	} {
		if err := c.directories.Check(c.secrets); (err != nil) != (c.want != "") || err != nil && !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: %v, want %q", name, err, c.want)
		}
	}
	var out strings.Builder
	if err := d.Verify(t.Context(), secrets, &out); err != nil || strings.Contains(out.String(), "error") {
		t.Errorf("a good credential: %v\n%s", err, out.String())
	}
	if err := os.Chmod(filepath.Join(web, "tls.key"), 0o644); err != nil {
		t.Fatal(err)
	}
	err := d.Verify(t.Context(), secrets, &out)
	if err == nil || !strings.Contains(err.Error(), "1 error in its documents and the credentials of --certificates") || !strings.Contains(out.String(), "run: chmod 600 '"+web+"/tls.key'") {
		t.Errorf("an open key: %v\n%s", err, out.String())
	}
	if err := d.Verify(t.Context(), watcher.Secrets{KeyFile: filepath.Join(dir, "x")}, &out); err == nil || !strings.Contains(err.Error(), "--secret-key-file") {
		t.Errorf("no key file: %v", err)
	}
}
