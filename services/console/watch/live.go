package watch

import (
	"context"
	"errors"
	"maps"
	"slices"
	"time"

	"meshlog.dev/events"
	reportv1 "meshlog.dev/proto/meshlog/report/v1"
	"meshlog.dev/services/console/mirror"
	"meshlog.dev/services/internal/bus"
	"meshlog.dev/services/internal/process"
	"meshlog.dev/services/operate/command"
	"meshlog.dev/services/operate/inspect"
	"meshlog.dev/services/operate/past"
	"meshlog.dev/store"
)

// Live is a mesh that a bus reaches.
type Live struct {
	*Mesh  // its past is on the bus
	events mirror.Log
	chain  mirror.Chain
}

// Open opens the mesh that a connection reaches. It fails while a builder has not made the
// streams yet. The caller closes target, and the connection.
func (w *Watch) Open(ctx context.Context, target *command.Target) (*Live, error) {
	log, err := target.Log(ctx)
	if err != nil {
		return nil, err
	}
	chain, err := target.Chain(ctx)
	if err != nil {
		return nil, err
	}
	p := &past.Past{Name: "the mesh", Log: log, Versions: chain, Blobs: chain, Live: true}
	return &Live{&Mesh{w, target, p}, log, chain}, nil
}

// Current returns the mesh to make a page from: the console's copy once that is whole, else the
// bus. away is why the bus cannot be reached; then it is the copy, as far as that goes.
func (w *Watch) Current(live *Live, away error) *Mesh {
	own := w.Mirror != nil && w.hasCopy()
	switch {
	case own && (away != nil || live == nil):
		if away == nil {
			away = bus.ErrNotConnected
		}
		return &Mesh{w, command.Unreachable(away), w.Mirror.Past()}
	case own && w.Mirror.Whole():
		p := w.Mirror.Past()
		p.Live, p.Nodes = true, nil // frontends tell the proxies
		return &Mesh{w, live.Target, p}
	case live != nil:
		return live.Mesh
	}
	return nil
}

func (w *Watch) hasCopy() bool {
	_, err := w.Mirror.Latest(context.Background()) // it is in memory
	return err == nil
}

// Restore makes the newest version of the copy the head, for pages before the bus is there.
func (w *Watch) Restore(ctx context.Context) error {
	if w.Mirror == nil || !w.hasCopy() {
		return nil
	}
	head, err := w.Mirror.Latest(ctx)
	if err != nil {
		return err
	}
	n := &Now{Head: head, Err: w.Now().Err, Problems: inspect.DiagnosticsOf(new(bus.Reports), command.Diagnostics(head.Manifest.GetDiagnostics(), ""))}
	s := &command.Sources{Log: readOnly{w.Mirror.Past().Log}, Chain: w.Mirror.Past().Versions, Reports: new(bus.Reports), Head: head}
	if n.Sources, err = s.Views(ctx); err != nil {
		w.log.Warn("the sources in the console's copy cannot be read", "error", err)
	}
	w.now.Store(n)
	return nil
}

// readOnly is a log to which nothing is appended.
type readOnly struct{ events.Reader }

func (readOnly) Append(context.Context, []events.Event, events.Fence) (events.Ack, error) {
	return events.Ack{}, errors.ErrUnsupported
}

func (readOnly) AppendEach(context.Context, []events.Event) error { return errors.ErrUnsupported }

// The pauses between two questions for reports: without a reason, and after a new version.
const (
	askEvery = 5 * time.Second
	askSoon  = 500 * time.Millisecond
)

// Run follows the mesh until ctx is done. It listens to the summaries of frontends, and asks for
// whole reports at intervals, and soon after a new version, while somebody looks.
func (l *Live) Run(ctx context.Context) error {
	fleet, err := l.Target.Fleet()
	if err != nil {
		return err
	}
	stage := process.Stage{
		l.ask,
		func(ctx context.Context) error {
			err := fleet.Ticks(ctx, l.tick)
			if ctx.Err() == nil {
				l.log.Warn("the console hears of no new versions, and looks at intervals", "error", err)
				<-ctx.Done()
			}
			return ctx.Err()
		},
	}
	if l.Recorder != nil {
		stage = append(stage, func(ctx context.Context) error {
			err := fleet.FrontendReports(ctx, l.Recorder.Report)
			if ctx.Err() == nil {
				l.log.Warn("the console hears nothing of frontends, and records nothing", "error", err)
				<-ctx.Done()
			}
			return ctx.Err()
		})
	}
	if l.Mirror != nil {
		stage = append(stage, func(ctx context.Context) error { return l.Mirror.Run(ctx, l.events, l.chain) })
	}
	return process.RunStages(ctx, stage)
}

// tick makes Run ask soon if the leader tells of a newer version.
func (l *Live) tick(t *reportv1.Tick) {
	if n := l.Now(); n.Head.Version() != store.VersionOf(t.GetHead()) || n.Err != nil {
		l.wake()
	}
}

// ask asks for reports while somebody looks; once at the beginning in any case.
func (l *Live) ask(ctx context.Context) error {
	for first := true; ; first = false {
		if first || l.watched() || l.Now().Err != nil {
			l.look(ctx)
		}
		pause := time.NewTimer(askEvery)
		select {
		case <-ctx.Done():
			pause.Stop()
			return ctx.Err()
		case <-pause.C:
			continue
		case <-l.hurry:
			pause.Stop()
		}
		if time.Since(l.Now().At) > 2*askEvery {
			continue // somebody waits
		}
		soon := time.NewTimer(askSoon)
		select {
		case <-ctx.Done():
			soon.Stop()
			return ctx.Err()
		case <-soon.C:
		}
	}
}

// look asks once, and tells the viewers.
func (l *Live) look(ctx context.Context) {
	last := l.Now()
	now, err := l.reports(ctx, last.Head)
	if ctx.Err() != nil {
		return
	}
	if err != nil {
		l.log.Debug("the console shows older reports", "error", err)
		kept := *last
		kept.Err = err
		now = &kept
	}
	l.set(now)
	if err == nil && l.Mirror != nil {
		l.learn(ctx, now)
	}
}

func (l *Live) reports(ctx context.Context, head store.Stored) (*Now, error) {
	p := l.Current(l, nil).Past
	l.asked.Add(1)
	s := &command.Sources{Log: readOnly{p.Log}, Chain: p.Versions}
	problems, err := l.Target.Reports(ctx, bus.Diagnostics)
	if err != nil {
		return nil, err
	}
	if s.Reports, err = l.Target.Reports(ctx, bus.Proxies); err != nil {
		return nil, err
	}
	if newest, err := command.Head(ctx, s.Chain); err != nil {
		return nil, err
	} else if newest.Manifest == nil {
		return nil, errors.New("nothing has been published yet")
	} else if newest.Version != head.Version() || head.Manifest == nil {
		if head, err = s.Chain.Fetch(ctx, newest.Version); err != nil {
			return nil, err
		}
	}
	s.Head = head
	n := &Now{At: time.Now(), Reports: s.Reports, Head: head}
	if n.Status, err = inspect.StatusOf(ctx, s, s.Reports, problems, n.At); err != nil {
		return nil, err
	}
	if n.Sources, err = s.Views(ctx); err != nil {
		return nil, err
	}
	n.Problems = inspect.DiagnosticsOf(problems, command.Diagnostics(head.Manifest.GetDiagnostics(), ""))
	if l.Recorder != nil {
		for _, f := range s.Reports.Frontends {
			l.Recorder.Report(f)
		}
	}
	n.Proxies, err = inspect.Proxies(s.Reports, p.Versions.History(ctx), n.At)
	return n, err
}

// Nodes of proxies that the console keeps, and asks for at once.
const (
	keptNodes  = 1000
	nodesAtOne = 16
)

// learn asks frontends for the nodes of proxies that are new, for questions about them while no
// frontend answers.
func (l *Live) learn(ctx context.Context, now *Now) {
	known, err := l.Mirror.Nodes(ctx)
	if err != nil || l.nodes == nil {
		l.nodes = map[string]bool{}
		for _, r := range known {
			l.nodes[r.GetReport().GetId()] = true
		}
	}
	fleet, err := l.Target.Fleet()
	if err != nil {
		return
	}
	if len(known) >= keptNodes { // make room: those that are connected stay
		connected := map[string]bool{}
		for _, p := range now.Proxies {
			connected[p.ID] = true
		}
		known = slices.DeleteFunc(known, func(r *reportv1.ProxyReply) bool { return !connected[r.GetReport().GetId()] })
		maps.DeleteFunc(l.nodes, func(id string, _ bool) bool { return !connected[id] })
	}
	learned := 0
	for _, p := range now.Proxies {
		if learned == nodesAtOne || len(known) >= keptNodes {
			break
		}
		if l.nodes[p.ID] {
			continue
		}
		learned++
		replies, err := fleet.Proxy(ctx, p.ID, []string{p.Frontend})
		if err != nil || len(replies) == 0 {
			continue // next time
		}
		l.nodes[p.ID] = true
		r := replies[0]
		known = append(known, &reportv1.ProxyReply{
			Report: &reportv1.ProxyReport{Id: p.ID, Delta: r.GetReport().GetDelta(), Identity: r.GetReport().GetIdentity()}, Node: r.GetNode(),
		})
	}
	if learned == 0 {
		return
	}
	if err := l.Mirror.SetNodes(known); err != nil {
		l.log.Warn("nodes of proxies cannot be kept", "error", err)
	}
}
