package apiserver

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/watch"

	"meshlog.dev/services/watcher/kube/index"
)

// TestIdleStreamEnds checks that a watch ends, with its request, after a while without
// events and bookmarks.
func TestIdleStreamEnds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const idle = 3 * time.Minute
		f := &Feed{begun: time.Now(), o: Options{
			Limits:  Limits{Idle: idle},
			Convert: func(runtime.Object) (*index.Object, bool) { return &index.Object{}, true },
		}}
		in := watch.NewFake()
		ctx, cancel := context.WithCancel(t.Context())
		begun := time.Now()
		s := newStream(ctx, cancel, in, f)
		<-time.After(idle - time.Second)
		in.Action(watch.Bookmark, nil)
		<-s.ResultChan()
		if since := time.Since(f.Heard()); since != 0 {
			t.Errorf("Heard is %s ago, want now", since)
		}
		if _, more := <-s.ResultChan(); more {
			t.Error("the watch returned an event")
		}
		if lasted, want := time.Since(begun), 2*idle-time.Second; lasted != want {
			t.Errorf("the watch lasted %s, want %s", lasted, want)
		}
		s.Stop()
		if ctx.Err() == nil || !in.IsStopped() {
			t.Error("the request was not ended")
		}
	})
}
