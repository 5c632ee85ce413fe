package natsfeed

import (
	"sync/atomic"
	"testing"

	"github.com/nats-io/nats.go"

	"meshlog.dev/deploy/testkit/natstest"
	"meshlog.dev/proto/jsapi"
)

// A server's answer may get lost, as after a partition of its cluster: the feed
// asks once more.
func TestLostAnswer(t *testing.T) {
	t.Parallel() // it waits for the timeout of a request
	nc := natstest.Start(t).Connect(t)
	var asked atomic.Int32
	_, err := nc.Subscribe(jsapi.DirectGet+"LOSSY", func(m *nats.Msg) {
		if asked.Add(1) == 1 {
			return
		}
		end := nats.NewMsg(m.Reply)
		end.Header.Set("Status", "204")
		if err := nc.PublishMsg(end); err != nil {
			t.Error(err)
		}
	})
	if err != nil {
		t.Fatal(err)
	}
	f := &Feed{nc: nc}
	run, err := f.direct(t.Context(), "LOSSY", "meshlog.ver.mesh", 1, 1)
	if err != nil || len(run) > 0 || asked.Load() != 2 {
		t.Errorf("direct = %v, %v after %d requests; want an empty run after 2", run, err, asked.Load())
	}
}
