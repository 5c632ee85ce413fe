package frontend

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// crowd starts streams that wait for admission, and logs when each was admitted or
// refused.
type crowd struct {
	t     *testing.T
	gate  *admission
	peer  *holder // of the streams that come without one
	start time.Time
	wait  sync.WaitGroup
	mu    sync.Mutex
	log   []string
}

func newCrowd(t *testing.T, perSecond, places int) *crowd {
	return &crowd{t: t, gate: newAdmission(Limits{StreamsPerSecond: perSecond, FirstAnswers: places}), peer: new(holder), start: time.Now()}
}

func (c *crowd) come(name string, resuming bool) {
	c.comeFrom(context.Background(), c.peer, name, resuming)
}

func (c *crowd) comeFrom(ctx context.Context, peer *holder, name string, resuming bool) {
	c.wait.Go(func() {
		what := "in"
		if err := c.gate.wait(ctx, resuming, peer); err != nil {
			what = status.Code(err).String()
		}
		c.mu.Lock()
		defer c.mu.Unlock()
		c.log = append(c.log, fmt.Sprintf("%s %s %s", time.Since(c.start).Round(10*time.Millisecond), name, what))
	})
	synctest.Wait()
}

func (c *crowd) expect(want ...string) {
	c.t.Helper()
	c.wait.Wait()
	slices.Sort(c.log)
	if diff := cmp.Diff(want, c.log); diff != "" {
		c.t.Errorf("(-want +got):\n%s", diff)
	}
}

func TestGateRate(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCrowd(t, 2, 100)
		c.come("cold0", false)
		c.come("cold1", false)
		<-time.After(100 * time.Millisecond)
		for i := range 12 {
			c.come(fmt.Sprint("cold", 2+i), false)
		}
		c.come("back", true)
		// At first, a second's worth of streams is admitted at once. Resuming
		// clients come first, and a client that would wait too long is refused at
		// once.
		c.expect(
			"0s cold0 in", "0s cold1 in", "1.5s cold3 in", "100ms cold12 Unavailable", "100ms cold13 Unavailable",
			"1s cold2 in", "2.5s cold5 in", "2s cold4 in", "3.5s cold7 in", "3s cold6 in", "4.5s cold9 in", "4s cold8 in",
			"5.1s cold11 Unavailable", "500ms back in", "5s cold10 in")
	})
}

func TestGatePlaces(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCrowd(t, 1000, 1)
		c.come("a", false)
		c.come("b", false)
		c.come("c", false)
		<-time.After(time.Second)
		c.gate.release(c.peer) // a
		<-time.After(5 * time.Second)
		c.expect("0s a in", "1s b in", "5s c Unavailable")
	})
}

// Clients that were served before wait and are not refused (G12).
func TestGateHolds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCrowd(t, 1000, 1)
		c.come("a", true)
		c.come("cold", false)
		c.come("b", true)
		<-time.After(10 * time.Second)
		c.gate.release(c.peer) // a
		c.expect("0s a in", "10s b in", "5s cold Unavailable")
	})
}

// Of five admissions one is a new client, however many claim to resume (XDS-2).
func TestGateColdShare(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCrowd(t, 10, 100)
		for i := range 10 { // the burst
			c.come(fmt.Sprint("burst", i), true)
		}
		for i := range 20 {
			c.come(fmt.Sprintf("back%02d", i), true)
		}
		c.come("cold0", false)
		c.come("cold1", false)
		c.wait.Wait()
		var order []string
		for _, line := range c.log[10:] {
			order = append(order, strings.Fields(line)[1])
		}
		// Ten resuming clients came before, so the first one is new, and then the fifth
		// after it.
		want := []string{"cold0", "back00", "back01", "back02", "back03", "cold1", "back04"}
		if diff := cmp.Diff(want, order[:len(want)]); diff != "" || len(order) != 22 {
			t.Errorf("%d admitted; -want +got:\n%s", len(order), diff)
		}
	})
}

// The streams of one address neither take all places nor fill the line (XDS-2).
func TestGateSharesPlaces(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCrowd(t, 2, 4) // ten wait at most
		many, other := new(holder), new(holder)
		for i := range 14 {
			c.comeFrom(t.Context(), many, fmt.Sprintf("many%02d", i), false)
		}
		c.comeFrom(t.Context(), other, "other0", false)
		c.comeFrom(t.Context(), other, "other1", false)
		for range 8 {
			<-time.After(550 * time.Millisecond)
			c.gate.release(many)
		}
		c.wait.Wait()
		at := map[string]string{}
		for _, line := range c.log {
			when, what, _ := strings.Cut(line, " ")
			at[what] = when
		}
		// Two are let in at once, and two a second. The other address has no place, so
		// its first stream comes next, and its second one when the other has as many but
		// more in line. There they replace the last two of the first address.
		want := map[string]string{"many00 in": "0s", "many01 in": "0s", "other0 in": "500ms", "other1 in": "1s", "many02 in": "1.5s"}
		for i := 10; i < 14; i++ {
			want[fmt.Sprintf("many%d Unavailable", i)] = "0s"
		}
		for what, when := range want {
			if at[what] != when {
				t.Errorf("%s after %q, want %q: %v", what, at[what], when, c.log)
			}
		}
	})
}

func TestGateGoneMeanwhile(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCrowd(t, 1000, 1)
		c.come("a", false)
		ctx, cancel := context.WithCancel(t.Context())
		c.comeFrom(ctx, c.peer, "b", false)
		c.come("c", false)
		cancel()
		synctest.Wait()
		c.gate.release(c.peer) // a
		c.expect("0s a in", "0s b Canceled", "0s c in")
		if c.gate.free != 0 {
			t.Errorf("%d places free, want 0", c.gate.free)
		}
	})
}

func TestRefusalSaysWhatToDo(t *testing.T) {
	err := newAdmission(Limits{StreamsPerSecond: 7, FirstAnswers: 8}).refusal()
	want := "too many new streams: 7 begin in a second and 8 are at their first answers at a time; try another frontend, or later"
	if s := status.Convert(err); s.Code() != codes.Unavailable || s.Message() != want {
		t.Errorf("got %v", err)
	}
}
