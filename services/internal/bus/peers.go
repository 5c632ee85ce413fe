package bus

import (
	"context"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/nats-io/nats.go"
	"google.golang.org/protobuf/types/known/timestamppb"

	reportv1 "meshlog.dev/proto/meshlog/report/v1"
)

const (
	// PeerSilence is the time without a report after which a process is no peer
	// any more.
	PeerSilence = 25 * time.Second
	// peersKnown is the time in which every running process reports.
	peersKnown = reportInterval + 2*time.Second
)

// Peers are the processes that report. It is safe for concurrent use.
type Peers struct {
	fleet *Fleet

	mu    sync.Mutex // protects what follows
	since time.Time  // reports since then were received; zero: Run has not started
	last  time.Time  // of the last report
	heard map[string]time.Time
}

// NewPeers returns empty Peers; Run fills them.
func NewPeers(f *Fleet) *Peers { return &Peers{fleet: f, heard: map[string]time.Time{}} }

// Run listens until ctx is done.
func (p *Peers) Run(ctx context.Context) error {
	p.mu.Lock()
	p.since, p.last = time.Now(), time.Now()
	p.mu.Unlock()
	return p.fleet.receive(ctx, reportSubject+">", func(m *nats.Msg) {
		name := strings.TrimPrefix(m.Subject, p.fleet.prefix+reportSubject)
		p.hear(name, m.Header.Get(lastHeader) != "", time.Now())
	})
}

func (p *Peers) hear(name string, last bool, now time.Time) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if now.Sub(p.last) > peersKnown {
		p.since = now // the bus was down: not even our own report arrived
	}
	p.last = now
	if last {
		delete(p.heard, name)
		return
	}
	p.heard[name] = now
}

// List returns the processes that report, sorted by name. It is nil until every
// process has had the time to report.
func (p *Peers) List() []*reportv1.Peer { return p.list(time.Now()) }

func (p *Peers) list(now time.Time) []*reportv1.Peer {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.since.IsZero() || now.Sub(p.since) < peersKnown || now.Sub(p.last) > peersKnown {
		return nil
	}
	maps.DeleteFunc(p.heard, func(_ string, at time.Time) bool { return now.Sub(at) > PeerSilence })
	var peers []*reportv1.Peer
	for _, name := range slices.Sorted(maps.Keys(p.heard)) {
		peers = append(peers, &reportv1.Peer{Name: name, Heard: timestamppb.New(p.heard[name])})
	}
	return peers
}
