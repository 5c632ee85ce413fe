package kube

import (
	"bytes"
	"log/slog"
	"net/http"
	"strings"
	"testing"
	"time"

	rbacv1 "k8s.io/api/rbac/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/client-go/rest"

	"meshlog.dev/deploy/testkit/certtest"
	"meshlog.dev/deploy/testkit/kubetest"
	keyv1 "meshlog.dev/proto/meshlog/key/v1"
	"meshlog.dev/services/mesh/credential"
	"meshlog.dev/services/mesh/keymaterial"
	"meshlog.dev/services/watcher/keeper"
)

var references = credential.Options{Key: []byte("a key that is not on the log...."), Public: true}

// asker asks a watcher for keys, by the HMACs that a frontend has from the log.
type asker struct {
	t      *testing.T
	keeper keeper.Keeper
}

// newAsker returns an asker of a watcher that does not run: it has listed nothing, so all
// it gives is from the API server.
func newAsker(t *testing.T, c *rest.Config, options ...option) asker {
	t.Helper()
	cfg := Config{REST: c, Cluster: "east", Logger: slog.New(slog.DiscardHandler), Secrets: references}
	for _, o := range options {
		o(&cfg, nil)
	}
	w, err := New(cfg)
	must(t, err)
	return asker{t, keeper.Keeper{Source: w, Options: cfg.Secrets}}
}

// wants asks for the key of a Secret, and checks the answer: the key if the outcome is
// GIVEN, otherwise nothing and a reason with these words.
func (a asker) wants(namespace, name string, key []byte, outcome keyv1.Outcome, why string) {
	a.t.Helper()
	s := credential.Source{Namespace: namespace, Name: name, Data: map[string][]byte{"tls.key": key}}
	got, fields, reason := a.keeper.Answer(a.t.Context(), namespace, name, map[string][]byte{"tls.key": credential.Sum(s, "tls.key", references.Key)})
	want := key
	if outcome != keyv1.Outcome_OUTCOME_GIVEN {
		want = nil
	}
	if got != outcome || !bytes.Equal(fields["tls.key"], want) || !strings.Contains(reason, why) {
		a.t.Errorf("%s/%s: %s with %d bytes, %q; want %s, %q", namespace, name, got, len(fields["tls.key"]), reason, outcome, why)
	}
	if form := keymaterial.In([]byte(reason)); form != "" {
		a.t.Errorf("%s/%s: the reason has a key %s", namespace, name, form)
	}
}

// KEY-5, KEY-10: the watcher reads a Secret for each request. It gives the key that a
// version names, and after a rotation the new one only; it gives none of a Secret that is
// deleted, of other namespaces, with other labels, or of a type that is no TLS credential.
func testKeys(t *testing.T, s *kubetest.Server) {
	ca := certtest.NewCA("ca")
	first, second := ca.Server("web", time.Now().Add(time.Hour)), ca.Server("web", time.Now().Add(time.Hour))
	web := tlsSecret("shop", "web", "use: mesh", first.Cert, first.Key)
	login := strings.NewReplacer("kubernetes.io/tls", "kubernetes.io/ssh-auth", "tls.crt", "ssh-privatekey").Replace(tlsSecret("shop", "login", "use: mesh", first.Cert, first.Key))
	others := tlsSecret("default", "elsewhere", "use: mesh", first.Cert, first.Key) + tlsSecret("shop", "unlabelled", "", first.Cert, first.Key)
	must(t, s.Apply(t.Context(), web+login+others))
	const given, changed, gone, refused = keyv1.Outcome_OUTCOME_GIVEN, keyv1.Outcome_OUTCOME_CHANGED, keyv1.Outcome_OUTCOME_GONE, keyv1.Outcome_OUTCOME_REFUSED

	var bodies []string // of Secrets that were read with their data
	p, c := through(t, s)
	p.Intercept(func(_ http.ResponseWriter, r *http.Request) bool {
		if strings.Contains(r.URL.Path, "/secrets") && !strings.Contains(r.Header.Get("Accept"), "PartialObjectMetadata") {
			bodies = append(bodies, r.URL.Path)
		}
		return false
	})
	all := newAsker(t, c)
	all.wants("shop", "web", first.Key, given, "")
	all.wants("shop", "web", second.Key, changed, `another "tls.key"`)
	all.wants("shop", "nowhere", first.Key, gone, "no such credential")
	all.wants("nowhere", "web", first.Key, gone, "no such credential")
	all.wants("shop", "login", first.Key, gone, "no such credential")
	all.wants("shop", "../pods", first.Key, gone, "no such credential")
	all.wants("default", "elsewhere", first.Key, given, "")
	all.wants("shop", "unlabelled", first.Key, given, "")
	watched := newAsker(t, c, func(c *Config, _ *limits) { c.Namespaces = []string{"shop"} })
	watched.wants("default", "elsewhere", first.Key, refused, "does not read Secrets of namespace default, so it is unknown")

	selector, err := labels.Parse("use=mesh")
	must(t, err)
	bodies = nil
	some := newAsker(t, c, func(c *Config, _ *limits) { c.SecretNamespaces, c.SecretSelector = []string{"shop"}, selector })
	some.wants("default", "elsewhere", first.Key, refused, "does not read Secrets of namespace default, so it is unknown")
	some.wants("shop", "unlabelled", first.Key, refused, "reads Secrets with the labels use=mesh only, so it is unknown")
	some.wants("shop", "nowhere", first.Key, gone, "no such credential")
	if len(bodies) > 0 {
		t.Errorf("the content of Secrets outside has left the API server: %s", bodies)
	}
	some.wants("shop", "web", first.Key, given, "")
	must(t, s.Apply(t.Context(), tlsSecret("shop", "web", "use: mesh", second.Cert, second.Key)))
	some.wants("shop", "web", first.Key, changed, `another "tls.key"`)
	some.wants("shop", "web", second.Key, given, "")
	must(t, s.Apply(t.Context(), tlsSecret("shop", "web", "", second.Cert, second.Key)))
	some.wants("shop", "web", second.Key, refused, "so it is unknown")
	must(t, s.Delete(t.Context(), web))
	some.wants("shop", "web", second.Key, gone, "no such credential")
	must(t, s.Delete(t.Context(), login+others))
}

// KEY-5: while the API server does not answer, or something else does in its place, the
// frontend is told to ask again; never that the credential is gone. Renewed access is used
// at once.
func testKeysAway(t *testing.T, s *kubetest.Server) {
	pair := certtest.NewCA("ca").Server("web", time.Now().Add(time.Hour))
	web := tlsSecret("shop", "web", "", pair.Cert, pair.Key)
	must(t, s.Apply(t.Context(), web))
	const given, busy = keyv1.Outcome_OUTCOME_GIVEN, keyv1.Outcome_OUTCOME_BUSY
	p, c := through(t, s)
	a := newAsker(t, c)
	a.wants("shop", "web", pair.Key, given, "")
	for code, why := range map[int]string{
		http.StatusNotFound: "unexpected answer with status 404", http.StatusBadGateway: "unexpected answer with status 502",
		http.StatusServiceUnavailable: "unexpected answer with status 503",
	} {
		p.Intercept(func(w http.ResponseWriter, _ *http.Request) bool {
			http.Error(w, string(pair.Key), code)
			return true
		})
		a.wants("shop", "web", pair.Key, busy, why)
	}
	p.Intercept(func(w http.ResponseWriter, _ *http.Request) bool {
		w.Header().Set("Content-Type", "application/json")
		if _, err := w.Write(append([]byte(`{"kind":"Secret","apiVersion":"v1","data":{"tls.key":`), pair.Key...)); err != nil {
			t.Error(err)
		}
		return true
	})
	a.wants("shop", "web", pair.Key, busy, errUnread)
	p.Intercept(nil)
	p.Hang()
	begun := time.Now()
	a.wants("shop", "web", pair.Key, busy, "")
	if took := time.Since(begun); took > 5*time.Second {
		t.Errorf("the answer took %s, and the frontend waits 5 s", took)
	}
	p.Resume()
	a.wants("shop", "web", pair.Key, given, "")

	access := &rest.Config{Host: "https://127.0.0.1:1"}
	renewed := newAsker(t, access, func(c *Config, _ *limits) { c.Renew = func() (*rest.Config, error) { return access, nil } })
	renewed.wants("shop", "web", pair.Key, busy, "connection refused")
	access = s.Config()
	renewed.wants("shop", "web", pair.Key, given, "")
	must(t, s.Delete(t.Context(), web))
}

const errUnread = "API server of cluster east: the API server's answer is not a Secret that can be read"

// KEY-5: the watcher needs no right but to get Secrets; without it, the answer names it.
func testKeysForbidden(t *testing.T, s *kubetest.Server) {
	pair := certtest.NewCA("ca").Server("web", time.Now().Add(time.Hour))
	web := tlsSecret("shop", "web", "use: mesh", pair.Cert, pair.Key)
	must(t, s.Apply(t.Context(), web))
	user, err := s.User(t.Context(), "keeper", may("", "pods"))
	must(t, err)
	selector, err := labels.Parse("use=mesh")
	must(t, err)
	a := newAsker(t, user, func(c *Config, _ *limits) { c.SecretSelector = selector })
	a.wants("shop", "web", pair.Key, keyv1.Outcome_OUTCOME_BUSY, "the watcher of cluster east needs the right to get secrets")
	_, err = s.User(t.Context(), "keeper", rbacv1.PolicyRule{APIGroups: []string{""}, Resources: []string{"secrets"}, Verbs: []string{"get"}})
	must(t, err)
	a.wants("shop", "web", pair.Key, keyv1.Outcome_OUTCOME_GIVEN, "")
	must(t, s.Delete(t.Context(), web))
}

// KEY-1: a watcher that lists Secrets and gives their keys logs none of them at any level:
// client-go's detailed ones have whole answers.
func testQuietKeys(t *testing.T, s *kubetest.Server) {
	pair := certtest.NewCA("ca").Server("web", time.Now().Add(time.Hour))
	web := tlsSecret("shop", "web", "use: mesh", pair.Cert, pair.Key)
	must(t, s.Apply(t.Context(), web))
	var log bytes.Buffer
	loud := func(c *Config, _ *limits) {
		c.Logger = slog.New(slog.NewTextHandler(&log, &slog.HandlerOptions{Level: slog.Level(-100)}))
		c.Secrets = references
	}
	w, stop := observe(t, s.Config(), loud)
	w.get("Secret shop/web")
	stop()
	newAsker(t, s.Config(), loud).wants("shop", "web", pair.Key, keyv1.Outcome_OUTCOME_GIVEN, "")
	if form := keymaterial.In(log.Bytes()); form != "" || strings.Contains(log.String(), "Response Body") {
		t.Errorf("the log has answers of the API server, and of a key: %q", form)
	}
	if log.Len() == 0 {
		t.Error("client-go has logged nothing: this test proves nothing")
	}
	must(t, s.Delete(t.Context(), web))
}
