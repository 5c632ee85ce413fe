package bus

import (
	"testing"
	"time"

	"github.com/nats-io/nats.go"

	"meshlog.dev/deploy/testkit/natstest"
	"meshlog.dev/services/internal/loglimit"
)

// The connection leaves a server without JetStream, like one that is cut off from
// its cluster, for a server with it.
func TestCutOff(t *testing.T) {
	servers := map[string]*natstest.Server{}
	for range 2 {
		ns := natstest.StartTCP(t)
		servers[ns.ClientURL()] = ns
	}
	var urls string
	for url := range servers {
		urls += "," + url
	}
	l := &link{o: ConnectOptions{URL: urls[1:], Name: t.Name(), Log: quiet}, log: loglimit.New(quiet, 1)}
	url, opts, err := l.nats()
	if err != nil {
		t.Fatal(err)
	}
	nc, err := nats.Connect(url, opts...)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(nc.Close)
	renewed, closed := nc.StatusChanged(nats.CONNECTED), nc.StatusChanged(nats.CLOSED)
	ended := make(chan struct{})
	go func() { defer close(ended); l.stayUseful(nc, closed, time.Millisecond) }()

	first := nc.ConnectedUrl()
	if err := servers[first].DisableJetStream(); err != nil {
		t.Fatal(err)
	}
	<-renewed
	if now := nc.ConnectedUrl(); now == first {
		t.Errorf("still connected to %s", now)
	}
	if err := askLeader(nc); err != nil {
		t.Error(err)
	}
	nc.Close()
	<-ended
}
