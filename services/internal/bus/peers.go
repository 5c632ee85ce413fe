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
	// maxPeers is how many processes of a role may report, with names of maxPeerName
	// bytes at most: a client may report under as many names as it likes, and all of
	// them fit into the report of a builder.
	maxPeers    = 1000
	maxPeerName = 200
)

// Peers are the processes that report. It is safe for concurrent use.
type Peers struct {
	fleet *Fleet

	mu    sync.Mutex                      // protects what follows
	since time.Time                       // reports since then were received; zero: Run has not started
	last  time.Time                       // of the last report
	heard map[string]map[string]time.Time // by role and name
}

// NewPeers returns empty Peers; Run fills them.
func NewPeers(f *Fleet) *Peers { return &Peers{fleet: f, heard: map[string]map[string]time.Time{}} }

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
	role, _, _ := strings.Cut(name, ".")
	heard := p.heard[role]
	if heard == nil {
		heard = map[string]time.Time{}
		p.heard[role] = heard
	}
	if last {
		delete(heard, name)
		return
	}
	if _, known := heard[name]; !known && (len(name) > maxPeerName || len(heard) >= maxPeers) {
		p.fleet.crowded.Add(1)
		p.fleet.log.Warn("a process that reports is not listed: there are too many, or its name is long", "process", name[:min(len(name), maxPeerName)], "limit", maxPeers)
		return
	}
	heard[name] = now
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
	var peers []*reportv1.Peer
	for _, heard := range p.heard {
		maps.DeleteFunc(heard, func(_ string, at time.Time) bool { return now.Sub(at) > PeerSilence })
		for name, at := range heard {
			peers = append(peers, &reportv1.Peer{Name: name, Heard: timestamppb.New(at)})
		}
	}
	slices.SortFunc(peers, func(a, b *reportv1.Peer) int { return strings.Compare(a.GetName(), b.GetName()) })
	return peers
}
