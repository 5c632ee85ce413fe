package admission

import (
	"crypto/tls"
	"crypto/x509"
	"errors"
	"strings"
	"testing"
	"time"

	"meshlog.dev/deploy/testkit/certtest"
)

func rootsOf(t *testing.T, cas ...*certtest.CA) (all []*x509.Certificate) {
	t.Helper()
	for _, ca := range cas {
		roots, err := parseRoots(ca.PEM())
		must(t, err)
		all = append(all, roots...)
	}
	return all
}

// ADM-4: the API server has the roots of the file, and an old one as long as a replica
// shows a certificate of it, or may show one.
func TestBundle(t *testing.T) {
	one, two := certtest.NewCA("one"), certtest.NewCA("two")
	old, new := one.Server("a", time.Now().Add(time.Hour)).TLS().Certificate, two.Server("a", time.Now().Add(time.Hour)).TLS().Certificate
	for _, test := range []struct {
		name  string
		file  []*certtest.CA
		shown [][][]byte
		known bool
		now   time.Time
		want  int
	}{
		{"a replica has the old one", []*certtest.CA{two}, [][][]byte{old, new}, true, time.Now(), 2},
		{"no replica has it", []*certtest.CA{two}, [][][]byte{new, new}, true, time.Now(), 1},
		{"a replica does not answer", []*certtest.CA{two}, [][][]byte{new}, false, time.Now(), 2},
		{"the old one has ended", []*certtest.CA{two}, [][][]byte{old}, true, time.Now().Add(48 * time.Hour), 1},
		{"the file has both", []*certtest.CA{two, one}, [][][]byte{new}, true, time.Now(), 2},
	} {
		got := bundleOf(rootsOf(t, test.file...), rootsOf(t, one), test.shown, test.known, test.now)
		if len(got) != test.want || !got[0].Equal(rootsOf(t, two)[0]) {
			t.Errorf("%s: %d roots", test.name, len(got))
		}
	}
}

// ADM-4: a replica shows a new certificate once the API server has its root.
func TestNewCertificateWaitsForItsRoot(t *testing.T) {
	one, two := certtest.NewCA("one"), certtest.NewCA("two")
	pair := one.Server("a", time.Now().Add(time.Hour)).TLS()
	var unread error
	s, err := newServing(func() (*tls.Certificate, error) {
		now := pair
		return &now, unread
	})
	must(t, err)
	has := func(cas ...*certtest.CA) { s.seen(rootsOf(t, cas...)) }
	shows := func(what string, ca *certtest.CA) {
		t.Helper()
		if !verifies(rootsOf(t, ca), s.certificate().Certificate) {
			t.Errorf("%s: the certificate is of another root", what)
		}
	}
	has(one)
	shows("at first", one)
	pair = two.Server("a", time.Now().Add(time.Hour)).TLS()
	shows("before the API server has the root", one)
	if !errors.Is(s.problem(), errNoRoot) {
		t.Errorf("it says %v", s.problem())
	}
	has(two, one)
	shows("when the API server may not have noticed it", one)
	has(two, one)
	shows("with the root", two)
	if s.problem() != nil {
		t.Errorf("it says %v", s.problem())
	}
	unread = errors.New("broken files")
	shows("with broken files", two)
	if !errors.Is(s.problem(), unread) {
		t.Errorf("it says %v", s.problem())
	}
}

func TestSettings(t *testing.T) {
	s := DefaultSettings()
	s.Namespace, s.Service, s.URL, s.Revision, s.Cluster.Context = "a/b", "-", "http://x", "a b", "c"
	err := s.Check()
	for _, want := range []string{"--tls-cert is missing", "--namespace", "--service", "--url", "--revision", "--context"} {
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v does not name %s", err, want)
		}
	}
}
