package manifests

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"meshlog.dev/deploy/testkit/program"
)

// TestAdmissionReplicas ends one replica of the webhook after the other while objects are
// applied (ADM-3).
//
// SIGTERM, as a rollout or the drain of a node sends it: no apply fails, although the API
// server has connections to that replica, and the Service drops it only as it gets the
// signal. The preStop of the manifests, which covers a Service that drops it later, does
// not run here.
//
// SIGKILL, as a node that dies: what is under way there fails, and so does what the API
// server sends to its address as long as the Service has it. Such an apply is refused with
// "failed calling webhook", which says that nothing was checked or stored, and can be
// repeated. An invalid object is never taken. Once the Service has dropped the replica
// nothing fails.
func TestAdmissionReplicas(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	service := &endpoints{}
	a := startWebhook(ctx, t, service.choose)
	u := a.apply(ctx, t, 4)
	u.goOn(ctx, t)

	began := time.Now()
	ended := make(chan error, 1)
	go func() { ended <- a.k.run["admission-0"].Stop() }()
	service.set("admission-0", false)
	must(t, <-ended)
	took := time.Since(began)
	u.goOn(ctx, t)
	if n := u.failed.Load(); n > 0 {
		t.Errorf("SIGTERM: %d of %d applies failed", n, u.all())
	}
	t.Logf("SIGTERM: the replica ended after %s, and none of %d applies failed", took.Round(time.Millisecond), u.all())

	a.k.startPod("admission-0", a.w)
	a.k.ready(a.w)
	service.set("admission-0", true)
	u.goOn(ctx, t)

	u.mayFail.Store(true)
	before := u.all()
	a.k.run["admission-1"].Kill()
	u.goOn(ctx, t)
	service.set("admission-1", false)
	u.goOn(ctx, t) // what began before is over
	u.mayFail.Store(false)
	t.Logf("SIGKILL: %d of %d applies failed until the Service had dropped the replica", u.failed.Load(), u.all()-before)
	u.goOn(ctx, t)
	u.stop()
	a.enforced(ctx, t)
}

// endpoints are the pods to which a Service sends connections.
type endpoints struct {
	mu      sync.Mutex
	dropped map[string]bool
}

// choose returns one at random and no second one, as kube-proxy does.
func (e *endpoints) choose(all []string) []string {
	e.mu.Lock()
	defer e.mu.Unlock()
	all = slices.DeleteFunc(slices.Clone(all), func(pod string) bool { return e.dropped[pod] })
	if len(all) == 0 {
		return nil
	}
	return []string{all[rand.IntN(len(all))]}
}

func (e *endpoints) set(pod string, sends bool) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.dropped == nil {
		e.dropped = map[string]bool{}
	}
	e.dropped[pod] = !sends
}

// users apply objects, a valid one and an invalid one in turn.
type users struct {
	taken, refused, failed atomic.Int64
	mayFail                atomic.Bool // there is a replica that does not answer
	each                   []atomic.Int64
	stop                   func()
}

func (u *users) all() int64 { return u.taken.Load() + u.refused.Load() + u.failed.Load() }

// apply has users apply until stop is called.
func (a *webhook) apply(ctx context.Context, t *testing.T, number int) *users {
	ctx, cancel := context.WithCancel(ctx)
	u := &users{each: make([]atomic.Int64, number)}
	var running sync.WaitGroup
	for n := range number {
		running.Go(func() {
			for i := range 1_000_000 {
				good := strings.NewReplacer("name: good", fmt.Sprint("name: good-", n), "{uri: /}", fmt.Sprintf("{uri: /%d}", i)).Replace(validService)
				bad := strings.Replace(invalidService, "name: bad", fmt.Sprint("name: bad-", n), 1)
				taken, refused := a.Apply(ctx, good), a.Apply(ctx, bad)
				if ctx.Err() != nil {
					return
				}
				u.count(t, taken, nil)
				u.count(t, refused, errInvalid)
				u.each[n].Add(1)
			}
		})
	}
	u.stop = func() { cancel(); running.Wait() }
	t.Cleanup(u.stop)
	return u
}

// errInvalid stands for a refusal that names the invalid field.
var errInvalid = errors.New("invalid")

// count takes the answer to an apply and what it should have been.
func (u *users) count(t *testing.T, got, want error) {
	switch {
	case got == nil && want == nil:
		u.taken.Add(1)
	case got != nil && want != nil && strings.Contains(got.Error(), "spec.http[0].match[0].uri"):
		u.refused.Add(1)
	case got != nil && u.mayFail.Load() && strings.Contains(got.Error(), "failed calling webhook"):
		u.failed.Add(1)
	default:
		u.failed.Add(1)
		t.Errorf("an apply was answered with %v, want %v", got, want)
	}
}

// goOn waits until each user has applied often from now on.
func (u *users) goOn(ctx context.Context, t *testing.T) {
	t.Helper()
	const often = 25
	before := make([]int64, len(u.each))
	for n := range u.each {
		before[n] = u.each[n].Load()
	}
	must(t, program.Until(ctx, "all users to apply", func(context.Context) error {
		for n := range u.each {
			if done := u.each[n].Load() - before[n]; done < often {
				return fmt.Errorf("user %d has applied %d times", n, done)
			}
		}
		return nil
	}))
}
