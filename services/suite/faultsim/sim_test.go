package faultsim

import (
	"context"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"slices"
	"strings"
	"time"

	"meshlog.dev/events"
	"meshlog.dev/events/memlog"
	"meshlog.dev/proto/ident"
	"meshlog.dev/store"
	"meshlog.dev/store/memstore"
)

// plan names the schedule to run.
type plan struct {
	seed uint64
	// faults names the kinds of faults that the schedule injects.
	faults []string
	// without names the rules that the run leaves out.
	without []string
	trace   bool
}

// The sets of faults by name.
var faultSets = map[string][]string{
	"all":      allFaults,
	"norewind": withoutRewind,
	"expire":   append([]string{"expire"}, allFaults...),
	"rewind":   {"crash", "rewind", "op"},
	"retain":   {"crash", "delay", "op", "build", "bad", "nack", "twolead", "files", "disk", "full", "clock", "remove", "trim", "retain", "kinds"},
	"session":  {"crash", "delay", "window", "files", "small"},
	"rollout":  append([]string{"rollout"}, allFaults...),
	"forge":    append([]string{"forge"}, allFaults...),
	"sign":     append([]string{"sign"}, withoutRewind...),
	"signroll": append([]string{"sign", "rollout"}, withoutRewind...),
	"kinds":    {"crash", "delay", "window", "op", "partial", "clock", "small", "kinds"},
}

var withoutRewind = []string{"crash", "delay", "op", "build", "bad", "nack", "partial", "twolead", "files", "window", "net", "small", "disk", "trim", "full", "clock", "remove", "kinds"}

var allFaults = []string{"crash", "delay", "rewind", "op", "build", "bad", "nack", "partial", "twolead", "files", "window", "net", "small", "disk", "trim", "full", "clock", "remove", "kinds"}

// tick is the length of a unit of time. A session sends a heartbeat every 25
// units.
const tick = 400 * time.Millisecond

// epoch zero of the simulation's clock: early, so that epochs named after it
// come close to those that count up.
var startTime = time.Unix(1000, 0)

var noTime time.Time

// sim is the whole system, its faults, and what must hold of it.
type sim struct {
	rnd     *rand.Rand
	has     func(fault string) bool
	without map[string]bool
	trace   *strings.Builder

	now    int           // units of time
	skew   time.Duration // of the log server's clock
	marks  int           // records so far, so that no two have one time
	ids    int
	values int
	faults bool   // the scheduler injects faults now
	net    []late // requests in flight
	most   int    // largest batch that the log accepts, in events

	log       *memlog.Log
	gone      []events.Record // records that retention removed from the log
	forger    forger
	signer    signer
	chain     *memstore.Chain
	sources   []*source
	watchers  []*watcherProc
	builders  []*builderProc
	frontends []*frontendProc
	procs     []*proc

	checks
}

func newSim(p plan) *sim {
	s := &sim{
		rnd: rand.New(rand.NewPCG(p.seed, 0)), faults: true,
		forger:  forger{rand.New(rand.NewPCG(p.seed, 2)), map[ident.Hash]bool{}},
		signer:  newSigner(p.seed),
		without: map[string]bool{}, chain: memstore.NewChain(), checks: newChecks(),
	}
	has := map[string]bool{}
	for _, f := range p.faults {
		has[f] = true
	}
	s.has = func(fault string) bool { return has[fault] }
	for _, r := range p.without {
		if portRules[r] == "" && !slices.Contains(foldRules, r) {
			panic(fmt.Sprintf("sim: no rule %q can be left out", r))
		}
		s.without[r] = true
	}
	if p.trace {
		s.trace = &strings.Builder{}
	}
	s.log = memlog.New(func() time.Time {
		s.marks++
		return s.time().Add(s.skew + time.Duration(s.marks))
	})
	for n := range sources {
		s.sources = append(s.sources, newSource(s, n))
	}
	s.watchers = []*watcherProc{
		newWatcher(s, "w0a", s.sources[0]), newWatcher(s, "w0b", s.sources[0]), newWatcher(s, "w1", s.sources[1]),
	}
	s.builders = []*builderProc{newBuilder(s, "b0"), newBuilder(s, "b1")}
	s.frontends = []*frontendProc{newFrontend(s, "f0", "p0", "p1"), newFrontend(s, "f1", "p2")}
	for _, w := range s.watchers {
		s.procs = append(s.procs, &w.proc)
	}
	for _, b := range s.builders {
		s.procs = append(s.procs, &b.proc, &b.writer)
	}
	for _, f := range s.frontends {
		s.procs = append(s.procs, &f.proc, &f.persister)
	}
	if s.has("op") {
		s.procs = append(s.procs, &newOperator(s).proc)
	}
	if s.has("kinds") {
		s.procs = append(s.procs, &newKindRemover(s).proc)
	}
	s.builders[0].lead = true
	if s.most = events.MaxBatch; s.has("small") && s.rnd.IntN(3) == 0 {
		s.most = 2
	}
	if _, err := s.log.Append(context.Background(), policy(s.without, s.has("rollout"), s.has("sign")), events.Fence{}); err != nil {
		panic(fmt.Sprintf("sim: the policy: %v", err))
	}
	return s
}

// close ends all processes.
func (s *sim) close() {
	for _, p := range s.procs {
		p.exit()
	}
}

func (s *sim) time() time.Time { return startTime.Add(time.Duration(s.now) * tick) }

func (s *sim) newValue(flag int) value { s.values++; return value(s.values*flags + flag) }

func (p *proc) newID() string { p.s.ids++; return fmt.Sprintf("%s.%d", p.name, p.s.ids) }

// heard decides whether a message without an acknowledgement arrives.
func (s *sim) heard() bool { return !s.faults || s.rnd.IntN(10) > 0 }

func (s *sim) sourceOf(k ident.Key) *source {
	for _, src := range s.sources {
		if k.Shard() == shardOf(src.n) {
			return src
		}
	}
	return nil
}

func (s *sim) note(format string, args ...any) {
	if s.trace != nil {
		fmt.Fprintf(s.trace, "%4d  ", s.now)
		fmt.Fprintf(s.trace, format+"\n", args...)
	}
}

// logger writes the log lines of a process to the trace.
func (s *sim) logger(name string) *slog.Logger {
	if s.trace == nil {
		return slog.New(slog.DiscardHandler)
	}
	return slog.New(&tracer{s: s, name: name})
}

type tracer struct {
	s    *sim
	name string
}

func (t *tracer) Enabled(context.Context, slog.Level) bool { return true }
func (t *tracer) WithGroup(string) slog.Handler            { return t }

func (t *tracer) WithAttrs([]slog.Attr) slog.Handler { return t } // the tracer's name already says which process logs

func (t *tracer) Handle(_ context.Context, r slog.Record) error {
	text := ""
	r.Attrs(func(a slog.Attr) bool { text += " " + a.String(); return true })
	t.s.note("  %s: %s%s", t.name, r.Message, text)
	return nil
}

// judge returns the judge of a builder's fold. The judge also names the rules
// that the fold leaves out.
func (s *sim) judge(build string) judge {
	j := judge{build: build}
	for _, r := range foldRules {
		if s.without[r] {
			j.without = append(j.without, r)
		}
	}
	return j
}

// foldRules names the rules that a fold can leave out. Without the build tag
// "mutants" there are none.
var foldRules []string

// portRules names the rules that a port enforces, and for each what happens when
// the port does not.
var portRules = map[string]string{
	"begin_fence":   "the log accepts every Begin",
	"alive_fence":   "the log accepts every Alive",
	"epoch_fence":   "the log accepts every Segment",
	"hold_fence":    "the log accepts every hold",
	"dedupe":        "the log forgets every message id at once",
	"msgid_session": "message ids depend on the content only",
	"vfence":        "the chain accepts every version",
	"cursor":        "the log confirms every cursor, also one of another history",
	"guard":         "the policy switches the guard off",
	"refuse":        "forged records are appended where they belong, as if no reader refused them",
	"sign":          "the policy names no operators",
	"fe_report":     "reports that a frontend is ahead of the chain are lost",
}

// mutateAppend changes an append as the rules that are left out demand.
func (s *sim) mutateAppend(batch []events.Event, fence events.Fence) ([]events.Event, events.Fence) {
	rule := ""
	switch b := batch[0].Body.(type) {
	case *events.Begin:
		rule = "begin_fence"
	case *events.Alive:
		rule = "alive_fence"
	case *events.Segment:
		rule = "epoch_fence"
	case *events.Overlay:
		rule = "hold_fence"
	case *events.Object:
		if s.without["msgid_session"] {
			e := batch[0]
			e.ID = fmt.Sprintf("%s=%s", b.Key, b.Value.Bytes)
			batch = append([]events.Event{e}, batch[1:]...)
		}
		return batch, fence
	}
	if s.without[rule] {
		fence = events.Fence{}
	}
	return batch, fence
}

// rewind cuts the log to its first k records, as a restored backup does. With
// both it also cuts the chain to the versions of these records.
func (s *sim) rewind(k uint64, both bool) {
	s.net = nil
	s.rewinds++
	s.log.Rewind(k)
	if !both {
		s.note("LOG REWOUND to %d", k)
		s.chain.Reconnect()
		return
	}
	vk := 0
	for _, v := range s.versions {
		if v.v.Seq <= k {
			vk++
		}
	}
	s.note("LOG REWOUND to %d, VERSIONS from %d to %d", k, len(s.versions), vk)
	s.chain.Rewind(uint64(vk))
	s.rewound(k, vk)
}

func (s *sim) last() uint64 {
	b, err := s.log.Bounds(context.Background())
	if err != nil {
		panic(err)
	}
	return b.Last
}

// report receives a frontend's report that the chain lacks a version that the
// frontend serves.
func (s *sim) report(from string, m *store.MismatchError) {
	if s.without["fe_report"] {
		return
	}
	s.note("%s reports that the chain lacks %s", from, m.Have)
	for _, b := range s.builders {
		if s.heard() {
			b.wants = append(b.wants, m)
		}
	}
}
