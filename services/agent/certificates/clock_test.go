package certificates_test

import (
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"meshlog.dev/services/agent/certificates"
)

// T-4: the clocks of the CA and of this host differ by ten minutes from the beginning. The
// certificate is used, because peers decide by their clocks; the agent says what is wrong
// and renews in time.
func TestWrongClock(t *testing.T) {
	for _, c := range []struct {
		name  string
		ahead time.Duration // the CA's clock
		ttl   time.Duration
		odd   bool
	}{
		{"the CA is behind, a day", -10 * time.Minute, 24 * time.Hour, false},
		{"the CA is ahead, a day", 10 * time.Minute, 24 * time.Hour, true},
		{"the CA is behind, a minute", -10 * time.Minute, time.Minute, true},
		{"the CA is ahead, a minute", 10 * time.Minute, time.Minute, true},
	} {
		t.Run(c.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				i := newIssuer(t)
				i.setAhead(c.ahead)
				k, stop := runFor(t, i, &certificates.JoinFile{Path: token(t)}, c.ttl)
				defer stop()
				if now, _ := k.Current(); now == nil || k.Ready() != nil {
					t.Fatalf("no certificate: %v", k.Ready())
				}
				if err := k.Trouble(); (err != nil) != c.odd || err != nil && !strings.Contains(err.Error(), "set the clocks right") {
					t.Errorf("trouble: %v", err)
				}
				<-time.After(10 * c.ttl)
				synctest.Wait()
				if n := len(i.requests()); n < 15 || n > 27 {
					t.Errorf("%d requests in ten times the certificate's time", n)
				}
				if err := k.Ready(); err != nil {
					t.Errorf("later: %v", err)
				}
			})
		})
	}
}

// T-4: the CA's clock goes ahead between two certificates: the one before is used until the
// new one is valid. It goes behind: a certificate that has ended replaces none.
func TestClockChanges(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		i := newIssuer(t)
		k, stop := run(t, i, &certificates.JoinFile{Path: token(t)})
		defer stop()
		first, _ := k.Current()
		i.setAhead(10 * time.Minute)
		for len(i.requests()) == 1 {
			<-time.After(time.Minute)
		}
		if now, _ := k.Current(); now != first || k.Trouble() == nil || k.Ready() != nil {
			t.Errorf("a certificate is used before it is valid: %v, %v", k.Trouble(), k.Ready())
		}
		<-time.After(9 * time.Minute)
		synctest.Wait()
		second, _ := k.Current()
		if second == first || k.Trouble() != nil || len(i.requests()) != 2 {
			t.Errorf("after it is valid: %v, %d requests", k.Trouble(), len(i.requests()))
		}
		i.setAhead(-25 * time.Hour)
		<-time.After(20 * time.Hour)
		synctest.Wait()
		if now, _ := k.Current(); now != second || k.Trouble() == nil || k.Ready() != nil {
			t.Errorf("a certificate that has ended is used: %v, %v", k.Trouble(), k.Ready())
		}
		i.setAhead(0)
		<-time.After(time.Minute)
		synctest.Wait()
		if now, _ := k.Current(); now == second || k.Trouble() != nil {
			t.Errorf("with the right clock: %v", k.Trouble())
		}
	})
}

// CA-8: the agents of a mesh whose roots change ask again, also while a certificate waits
// to be valid.
func TestRootsChangeWhileHeld(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		i := newIssuer(t)
		k, stop := run(t, i, &certificates.JoinFile{Path: token(t)})
		defer stop()
		i.setAhead(time.Hour)
		for len(i.requests()) == 1 {
			<-time.After(time.Minute)
		}
		i.setAhead(0)
		k.RootsChanged()
		<-time.After(5 * time.Minute)
		synctest.Wait()
		if n := len(i.requests()); n != 3 || k.Trouble() != nil {
			t.Errorf("%d requests, %v", n, k.Trouble())
		}
	})
}
