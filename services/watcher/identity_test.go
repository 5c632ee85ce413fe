package watcher_test

import (
	"errors"
	"strings"
	"testing"
	"testing/synctest"

	"meshlog.dev/events"
	"meshlog.dev/services/watcher"
)

// REG-12: two sources under one name do not take turns; the second one ends and says
// what to do.
func TestREG12Identity(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		objects := map[string]string{"x": "1"}
		first := start(t, newSource(objects), options{identity: "datacenter dc1"})
		twin := start(t, newSource(objects), options{holder: "b", log: first.log, identity: "datacenter dc1"})
		if s := twin.state(); s.Phase != watcher.PhaseStandby {
			t.Errorf("a twin of the same source is %s", s.Phase)
		}
		_ = twin.stop()

		other := start(t, newSource(objects), options{holder: "b", log: first.log, identity: "datacenter dc2"})
		err := other.stop()
		if !errors.Is(err, watcher.ErrIdentity) || !strings.Contains(err.Error(), "source file/default is datacenter dc1, this is datacenter dc2: give it another --instance") {
			t.Errorf("the other source ended with %v", err)
		}
		_ = first.stop()

		again := start(t, newSource(objects), options{log: first.log, identity: "datacenter dc2"})
		if err := again.stop(); !errors.Is(err, watcher.ErrIdentity) {
			t.Errorf("the holder's own name, with another source: %v", err)
		}

		_, err = first.log.Append(t.Context(), []events.Event{{ID: "removed", Body: &events.Alive{Shard: shard, Session: "operator", Ends: true}}}, events.Fence{})
		if err != nil {
			t.Fatal(err)
		}
		moved := start(t, newSource(objects), options{log: first.log, identity: "datacenter dc2"})
		if s := moved.state(); s.Phase != watcher.PhaseFollowing {
			t.Errorf("after the other source was removed: %s", s.Phase)
		}
		_ = moved.stop()
	})
}
