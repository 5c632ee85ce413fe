package ca

import (
	"crypto/sha256"
	"crypto/x509"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	reportv1 "meshlog.dev/proto/meshlog/report/v1"
	"meshlog.dev/services/ca/signer"
)

func applied(streams uint32, roots ...[32]byte) *reportv1.RootsApplied {
	return &reportv1.RootsApplied{Roots: sums(roots), Streams: streams}
}

func sums(roots [][32]byte) (all [][]byte) {
	for _, r := range roots {
		all = append(all, r[:])
	}
	return all
}

// CA-10: a root is ready when every frontend serves it and every live proxy has applied
// it. Without reports it is not.
func TestGate(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		older, newer := sha256.Sum256([]byte("old")), sha256.Sum256([]byte("new"))
		g := newGate(time.Now())
		hear := func(name string, roots [][32]byte, all ...*reportv1.RootsApplied) {
			g.hear(name, &reportv1.FrontendReport{Roots: sums(roots), RootsApplied: all}, false, time.Now())
		}
		want := func(parts ...string) {
			t.Helper()
			why := strings.Join(g.waiting(newer, time.Now()), "; ")
			for _, p := range parts {
				if !strings.Contains(why, p) {
					t.Errorf("waits because %q, want %q", why, p)
				}
			}
			if len(parts) == 0 && why != "" {
				t.Errorf("waits because %q", why)
			}
		}
		both := [][32]byte{older, newer}
		want("has listened to the reports of frontends for 0s only", "no frontend reports")
		<-time.After(20 * time.Second)
		want("no frontend has reported for 20s")
		hear("a", both, applied(3, both...))
		want("has listened")
		for range 2 {
			<-time.After(10 * time.Second)
			hear("a", both, applied(3, both...))
		}
		want()
		hear("b", both[:1], applied(2, older))
		want("frontend b does not serve the root yet")
		hear("b", both, applied(2, older), applied(1), applied(4, both...))
		want("3 of 7 proxies at frontend b have not applied the root")
		hear("b", both, applied(7, both...))
		want()
		// A frontend that is silent has proxies, as far as anybody knows.
		for range 3 {
			<-time.After(10 * time.Second)
			hear("a", both)
		}
		want("frontend b is silent for 30s")
		for range 6 * 60 {
			<-time.After(10 * time.Second)
			hear("a", both)
		}
		want()
		hear("b", nil)
		want("frontend b does not serve the root yet")
		g.hear("b", nil, true, time.Now())
		want()
		<-time.After(time.Minute)
		want("no frontend has reported for 1m0s")
	})
}

// CA-10: the root of a CA of its own is rotated, and the process may die after each step:
// each begins with what is on the disk. The key before is gone, certificates under its root
// are verified until the last one has ended.
func TestOwnRootIsRotated(t *testing.T) {
	s := DefaultSettings()
	dir := t.TempDir()
	s.KeyFile, s.SealKeyFile = filepath.Join(dir, "ca", "ca.key"), filepath.Join(dir, "seal")
	must(t, os.WriteFile(s.SealKeyFile, []byte(strings.Repeat("s", 32)), 0o600))
	now := time.Now()
	start := func() *rotation {
		t.Helper()
		signing, roots, err := s.open(now, quiet)
		must(t, err)
		return &rotation{signing, roots, newGate(now)}
	}
	expect := func(r *rotation, root *x509.Certificate, want string) {
		t.Helper()
		var got []string
		for _, c := range r.roots.list() {
			name := "old "
			if !c.cert.Equal(root) {
				name = "new "
			}
			got = append(got, name+string(c.state))
		}
		if g := strings.Join(got, ", "); g != want {
			t.Errorf("the roots are %q, want %q", g, want)
		}
	}
	first := start()
	old := first.authority().Root()
	expect(first, old, "old active")

	// A replica that shares the files follows each step.
	other := start()
	must(t, first.rotate(now), other.rotate(now))
	second := start()
	expect(second, old, "old active, new announced")
	must(t, second.step(now), start().rotate(now))
	if len(second.given()) != 2 || !second.authority().Root().Equal(old) {
		t.Error("an announced root signs, or is not in the files")
	}
	if ready, err := second.roots.ready(); ready != nil || err != nil {
		t.Errorf("a root is ready without a report: %v", err)
	}
	expect(start(), old, "old active, new announced")

	must(t, start().roots.clear(nil, true))
	third := start()
	expect(third, old, "old active, new announced")
	next, err := third.roots.ready()
	must(t, err)
	must(t, third.files(t, s).Promote(next)) // the process dies before the states say so
	fourth := start()
	expect(fourth, old, "old retiring, new active")
	must(t, other.step(now), third.step(now))
	for _, r := range []*rotation{other, third, fourth} {
		if !r.authority().Root().Equal(next) || len(r.authority().Roots()) != 2 {
			t.Errorf("a replica signs under %s, and trusts %d roots", named(r.authority().Root()), len(r.authority().Roots()))
		}
	}
	must(t, fourth.step(now))
	if again, err := fourth.roots.ready(); again != nil || err != nil {
		t.Errorf("a root that signs is ready to: %v", err)
	}

	now = now.Add(week + 30*time.Minute)
	must(t, fourth.step(now))
	expect(fourth, old, "old retiring, new active")
	now = now.Add(31 * time.Minute)
	must(t, fourth.step(now), fourth.step(now))
	expect(fourth, old, "new active")
	if len(fourth.authority().Roots()) != 1 {
		t.Error("a removed root is trusted")
	}
	expect(start(), old, "new active")
}

func (*rotation) files(t *testing.T, s Settings) signer.SelfFiles {
	t.Helper()
	keys, err := s.keys()
	must(t, err)
	return signer.SelfFiles{Path: s.KeyFile, TrustDomain: s.TrustDomain, Keys: keys}
}
