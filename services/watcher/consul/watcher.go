package consul

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"net/url"
	"slices"
	"sync"
	"time"

	"meshlog.dev/services/mesh/permit"
	"meshlog.dev/services/mesh/problem"
	"meshlog.dev/services/watcher"
	"meshlog.dev/services/watcher/registry"
)

// Watcher watches a datacenter. One goroutine at a time calls Run.
type Watcher struct {
	settings Settings
	status   *registry.Status

	// What makes it distrust a listing, which outlives a run.
	doubt registry.Doubt
	had   map[string]int // how many instances each service had when it was published last

	// Consul refused connections: fewer services are polled for a while.
	halved  int
	limited time.Time
}

// New returns a watcher that reports how it reads to status.
func New(s Settings, status *registry.Status) *Watcher {
	s.Wait = cmp.Or(s.Wait, DefaultWait)
	return &Watcher{settings: s, status: status, had: map[string]int{}}
}

// errAgain ends a run so that the next one lists.
var errAgain = errors.New("list again")

// Run implements watcher.Watcher.
func (w *Watcher) Run(ctx context.Context, sink watcher.Sink) error {
	err := w.run(ctx, sink)
	switch {
	case ctx.Err() != nil:
		return ctx.Err()
	case errors.Is(err, errAgain):
		return nil
	}
	w.doubt.Suspect(err.Error())
	return err
}

func (w *Watcher) run(ctx context.Context, sink watcher.Sink) error {
	clients, err := newClients(&w.settings)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithCancel(ctx)
	r := &run{
		Watcher: w, sink: sink, services: map[string]*service{}, tasks: make(chan func() error), said: map[string][]problem.Diagnostic{},
		failing: map[string]*service{}, began: time.Now(),
	}
	for _, c := range clients {
		r.agents = append(r.agents, &agent{client: c, ask: make(chan struct{}, 1)})
	}
	// Each goroutine ends with ctx; tasks that nothing takes any more are dropped.
	defer func() {
		cancel()
		r.workers.Wait()
		for _, c := range clients {
			c.close()
		}
	}()
	if err := r.list(ctx); err != nil {
		return err
	}
	return r.follow(ctx)
}

// run is one run of a watcher. Its methods are called by the goroutine of Run, unless
// they say otherwise; workers send it tasks.
type run struct {
	*Watcher
	sink    watcher.Sink
	workers sync.WaitGroup
	tasks   chan func() error
	began   time.Time

	agents    []*agent
	index     uint64 // the highest that a read of the names had
	defaults  map[string]string
	unknown   string // why the defaults may lack some; empty: they are known
	filtered  bool   // the last read of the names may lack some
	services  map[string]*service
	catalog   registry.Catalog
	following bool
	partial   bool // the listing was

	queue   []*service // reads that are due
	reading int
	failing map[string]*service // whose last reads failed, until they are due again
	// ring are the services that are not polled, of which next is read next; the last one
	// was queued at swept. sweeping: not all of them are hidden.
	ring     []*service
	next     int
	swept    time.Time
	sweeping bool
	// The last plan was made at plans for planned services; move: it is out of date.
	// changed: a service that is not polled has changed.
	plans         time.Time
	shared        shared
	planned       int
	move, changed bool
	pending       []watcher.Object
	batches       []*batch
	unhealth      map[check]string // the status of each check that does not pass; nil: not known

	// suspected is when a poll or a probe failed last; zero: since then a probe a minute
	// later was good. doubted: the listing lacks much; a second one begins at recheck, and
	// rechecking is when it began.
	suspected           time.Time
	doubted             bool
	recheck, rechecking time.Time
	naming              bool // the names of the second listing are being read
	reported            time.Time

	said map[string][]problem.Diagnostic
}

// agent is an address.
type agent struct {
	*client
	good time.Time     // of the last good probe; zero: none
	err  error         // of the last probe; nil: it was good
	ask  chan struct{} // asks for a probe
}

// service is the state of one service in a run.
type service struct {
	name  string
	tags  []string
	index uint64    // of the last read or body that was taken
	at    time.Time // when that was; zero: none was
	// ids are the identities of its instances, sorted. hidden: all are proxies or gateways.
	ids    []string
	n      int // instances at different addresses
	hidden bool
	listed []watcher.Object // until the listing is reported
	sum    [16]byte         // of its objects

	queued, reading, again bool
	began                  time.Time // of the read under way
	failures               int
	due                    time.Time // of the next read after a failure
	unread                 error     // why it keeps its objects; nil: it was read
	seen                   time.Time // when its change was seen
	batch                  *batch
	poll                   *poll
}

// shared is the polls that are about all services.
type shared struct {
	cancel context.CancelFunc
	agent  *agent
	states bool // checks are polled too
}

// batch is the services of one answer: they changed together, and are reported together.
type batch struct {
	members []*service
	left    int // that are not read yet
	overdue time.Time
	set     []watcher.Object
}

// batchWithin is how long the slowest read of a batch holds back the others.
const batchWithin = time.Second

// send hands a task to the goroutine of Run, from a worker.
func (r *run) send(ctx context.Context, task func() error) {
	select {
	case r.tasks <- task:
	case <-ctx.Done():
	}
}

// pick returns the agent that answers for a service: by the hash of its name, among those
// whose last probe was good.
func (r *run) pick(name string) *agent {
	var best *agent
	var most uint64
	for _, a := range r.agents {
		if a.err != nil {
			continue
		}
		if h := rendezvous(a.base.Host, name); best == nil || h > most {
			best, most = a, h
		}
	}
	if best == nil {
		return r.agents[0]
	}
	return best
}

// rendezvous is FNV-1a with a final mix.
func rendezvous(address, name string) uint64 {
	h := uint64(14695981039346656037)
	for _, text := range [...]string{address, "\x00", name} {
		for i := range len(text) {
			h = (h ^ uint64(text[i])) * 1099511628211
		}
	}
	h ^= h >> 33
	h *= 0xff51afd7ed558ccd
	return h ^ h>>33
}

// wanted reports whether the settings let a service be watched (CON-17, CON-20).
func (s *Settings) wanted(name string, tags []string) bool {
	if name == "consul" || slices.ContainsFunc(tags, func(t string) bool { return slices.Contains(s.ExcludeTags, t) }) {
		return false
	}
	matches := func(glob string) bool { return permit.Match(glob, name) }
	return (len(s.Services) == 0 || slices.ContainsFunc(s.Services, matches)) &&
		(len(s.Tags) == 0 || slices.ContainsFunc(tags, func(t string) bool { return slices.Contains(s.Tags, t) }))
}

// readNames reads the names and tags of all services from the leader.
func (r *run) readNames(ctx context.Context, c *client, consistent bool) (map[string][]string, answer, error) {
	var names map[string][]string
	q := query{path: "/v1/catalog/services", within: probeWithin, params: url.Values{}}
	if consistent {
		q.params["consistent"] = []string{""}
	}
	a, err := c.get(ctx, q, &names)
	if err == nil && a.stale {
		err = fmt.Errorf("%s%s: the answer is old, or there is no leader", c.base, q.path)
	}
	r.status.Count(err)
	return names, a, err
}

// readDefaults reads the protocols of services (CON-1). Without the right to read all, it
// returns those that are known and why there may be more.
func (r *run) readDefaults(ctx context.Context, c *client) (protocols map[string]string, a answer, unknown string, err error) {
	var all []struct{ Name, Protocol string }
	a, err = c.get(ctx, query{path: "/v1/config/service-defaults", within: readWithin}, &all)
	switch {
	case errors.Is(err, errRefused):
		return nil, a, err.Error(), nil
	case err != nil:
		return nil, a, "", err
	case a.filtered:
		unknown = "the token may not read the config entries service-defaults of all services"
	}
	protocols = map[string]string{}
	for _, d := range all {
		if d.Protocol != "" {
			protocols[d.Name] = d.Protocol
		}
	}
	return protocols, a, unknown, nil
}

// problems replaces the problems of an origin, if they differ.
func (r *run) problems(origin string, ds []problem.Diagnostic) {
	if slices.Equal(r.said[origin], ds) {
		return
	}
	if len(ds) == 0 {
		delete(r.said, origin)
	} else {
		r.said[origin] = ds
	}
	r.sink.Problems(origin, ds)
}

// report reports how the registry is read.
func (r *run) report(now time.Time) {
	r.reported = now
	s := registry.Reading{Counts: r.catalog.Counts()}
	if r.doubted {
		s.Counts, s.Doubted = r.counts(), r.doubt.Reason()
	}
	whole := true
	for _, v := range r.services {
		switch {
		case v.hidden:
			continue
		case v.poll != nil:
			s.Polled++
		default:
			s.Swept++
		}
		whole = whole && !v.at.IsZero()
		if s.Oldest.IsZero() || v.at.Before(s.Oldest) {
			s.Oldest = v.at
		}
	}
	if !whole {
		s.Oldest = time.Time{}
	}
	if s.Swept > 0 && s.Polled > 0 { // none is polled while Consul is away
		s.Remedy = r.remedy()
	}
	r.status.Set(s)
	r.general()
}

// remedy says why not all services are polled, and what to do.
func (r *run) remedy() string {
	switch {
	case r.halved > 0:
		return "Consul refuses so many connections or requests (429): raise limits.http_max_conns_per_client of the agents, give them https addresses, or give more addresses with --consul"
	case slices.ContainsFunc(r.agents, func(a *agent) bool { return a.base.Scheme == "http" }):
		return "plain HTTP needs a connection for each poll: give https addresses, whose polls share connections, or more addresses with --consul"
	}
	return "more services than --consul-max-polls: give more addresses with --consul, or raise it"
}

// general reports the problems that no single service has.
func (r *run) general() {
	var ds []problem.Diagnostic
	add := func(severity problem.Severity, code, reason, advice, effect string) {
		ds = append(ds, problem.Diagnostic{Severity: severity, Code: code, Reason: reason, Advice: advice, Effect: effect})
	}
	if r.filtered {
		add(problem.Error, "acl", "Consul leaves out services or nodes that the token may not read",
			`give the watcher a token, in the file of --consul-token-file, that may read all: service_prefix "" { policy = "read" } node_prefix "" { policy = "read" }`,
			"nothing is removed")
	}
	if r.doubted {
		add(problem.Warning, "doubt", "the registry lacks many services or instances that it had, after this: "+r.doubt.Reason(),
			"nothing is to be done if they were removed on purpose: a second listing that agrees is believed", "nothing is removed until then")
	}
	if r.unknown != "" {
		add(problem.Info, "config", "not all protocols of services are known: "+r.unknown,
			"give the token the right to read the services, or set --consul-protocol", "proxies find out the protocol of services whose instances name none")
	}
	r.problems("consul", ds)
}

// unread returns the services that could not be read, by name.
func (r *run) unread() []string {
	var names []string
	for name, s := range r.services {
		if s.unread != nil {
			names = append(names, name)
		}
	}
	slices.Sort(names)
	return names
}

// protocols returns the services whose protocol differs between two maps.
func changedProtocols(a, b map[string]string) []string {
	changed := map[string]bool{}
	for name, p := range a {
		if b[name] != p {
			changed[name] = true
		}
	}
	for name, p := range b {
		if a[name] != p {
			changed[name] = true
		}
	}
	return slices.Sorted(maps.Keys(changed))
}
