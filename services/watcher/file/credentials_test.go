package file_test

import (
	"bytes"
	"context"
	"encoding/base64"
	"encoding/pem"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"meshlog.dev/deploy/testkit/certtest"
	"meshlog.dev/events"
	"meshlog.dev/events/memlog"
	"meshlog.dev/proto/ident"
	registryv1 "meshlog.dev/proto/meshlog/registry/v1"
	"meshlog.dev/services/mesh/credential"
	"meshlog.dev/services/mesh/keymaterial"
	"meshlog.dev/services/mesh/kind"
	"meshlog.dev/services/watcher"
	"meshlog.dev/services/watcher/file"
)

var reveal = credential.Options{Key: []byte("a key that is not on the log...."), Public: true}

// startCredentials runs a watcher of an empty directory and of one of credentials; the
// rig's directory is the latter.
func startCredentials(t *testing.T, dir string) *rig {
	t.Helper()
	return startWatcher(t, dir, file.New(t.TempDir()).WithCredentials(dir, reveal))
}

// put writes the files of a credential, in pairs of name and content, one by one.
func (r *rig) put(name string, files ...string) {
	r.t.Helper()
	putFiles(r.t, r.dir, name, files...)
}

func putFiles(t *testing.T, dir, name string, files ...string) {
	t.Helper()
	if err := os.MkdirAll(filepath.Join(dir, name), 0o755); err != nil {
		t.Fatal(err)
	}
	for i := 0; i < len(files); i += 2 {
		if err := os.WriteFile(filepath.Join(dir, name, files[i]), []byte(files[i+1]), 0o600); err != nil {
			t.Fatal(err)
		}
	}
}

// reference returns what the text of an object shows of a reference.
func reference(m *registryv1.SecretReference) string {
	out := m.GetPair().String()
	if chain := m.GetCertificateChain(); chain != "" {
		out += " " + subject(chain)
	}
	if ca := m.GetCaBundle(); ca != "" {
		out += " by " + subject(ca)
	}
	return out
}

func subject(text string) string {
	all, err := credential.Certificates([]byte(text))
	if err != nil {
		return err.Error()
	}
	return all[0].Subject.CommonName
}

// KEY-7: each NAMESPACE/NAME is a Secret. Its files are one change, though they are
// written one by one: a pair that does not fit may be half written.
func TestCertificates(t *testing.T) {
	ca := certtest.NewCA("ca")
	one, two := ca.Server("one", time.Now().Add(time.Hour)), ca.Server("two", time.Now().Add(time.Hour))
	dir := t.TempDir()
	putFiles(t, dir, "shop/web", "tls.crt", string(one.Cert), "tls.key", string(one.Key), "README", "x")
	putFiles(t, dir, "shop/clients", "ca.crt", string(ca.PEM()))
	r := startCredentials(t, dir)
	at := func(name string) string { return filepath.Join(dir, name) }
	r.want("list\n  Secret shop/clients " + at("shop/clients") + " PAIR_UNSPECIFIED by ca\n  Secret shop/web " + at("shop/web") + " PAIR_OK one")
	r.put("shop/web", "tls.crt", string(two.Cert), "tls.key", string(two.Key))
	r.want("change\n  Secret shop/web " + at("shop/web") + " PAIR_OK two")
	r.put("shop/web", "tls.key", string(one.Key))
	r.want("change\n  Secret shop/web " + at("shop/web") + " PAIR_MISMATCH two")
	r.do(os.Remove(at("shop/web/tls.key")))
	r.want("change\n  Secret shop/web " + at("shop/web") + " undecoded: data: holds neither tls.crt with tls.key nor ca.crt")
	r.do(os.RemoveAll(at("shop/web")))
	r.want("change\n  delete Secret shop/web " + at("shop/web"))
	r.put("", "tls.crt", string(one.Cert))
	r.want("problems " + dir + "\n  error misplaced " + dir + " : a credential is in NAMESPACE/NAME of the directory, two valid names")
	r.put("shop/Web_1", "ca.crt", string(ca.PEM()))
	r.want("problems " + at("shop/Web_1") + "\n  error misplaced " + at("shop/Web_1") + " : a credential is in NAMESPACE/NAME of the directory, two valid names")
	r.put("shop/leaked", "tls.crt", string(one.Cert)+string(one.Key), "tls.key", string(one.Key))
	r.want("change\n  Secret shop/leaked " + at("shop/leaked") + ` undecoded: data["tls.crt"]: holds a private key in PEM, which every reader of the log and every client would see`)
	r.do(os.Rename(dir, dir+".away"))
	t.Cleanup(func() { _ = os.Rename(dir+".away", dir) })
	r.wantEnd("directory " + dir + ": no such file or directory")
}

// KEY-7, KEY-11: a directory that is replaced by another one, again and again, is one
// change each time, and never the end of the watcher.
func TestReplacedDirectory(t *testing.T) {
	ca := certtest.NewCA("ca")
	dir, aside := t.TempDir(), t.TempDir()
	pair := ca.Server("v0", time.Now().Add(time.Hour))
	putFiles(t, dir, "shop/web", "tls.crt", string(pair.Cert), "tls.key", string(pair.Key))
	r := startCredentials(t, dir)
	at := filepath.Join(dir, "shop/web")
	r.want("list\n  Secret shop/web " + at + " PAIR_OK v0")
	for i := range 50 {
		name := fmt.Sprint("v", i+1)
		pair := ca.Server(name, time.Now().Add(time.Hour))
		putFiles(t, aside, "next", "tls.crt", string(pair.Cert), "tls.key", string(pair.Key))
		next, old := filepath.Join(aside, "next"), filepath.Join(aside, "old")
		r.do(errors.Join(os.Rename(at, old), os.Rename(next, at), os.RemoveAll(old)))
		r.want("change\n  Secret shop/web " + at + " PAIR_OK " + name)
	}
}

// KEY-7: documents and credentials are one source, and a Secret in a document is refused
// as before.
func TestCertificatesBesideDocuments(t *testing.T) {
	ca := certtest.NewCA("ca")
	dir := dirWith(t, "a.yaml", policy("a", "1"), "secret.yaml", "apiVersion: v1\nkind: Secret\nmetadata: {name: web, namespace: shop}\n")
	inside := filepath.Join(dir, "certificates") // a directory in the other one
	putFiles(t, inside, "shop/web", "ca.crt", string(ca.PEM()))
	r := startWatcher(t, dir, file.New(dir).WithCredentials(inside, reveal))
	at := filepath.Join(inside, "shop/web")
	r.want("list\n  Resource default/a a.yaml:1 \n  Secret shop/web "+at+" PAIR_UNSPECIFIED by ca",
		"problems secret.yaml\n  error secret secret.yaml:1 kind: a Secret does not go on the log, whose readers could all read the key")
	r.write("a.yaml", policy("a", "2"))
	r.want("change\n  Resource default/a a.yaml:1 ")
	r.do(os.RemoveAll(at))
	r.want("change\n  delete Secret shop/web " + at)
}

// KEY-7: a key that others can read refuses its credential alone, and the problem has the
// file and the command that repairs it.
func TestOpenKey(t *testing.T) {
	pair := certtest.NewCA("ca").Server("web", time.Now().Add(time.Hour))
	dir := t.TempDir()
	for name, mode := range map[string]os.FileMode{"group": 0o640, "others": 0o604, "write": 0o620, "own": 0o400} {
		putFiles(t, dir, "shop/"+name, "tls.crt", string(pair.Cert), "tls.key", string(pair.Key))
		if err := os.Chmod(filepath.Join(dir, "shop", name, "tls.key"), mode); err != nil {
			t.Fatal(err)
		}
	}
	r := startCredentials(t, dir)
	refused := func(name string, mode int) string {
		at := filepath.Join(dir, "shop", name)
		return fmt.Sprintf("\n  Secret shop/%s %s undecoded: data[\"tls.key\"]: %s/tls.key holds a key, and group or others may read it, or write it (mode %04o); run: chmod 600 '%s/tls.key' (in a pod: defaultMode: 0400 of the volume), and replace the key if others had access",
			name, at, at, mode, at)
	}
	own := filepath.Join(dir, "shop/own")
	r.want("list" + refused("group", 0o640) + refused("others", 0o604) + "\n  Secret shop/own " + own + " PAIR_OK web" + refused("write", 0o620))
	group := filepath.Join(dir, "shop/group")
	r.do(os.Chmod(group+"/tls.key", 0o600))
	r.want("change\n  Secret shop/group " + group + " PAIR_OK web")
}

// KEY-7: a mounted Secret is swapped by one link, and its files change at once.
func TestMountedSecret(t *testing.T) {
	ca := certtest.NewCA("ca")
	dir := t.TempDir()
	mount := filepath.Join(dir, "shop/web")
	write := func(version, server string) {
		t.Helper()
		pair := ca.Server(server, time.Now().Add(time.Hour))
		putFiles(t, mount, version, "tls.crt", string(pair.Cert), "tls.key", string(pair.Key))
	}
	link := func(to, name string) {
		t.Helper()
		if err := os.Symlink(to, filepath.Join(mount, name)); err != nil {
			t.Fatal(err)
		}
	}
	write("..v1", "v1")
	link("..v1", "..data")
	link("..data/tls.crt", "tls.crt")
	link("..data/tls.key", "tls.key")
	r := startCredentials(t, dir)
	r.want("list\n  Secret shop/web " + mount + " PAIR_OK v1")
	for i := 2; i < 5; i++ {
		version := fmt.Sprintf("..v%d", i)
		write(version, version)
		link(version, "..data_tmp")
		r.do(os.Rename(filepath.Join(mount, "..data_tmp"), filepath.Join(mount, "..data")))
		r.do(os.RemoveAll(filepath.Join(mount, fmt.Sprintf("..v%d", i-1))))
		r.want("change\n  Secret shop/web " + mount + " PAIR_OK " + version)
	}
}

// logged collects log lines.
type logged struct {
	mu sync.Mutex
	bytes.Buffer
}

func (l *logged) Write(b []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.Buffer.Write(b)
}

func (l *logged) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.Buffer.String()
}

type noLeader struct{}

func (noLeader) Digests(context.Context, ident.Shard, string, events.Kinds) (*events.ShardDigests, error) {
	return nil, errors.New("no answer")
}

// KEY-1: whatever is wrong with a credential, its key is in no record of the log, no log
// line, no state of the publisher and no problem that the fold finds, in any form.
func TestNoKeyLeaves(t *testing.T) {
	ca := certtest.NewCA("ca")
	pair, other := ca.Server("web", time.Now().Add(time.Hour)), ca.Server("other", time.Now().Add(time.Hour))
	cert, key := string(pair.Cert), string(pair.Key)
	block, _ := pem.Decode(pair.Key)
	der, in64 := string(block.Bytes), base64.StdEncoding.EncodeToString(block.Bytes)
	dir := t.TempDir()
	for name, files := range map[string][]string{
		"good":           {"tls.crt", cert, "tls.key", key, "ca.crt", string(ca.PEM())},
		"in-tls-crt":     {"tls.crt", cert + key, "tls.key", key},
		"swapped":        {"tls.crt", key, "tls.key", cert},
		"as-ca":          {"ca.crt", key},
		"as-ca-der":      {"ca.crt", der},
		"as-ca-base64":   {"ca.crt", string(ca.PEM()) + in64},
		"as-crl":         {"ca.crt", string(ca.PEM()), "ca.crl", key},
		"as-staple":      {"tls.crt", cert, "tls.key", key, "tls.ocsp-staple", der},
		"der-key":        {"tls.crt", cert, "tls.key", der},
		"base64-key":     {"tls.crt", cert, "tls.key", in64},
		"others-key":     {"tls.crt", string(other.Cert), "tls.key", key},
		"key-alone":      {"tls.key", key},
		"half-a-key":     {"tls.crt", cert, "tls.key", key[:len(key)/2]},
		"in-a-header":    {"ca.crt", strings.Replace(string(ca.PEM()), "-----\n", "-----\nKey: "+in64+"\n\n", 1)},
		"in-a-bad-block": {"ca.crt", string(ca.PEM()) + "-----BEGIN CERTIFICATE-----\n" + in64},
		"in-a-wrong-one": {"ca.crt", string(ca.PEM()) + "-----BEGIN CERTIFICATE-----\n" + in64 + "\n-----END CERTIFICATE-----\n"},
	} {
		putFiles(t, dir, "shop/"+name, files...)
	}
	putFiles(t, dir, "shop/open", "tls.crt", cert, "tls.key", key)
	if err := os.Chmod(filepath.Join(dir, "shop/open/tls.key"), 0o644); err != nil {
		t.Fatal(err)
	}
	putFiles(t, dir, "misplaced", "tls.key", key)

	var lines logged
	log, states := memlog.New(time.Now), make(chan watcher.State, 100)
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() {
		ended <- watcher.Run(ctx, watcher.Config{
			Shard: ident.Shard{Source: "file", Instance: "default"}, Holder: "a", Log: log, Leader: noLeader{},
			Logger:  slog.New(slog.NewTextHandler(&lines, &slog.HandlerOptions{Level: slog.LevelDebug})),
			OnState: func(s watcher.State) { states <- s }, Watcher: file.New(t.TempDir()).WithCredentials(dir, reveal),
			ListingRequests: make(chan string, 1),
		})
	}()
	said := ""
	for s := range states {
		said += fmt.Sprintf("%+v\n", s)
		if s.Phase == watcher.PhaseFollowing && s.Pending == 0 && len(s.Diagnostics) > 0 {
			break
		}
	}
	cancel()
	if err := <-ended; !errors.Is(err, context.Canceled) {
		t.Fatal(err)
	}
	search := func(where string, b []byte) {
		t.Helper()
		text := strings.ReplaceAll(strings.ReplaceAll(string(b), "\n", ""), `\n`, "")
		for form, of := range map[string]string{"DER": der, "base64": in64[20:80], "base64 of PEM": base64.StdEncoding.EncodeToString(pair.Key)[80:140]} {
			if strings.Contains(text, of) {
				t.Errorf("%s has the key in %s: %q", where, form, b)
			}
		}
		if form := keymaterial.In(b); form != "" {
			t.Errorf("%s has a key %s: %q", where, form, b)
		}
	}
	search("the state", []byte(said))
	search("the log lines", []byte(lines.String()))
	k, _ := kind.ByName("Secret")
	objects := 0
	bounds, err := log.Bounds(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	for raw, err := range log.Raw(t.Context(), 1, bounds.Last) {
		if err != nil {
			t.Fatal(err)
		}
		search(fmt.Sprintf("record %d", raw.Seq), raw.Data)
		e, err := events.Decode(raw.Data)
		if err != nil {
			t.Fatal(err)
		}
		o, ok := e.Body.(*events.Object)
		if !ok {
			continue
		}
		objects++
		m, err := k.Decode(o.Value.Type, o.Value.Bytes)
		if err != nil {
			search("the problem of "+o.Key.Name, []byte(err.Error()))
			continue
		}
		for _, d := range k.Validate("shop", m) {
			search("the problem of "+o.Key.Name, fmt.Appendf(nil, "%+v", d))
		}
	}
	if objects != 17 {
		t.Errorf("%d objects on the log, want 17", objects)
	}
}
