// Package nacos watches the services of a Nacos registry (version 2 or 3) over its gRPC
// API, with pushes, and reports them as objects.
//
//	server ──push──> service ──believed?──> registry.Convert ──> change set
//	       <─list, query, probe─
//
// The goroutine of Run owns what is known of services. It has up to 16 requests running at
// a time, each in a goroutine of its own. README.md says which answers are believed.
package nacos

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"hash/maphash"
	"log/slog"
	"slices"
	"strings"
	"time"

	"meshlog.dev/proto/ident"
	"meshlog.dev/services/watcher"
	"meshlog.dev/services/watcher/registry"
)

// Source is the name of this source in shards.
const Source = "nacos"

// Defaults of a Config.
const (
	DefaultNamespace = "public"
	DefaultGroup     = "DEFAULT_GROUP"
	DefaultSuffix    = "nacos"
	DefaultList      = 5 * time.Second
	DefaultProtocol  = "http"
)

// Config configures a Watcher.
type Config struct {
	// Addresses of the servers of one registry: HOST, HOST:PORT or https://HOST:PORT of the
	// HTTP API. The watcher uses one at a time, and the next one after an error.
	Addresses []string
	// Namespace is the ID of the Nacos namespace; empty: public.
	Namespace string
	// Groups are those to read; AllGroups alone: all; nil: DEFAULT_GROUP.
	Groups []string
	// ObjectNamespace is the namespace of the objects; empty: the ID of the Nacos namespace
	// as a label of DNS.
	ObjectNamespace string
	// Suffix is the end of each host; empty: nacos.
	Suffix string
	// List is the time between two lists of the services; 0: 5 s.
	List time.Duration
	// KeepEmpty: a service that had instances never becomes empty.
	KeepEmpty bool
	// TLS: gRPC is over TLS.
	TLS         bool
	Credentials Credentials
	// Registry decides ports and protocols.
	Registry registry.Settings

	Status *registry.Status // nil: a new one
	Logger *slog.Logger     // nil: slog.Default
}

// Verify returns an error if a part of the configuration makes no sense or a file cannot
// be used.
func (c Config) Verify() error {
	_, err := c.resolve()
	return errors.Join(err, c.Credentials.Verify())
}

// resolved is a Config with its defaults.
type resolved struct {
	Config
	servers []server
}

func (c Config) resolve() (*resolved, error) {
	c.Namespace = cmp.Or(c.Namespace, DefaultNamespace)
	c.Suffix = cmp.Or(c.Suffix, DefaultSuffix)
	c.List = cmp.Or(c.List, DefaultList)
	c.Registry.Protocol = cmp.Or(c.Registry.Protocol, DefaultProtocol)
	if len(c.Groups) == 0 {
		c.Groups = []string{DefaultGroup}
	}
	if c.Logger == nil {
		c.Logger = slog.Default()
	}
	if c.Status == nil {
		c.Status = registry.NewStatus(ident.Shard{Source: Source, Instance: "default"})
	}
	all := &resolved{Config: c}
	var errs []error
	for _, a := range c.Addresses {
		s, err := parseServer(a, c.TLS)
		errs = append(errs, err)
		all.servers = append(all.servers, s)
	}
	if len(c.Addresses) == 0 {
		errs = append(errs, errors.New("no address of a server"))
	}
	if len(c.Groups) > 1 && slices.Contains(c.Groups, AllGroups) {
		errs = append(errs, fmt.Errorf("%s is all groups: name no other", AllGroups))
	}
	if (c.Credentials.UsernameFile == "") != (c.Credentials.PasswordFile == "") {
		errs = append(errs, errors.New("an account needs a file with its name and one with its password"))
	}
	if (c.Credentials.CertFile == "") != (c.Credentials.KeyFile == "") {
		errs = append(errs, errors.New("a certificate needs its key"))
	}
	if all.ObjectNamespace == "" {
		name, err := registry.Host(strings.ReplaceAll(strings.ToLower(c.Namespace), ".", "-"))
		if err != nil {
			errs = append(errs, fmt.Errorf("no namespace of objects can be made of the Nacos namespace %w", err))
		}
		all.ObjectNamespace = name
	}
	return all, errors.Join(errs...)
}

// Identity names what the watcher reads, for its session (REG-12).
func (c Config) Identity() string {
	groups := slices.Clone(c.Groups)
	if len(groups) == 0 {
		groups = []string{DefaultGroup}
	}
	slices.Sort(groups)
	return fmt.Sprintf("namespace %s, groups %s", cmp.Or(c.Namespace, DefaultNamespace), strings.Join(groups, ","))
}

// limits are the times of a run. Tests shorten some.
type limits struct {
	down     time.Duration // without an answer: the source is down (REG-10)
	deadline time.Duration // of a request
	quiet    time.Duration // without an answer: probe (NAC-5)
	sweep    time.Duration // in which each service is queried once (NAC-9)
	hold     time.Duration // how long a loss in doubt is held (NAC-16, NAC-17)
	confirm  time.Duration // between an empty service and the query that agrees (NAC-16)
	tick     time.Duration
	redial   time.Duration
}

func defaultLimits() limits {
	return limits{
		down: 15 * time.Second, deadline: 5 * time.Second, quiet: 5 * time.Second, sweep: time.Minute,
		hold: time.Minute, confirm: 5 * time.Second, tick: time.Second, redial: 250 * time.Millisecond,
	}
}

// Watcher watches the services of a registry.
type Watcher struct {
	cfg    *resolved
	limits limits
	seed   maphash.Seed

	// Owned by the goroutine of Run. Runs do not overlap.
	next int // index of the server to use
	kept *memory
}

// memory is what a run leaves to the next one. It is used only if the source was down
// between the two: else another watcher may have published since.
type memory struct {
	services map[serviceID]*service
	catalog  *registry.Catalog
	doubt    *registry.Doubt
	until    time.Time
}

// memoryFor bounds the time between two runs of a source that is down: the publisher's
// longest pause, twice.
const memoryFor = time.Minute

// New returns a watcher. It does not contact a server.
func New(c Config) (*Watcher, error) {
	cfg, err := c.resolve()
	if err != nil {
		return nil, err
	}
	return &Watcher{cfg: cfg, limits: defaultLimits(), seed: maphash.MakeSeed()}, nil
}

// errAgain ends a run, to be run again: what was unreadable can be read.
var errAgain = errors.New("run again")

// linkError says that the server, or the connection to it, failed.
type linkError struct{ error }

func (e linkError) Unwrap() error { return e.error }

// Run implements watcher.Watcher. When the connection ends it goes on with the next
// server; when no server has answered for 15 s, or one refuses the credentials, it returns
// an error.
func (w *Watcher) Run(ctx context.Context, sink watcher.Sink) error {
	r := w.newRun(sink)
	answered := time.Now() // by any server
	for {
		at, err := r.follow(ctx, w.cfg.servers[w.next%len(w.cfg.servers)], answered.Add(w.limits.down))
		if at.After(answered) {
			answered = at
		}
		w.next++
		var broken linkError
		switch {
		case ctx.Err() != nil:
			return ctx.Err()
		case errors.Is(err, errAgain):
			w.keep(r)
			return nil
		case errors.Is(err, errRefused):
			w.keep(r)
			w.cfg.Status.Count(err)
			return err
		case !errors.As(err, &broken):
			return err // the sink's: the session is over
		}
		w.cfg.Status.Count(err)
		if time.Since(answered) >= w.limits.down {
			w.keep(r)
			return fmt.Errorf("no server has answered for %s: %w", w.limits.down, err)
		}
		if !at.IsZero() { // else this server has not answered either
			w.cfg.Logger.Warn("connection to Nacos lost; going to the next server", "error", err)
		}
		timer := time.NewTimer(w.limits.redial)
		select {
		case <-timer.C:
		case <-ctx.Done():
			timer.Stop()
			return ctx.Err()
		}
	}
}

func (w *Watcher) keep(r *run) {
	if r.known {
		w.kept = &memory{r.services, r.catalog, r.doubt, time.Now().Add(memoryFor)}
	}
}
