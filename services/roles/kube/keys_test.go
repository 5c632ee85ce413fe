package kube

import (
	"bytes"
	"context"
	"encoding/base64"
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
	"meshlog.dev/deploy/testkit/kubetest"
	"meshlog.dev/proto/ident"
	keyv1 "meshlog.dev/proto/meshlog/key/v1"
	"meshlog.dev/services/internal/bus"
	"meshlog.dev/services/internal/busauth"
	"meshlog.dev/services/internal/keyexchange"
	"meshlog.dev/services/internal/keyexchange/keyring"
	"meshlog.dev/services/internal/process"
	"meshlog.dev/services/mesh/credential"
	"meshlog.dev/services/mesh/keymaterial"
	"meshlog.dev/services/roles/builder"
)

// pairSecret returns a Secret with a new pair, as YAML, and its key.
func pairSecret(namespace, name string) (yaml, key string) {
	pair := certtest.NewCA("ca").Server(name, time.Now().Add(time.Hour))
	encode := base64.StdEncoding.EncodeToString
	return fmt.Sprintf("apiVersion: v1\nkind: Secret\nmetadata: {name: %s, namespace: %s}\ntype: kubernetes.io/tls\ndata: {tls.crt: %s, tls.key: %s}\n", name, namespace, encode(pair.Cert), encode(pair.Key)), string(pair.Key)
}

// keyMesh is a bus, a builder, an API server, and watchers with the settings.
type keyMesh struct {
	*testing.T
	api      *kubetest.Server
	server   *bus.Server
	data     string
	settings Settings
	log      *bytes.Buffer // of all processes, at the lowest of their levels; read it when they have ended
	logger   *slog.Logger
}

var east = ident.Shard{Source: "kubernetes", Instance: "east"}

func startKeyMesh(t *testing.T) *keyMesh {
	m := &keyMesh{T: t, api: kubetest.Start(t), data: t.TempDir(), settings: DefaultSettings(), log: new(bytes.Buffer)}
	m.logger = slog.New(slog.NewTextHandler(m.log, &slog.HandlerOptions{Level: slog.LevelDebug}))
	var err error
	m.server, err = bus.StartServer(bus.ServerOptions{
		Dir: m.data, Accounts: busauth.Accounts("mesh", bus.Builder(), bus.Frontend(), bus.Operator(), bus.Watcher(east)), Log: slog.New(slog.DiscardHandler),
	})
	must(t, err)
	t.Cleanup(func() { must(t, m.server.Close()) })
	kubeconfig, err := kubetest.Kubeconfig(m.api.Config())
	must(t, err)
	s := &m.settings
	s.Cluster, s.Kubeconfig = east.Instance, certtest.WriteFile(t, t.TempDir(), "config", kubeconfig)
	s.Secrets.KeyFile, s.SecretNamespaces = certtest.WriteFile(t, t.TempDir(), "hmac", []byte("a key of sixteen bytes")), []string{"shop"}
	must(t, s.Check())
	return m
}

func (m *keyMesh) connect(r bus.Role) func(context.Context) (*bus.Conn, error) {
	return func(context.Context) (*bus.Conn, error) {
		return bus.Connect(bus.ConnectOptions{Server: m.server, Role: r, Name: r.String(), Log: slog.New(slog.DiscardHandler)})
	}
}

func (m *keyMesh) ring(r bus.Role) keyring.Ring {
	name, _ := r.ExchangeKeyName()
	return keyring.Ring{File: filepath.Join(m.data, "auth", name)}
}

func (m *keyMesh) process() *process.Process {
	admin, err := process.NewAdmin("127.0.0.1:0")
	must(m.T, err)
	return &process.Process{Build: "test", Log: m.logger, Admin: admin}
}

func (m *keyMesh) run(run func(context.Context) error) (stop func()) {
	ctx, cancel := context.WithCancel(m.Context())
	ended := make(chan error, 1)
	go func() { ended <- run(ctx) }()
	stop = sync.OnceFunc(func() {
		cancel()
		if err := <-ended; err != nil {
			m.Errorf("a role ended: %v", err)
		}
	})
	m.Cleanup(stop)
	return stop
}

// watcher runs a watcher of the cluster.
func (m *keyMesh) watcher(id string) (c *Cluster, stop func()) {
	c, err := New(&m.settings, Options{
		Domain: "mesh", Holder: id, Process: m.process(), Ring: m.ring(bus.Watcher(east)),
		Connect: func(s ident.Shard) func(context.Context) (*bus.Conn, error) { return m.connect(bus.Watcher(s)) },
	})
	must(m.T, err)
	return c, m.run(c.Run)
}

// want returns the request for a key of a Secret.
func (m *keyMesh) want(namespace, name, key string) keyexchange.Want {
	o, err := m.settings.Secrets.Options()
	must(m.T, err)
	s := credential.Source{Namespace: namespace, Name: name, Data: map[string][]byte{"tls.key": []byte(key)}}
	return keyexchange.Want{Shard: east, Namespace: namespace, Name: name, Sums: map[string][]byte{"tls.key": credential.Sum(s, "tls.key", o.Key)}}
}

// KEY-1, KEY-3, KEY-5, KEY-10: over a bus with accounts, a frontend gets the keys of Secrets
// from the watcher of the cluster and from its standby, as a version names them: not the key
// before a rotation, none of a deleted Secret or of another namespace, none while the API
// server is down, and again when it is back. No process logs a key.
func TestKeys(t *testing.T) {
	m := startKeyMesh(t)
	web, key := pairSecret("shop", "web")
	elsewhere, foreign := pairSecret("default", "elsewhere")
	must(t, m.api.Apply(t.Context(), "{apiVersion: v1, kind: Namespace, metadata: {name: shop}}", web, elsewhere))
	builds := builder.Options{Domain: "mesh", ID: "builder-1", Data: t.TempDir(), Replicas: 1, Settings: builder.DefaultSettings(), Connect: m.connect(bus.Builder()), Process: m.process()}
	stopBuilder := m.run(func(ctx context.Context) error { return builder.Run(ctx, builds) })
	first, stopFirst := m.watcher("a")
	second, stopSecond := m.watcher("b")

	nc, err := m.connect(bus.Frontend())(t.Context())
	must(t, err)
	t.Cleanup(nc.Close)
	frontend := bus.NewFleet(nc, "mesh", slog.New(slog.DiscardHandler))
	send := func(ctx context.Context, request []byte) ([]byte, error) {
		return frontend.RequestKey(ctx, east, request)
	}
	over := func(w keyexchange.Want) *keyexchange.Answer {
		t.Helper()
		for deadline := time.Now().Add(time.Minute); ; {
			a, err := m.ring(bus.Frontend()).Ask(t.Context(), w, send)
			if err == nil {
				return a
			}
			if !errors.Is(err, bus.ErrNoKeeper) || time.Now().After(deadline) {
				t.Fatal(err)
			}
			<-time.After(10 * time.Millisecond)
		}
	}
	call := func(c *Cluster) func(keyexchange.Want) *keyexchange.Answer {
		return func(w keyexchange.Want) *keyexchange.Answer {
			t.Helper()
			for deadline := time.Now().Add(time.Minute); ; {
				a, err := c.Keys().Ask(t.Context(), w)
				if err == nil {
					return a
				}
				if time.Now().After(deadline) {
					t.Fatal(err)
				}
				<-time.After(10 * time.Millisecond) // it has not started yet
			}
		}
	}
	check := func(what string, a *keyexchange.Answer, outcome keyv1.Outcome, key string) {
		t.Helper()
		if a.Outcome != outcome || string(a.Fields["tls.key"]) != key {
			t.Errorf("%s: %s with %d bytes, %q; want %s with %d", what, a.Outcome, len(a.Fields["tls.key"]), a.Reason, outcome, len(key))
		}
	}
	const given, changed, gone, refused, busy = keyv1.Outcome_OUTCOME_GIVEN, keyv1.Outcome_OUTCOME_CHANGED, keyv1.Outcome_OUTCOME_GONE, keyv1.Outcome_OUTCOME_REFUSED, keyv1.Outcome_OUTCOME_BUSY
	old := m.want("shop", "web", key)
	check("over the bus", over(old), given, key)
	check("the first watcher", call(first)(old), given, key)
	check("the second watcher", call(second)(old), given, key)
	check("another namespace", over(m.want("default", "elsewhere", foreign)), refused, "")

	web, key = pairSecret("shop", "web")
	must(t, m.api.Apply(t.Context(), web))
	check("the key before a rotation", over(old), changed, "")
	check("the key after a rotation", over(m.want("shop", "web", key)), given, key)
	stopFirst()
	check("the second watcher alone", over(m.want("shop", "web", key)), given, key)

	m.api.API.Kill()
	check("without the API server", over(m.want("shop", "web", key)), busy, "")
	must(t, m.api.API.Start(t.Context()))
	check("with the API server again", over(m.want("shop", "web", key)), given, key)
	must(t, m.api.Delete(t.Context(), web))
	check("a deleted Secret", over(m.want("shop", "web", key)), gone, "")

	stopSecond()
	stopBuilder()
	if form := keymaterial.In(m.log.Bytes()); form != "" || strings.Contains(m.log.String(), "Response Body") {
		t.Errorf("the log has answers of the API server, and of a key: %q", form)
	}
	if n := strings.Count(m.log.String(), "answered a request for a key"); n < 10 {
		t.Errorf("the log has %d answers", n)
	}
}

// KEY-3: a cluster gives keys only with the xkey of its watchers and the key of the HMACs.
func TestKeysNeedBoth(t *testing.T) {
	kubeconfig := certtest.WriteFile(t, t.TempDir(), "config", []byte("{apiVersion: v1, kind: Config, current-context: c, contexts: [{name: c, context: {cluster: c}}], clusters: [{name: c, cluster: {server: 'https://127.0.0.1:1'}}]}"))
	hmac := certtest.WriteFile(t, t.TempDir(), "hmac", []byte("a key of sixteen bytes"))
	for what, c := range map[string]struct {
		hmac, xkey string
		want       bool
	}{
		"both": {hmac, "watcher.xk", true}, "no key of the HMACs": {"", "watcher.xk", false}, "no xkey": {hmac, "", false},
	} {
		s := DefaultSettings()
		s.Kubeconfig, s.Secrets.KeyFile = kubeconfig, c.hmac
		cluster, err := New(&s, Options{Process: &process.Process{Log: slog.New(slog.DiscardHandler)}, Ring: keyring.Ring{File: c.xkey}})
		must(t, err)
		if keys := cluster.Keys(); (keys != nil) != c.want {
			t.Errorf("%s: %v", what, keys)
		}
	}
	s := DefaultSettings()
	s.Kubeconfig, s.Secrets.KeyFile = kubeconfig, filepath.Join(t.TempDir(), "missing")
	if _, err := New(&s, Options{Process: &process.Process{Log: slog.New(slog.DiscardHandler)}}); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("a missing key of the HMACs: %v", err)
	}
}
