package watcher

import (
	"cmp"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"log/slog"
	"reflect"
	"slices"
	"strings"
	"time"

	"meshlog.dev/events"
	"meshlog.dev/proto/ident"
	"meshlog.dev/services/mesh/problem"
)

const (
	// silence is how long a holder appends nothing before a twin takes over.
	silence = 30 * time.Second
	// warmUp is the part of it after which the twin begins to read its source.
	warmUp = 20 * time.Second
	// standbyPoll is how often a standby reads the log.
	standbyPoll = 2 * time.Second
	// heartbeat is the time between two Alives.
	heartbeat = 10 * time.Second
	// The pauses before the next run of a source that failed, and before the
	// retry of an append, grow between these.
	minSourcePause, maxSourcePause = 250 * time.Millisecond, 30 * time.Second
	minRetryPause, maxRetryPause   = 50 * time.Millisecond, 5 * time.Second
	// idle is how long to wait if nothing is due.
	idle = time.Hour
)

// Publisher publishes the objects of a shard: it stands by, begins sessions,
// lists, and appends changes. It is sequential code whose only IO is its Log, its
// Leader and its Inbox.
type Publisher struct {
	cfg Config
	in  Inbox
	log *slog.Logger

	// The names of this publisher's sessions begin with id.
	id       string
	sessions int
	// lost: another holder appended where this publisher was about to.
	lost bool

	session session
	source  source
	warm    warm
	stuck   error                     // why an append is being retried; nil: no retry
	permits func(events.Subject) bool // nil: everything is permitted, or nothing is known
	// When the log had all of the last listing, and of the last change.
	listed, changedAt time.Time

	state State
}

// session is the state of one session.
type session struct {
	name    string
	ctl     uint64 // the last control record of the shard, which this session appended
	pseq    uint64 // the last one used
	alives  int
	beat    time.Time // when the next Alive is due
	partial bool
	// over is why the session must end; empty: it goes on.
	over string

	sent    shadow
	sending int // changes that are being appended
	waiting backlog
	// refused are objects that no log accepts, with the reason.
	refused map[ident.Key]string
	// denied are objects that the bus does not let this publisher append. withheld:
	// the listing lacked some of them, so it was partial.
	denied   map[ident.Key]struct{}
	withheld bool
}

// source is the state of the watcher's runs.
type source struct {
	started  time.Time // of the current or last run
	restart  time.Time // when to run it again; zero: it runs
	pause    time.Duration
	err      error     // why the last run failed; nil: it did not
	down     time.Time // when err was first set
	problems map[string][]problem.Diagnostic
}

// warm holds what a twin reads from its source while the other holder is silent,
// so that it can list at once when it takes over.
type warm struct {
	since  uint64  // the other holder's last record before; 0: the twin is not reading
	inputs []Input // in the order in which they came
}

// NewPublisher returns a publisher that takes its inputs from in.
func NewPublisher(cfg Config, in Inbox) *Publisher {
	if cfg.NewID == nil {
		cfg.NewID = rand.Text
	}
	if cfg.Logger == nil {
		cfg.Logger = slog.Default()
	}
	if cfg.Metrics == nil {
		cfg.Metrics = NewMetrics(cfg.Shard)
	}
	return &Publisher{
		cfg: cfg, in: in, id: cfg.NewID(),
		log: cfg.Logger.With("shard", cfg.Shard.String(), "holder", cfg.Holder),
	}
}

// Run publishes until ctx is done or the log is closed, and returns that error.
func (p *Publisher) Run(ctx context.Context) error {
	for {
		head, err := p.standBy(ctx)
		if err != nil {
			return err
		}
		err = p.runSession(ctx, head)
		switch {
		case errors.Is(err, events.ErrConflict):
			p.in.Rest()
			p.log.Warn("another holder publishes for the shard", "session", p.session.name)
			p.lost, p.session, p.source = true, session{}, source{}
		case errors.Is(err, errNarrowed):
			p.log.Warn("session ends", "session", p.session.name, "reason", err)
		case errors.Is(err, errAbandoned):
			p.log.Error("session given up", "session", p.session.name, "error", err)
			if err := p.sleep(ctx, p.in.Now().Add(maxRetryPause)); err != nil {
				return err
			}
		case err != nil:
			return err
		}
	}
}

// standBy waits until this publisher may begin a session, and returns the last
// control record of the shard, 0 for none. The publisher is warm then if it takes
// over from a silent holder.
func (p *Publisher) standBy(ctx context.Context) (uint64, error) {
	var seen uint64     // the newest record of the other holder
	var spoke time.Time // its time, by this clock
	p.cool()
	for {
		head, err := p.cfg.Log.Last(ctx, events.ControlSubject(p.cfg.Shard))
		if errors.Is(err, events.ErrNotFound) {
			p.cool()
			return 0, nil
		}
		if err == nil {
			if err := p.sameSource(head); err != nil {
				return 0, err
			}
		}
		if err == nil && p.mayBegin(head) {
			p.cool()
			return head.Seq, nil
		}
		var newest uint64
		var ago time.Duration
		if err == nil {
			newest, ago, err = p.lastRecord(ctx, head)
		}
		now := p.in.Now()
		switch {
		case ctx.Err() != nil:
			return 0, ctx.Err()
		case errors.Is(err, events.ErrClosed):
			return 0, err
		case err != nil:
			p.log.Warn("cannot read the log", "error", err)
			seen = 0 // the other holder may have appended meanwhile
		case newest > seen:
			seen, spoke = newest, now.Add(-ago)
		}
		if p.warm.since != 0 && p.warm.since != seen {
			p.cool() // the twin read its source before the other holder's record
		}
		switch quiet := now.Sub(spoke); {
		case seen == 0:
		case quiet >= silence:
			return head.Seq, nil
		case quiet >= warmUp && p.warm.since == 0:
			p.warm.since = seen
			p.watch(ctx)
		}
		p.reportState(PhaseStandby)
		next := now.Add(standbyPoll)
		if due := spoke.Add(silence); seen != 0 && due.Before(next) {
			next = due
		}
		if err := p.sleep(ctx, next); err != nil {
			return 0, err
		}
	}
}

// cool ends the run of a warm twin, and drops what it has read.
func (p *Publisher) cool() {
	if p.warm.since != 0 {
		p.in.Rest()
	}
	p.warm = warm{}
}

// ErrIdentity says that the shard is that of another source.
var ErrIdentity = errors.New("another source has this name")

// sameSource returns an ErrIdentity if the session of head reads another source. Two
// datacenters under one name would remove each other's services at each takeover.
func (p *Publisher) sameSource(head events.Record) error {
	identity := ""
	switch b := head.Event.Body.(type) {
	case *events.Begin:
		identity = b.Identity
	case *events.Alive:
		identity = b.Identity
	}
	if head.Err != nil || identity == "" || p.cfg.Identity == "" || identity == p.cfg.Identity {
		return nil
	}
	return fmt.Errorf("%w: source %s is %s, this is %s: give it another --instance, or remove the other one with `meshlog sources remove %s`",
		ErrIdentity, p.cfg.Shard, identity, p.cfg.Identity, p.cfg.Shard)
}

// mayBegin reports whether no other holder publishes: head is of a session of
// this publisher, of its holder before a restart, or it ends its session.
func (p *Publisher) mayBegin(head events.Record) bool {
	if head.Err != nil {
		return false
	}
	holder := head.Event.Actor
	switch b := head.Event.Body.(type) {
	case *events.Begin:
		holder = b.Holder
	case *events.Alive:
		if b.Ends {
			return true
		}
	}
	return strings.HasPrefix(sessionOf(head), p.id+"-") || !p.lost && holder == p.cfg.Holder
}

// lastRecord returns the newest known record of head's session, and how long before
// the newest record of the log it was appended, by the server's clock.
func (p *Publisher) lastRecord(ctx context.Context, head events.Record) (uint64, time.Duration, error) {
	b, err := p.cfg.Log.Bounds(ctx)
	if err != nil {
		return 0, 0, err
	}
	if b.Last <= head.Seq {
		return head.Seq, 0, nil
	}
	newest, err := p.cfg.Log.Get(ctx, b.Last)
	switch {
	case err != nil:
		return 0, 0, err
	case sessionOf(head) != "" && sessionOf(newest) == sessionOf(head):
		return newest.Seq, 0, nil // it is listing, which appends no control records
	}
	return head.Seq, max(0, newest.Time.Sub(head.Time)), nil // that clock may have stepped back
}

func sessionOf(r events.Record) string {
	switch b := r.Event.Body.(type) {
	case *events.Object:
		return b.Session
	case *events.Begin:
		return b.Session
	case *events.Alive:
		return b.Session
	}
	return ""
}

// sleep waits until a time, and keeps the inputs that come meanwhile.
func (p *Publisher) sleep(ctx context.Context, until time.Time) error {
	for p.in.Now().Before(until) {
		in, err := p.in.Wait(ctx, until)
		if err != nil {
			return err
		}
		if p.warm.since == 0 && len(p.warm.inputs) == 0 {
			p.handle(in)
			continue
		}
		if _, asked := in.(Requested); in != nil && !asked { // the twin lists anyway
			p.warm.inputs = append(p.warm.inputs, in)
		}
	}
	return nil
}

// next returns the next input.
func (p *Publisher) next(ctx context.Context, until time.Time) (Input, error) {
	if len(p.warm.inputs) == 0 {
		return p.in.Wait(ctx, until)
	}
	in := p.warm.inputs[0]
	p.warm.inputs = p.warm.inputs[1:]
	return in, ctx.Err()
}

// reportState reports the state if it changed.
func (p *Publisher) reportState(phase Phase) {
	s := State{
		Phase: phase, Session: p.session.name, Keys: len(p.session.sent.hashes),
		Pending: p.session.waiting.len() + p.session.sending, Partial: p.session.partial, Diagnostics: p.diagnostics(),
		Listed: p.listed, Changed: p.changedAt,
	}
	if phase == PhaseDown {
		s.Down = p.source.down
	}
	if reflect.DeepEqual(s, p.state) {
		return
	}
	if s.Phase != p.state.Phase {
		p.log.Info("watcher is "+string(s.Phase), "session", s.Session, "keys", s.Keys, "partial", s.Partial)
	}
	p.state = s
	p.cfg.Metrics.set(s)
	if p.cfg.OnState != nil {
		p.cfg.OnState(s)
	}
}

func (p *Publisher) diagnostics() []problem.Diagnostic {
	var ds []problem.Diagnostic
	for _, more := range p.source.problems {
		ds = append(ds, more...)
	}
	for k, why := range p.session.refused {
		ds = append(ds, problem.Diagnostic{
			Severity: problem.Error, Code: "refused", Key: k, Reason: why,
			Advice: "shorten the name or the namespace", Effect: "the object is left out",
		})
	}
	ds = append(ds, p.denials()...)
	if p.source.err != nil {
		ds = append(ds, problem.Diagnostic{
			Severity: problem.Error, Code: "source-down", Reason: p.source.err.Error(),
			Advice: "make the source readable; the watcher tries again by itself",
			Effect: "all objects of " + p.cfg.Shard.String() + " do not change until then",
		})
	}
	full := (*ShareError)(nil)
	if errors.As(p.stuck, &full) {
		ds = append(ds, problem.Diagnostic{
			Severity: problem.Error, Code: "log-share", Reason: full.Error(),
			Advice: "see with `meshlog log` which objects change so often; to make room, raise the log (`meshlog streams --log-mib N --apply`) or the watcher's --log-share",
			Effect: "all objects of " + p.cfg.Shard.String() + " stay as they are until there is room; the watcher keeps the changes and retries",
		})
	} else if p.stuck != nil {
		ds = append(ds, problem.Diagnostic{
			Severity: problem.Error, Code: "log", Reason: p.stuck.Error(),
			Advice: "repair the log; the watcher keeps the changes and retries",
			Effect: "changes wait",
		})
	}
	slices.SortFunc(ds, problem.Diagnostic.Compare)
	return ds
}

// compareKeys orders the keys of one shard.
func compareKeys(a, b ident.Key) int {
	return cmp.Or(cmp.Compare(a.Kind, b.Kind), cmp.Compare(a.Namespace, b.Namespace), cmp.Compare(a.Name, b.Name))
}
