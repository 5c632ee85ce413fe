package faults

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/nats-io/nats.go"

	"meshlog.dev/deploy/e2e/rig"
	"meshlog.dev/deploy/testkit/program"
	"meshlog.dev/deploy/testkit/testport"
)

var seed = flag.Uint64("seed", 0, "`seed` of all random choices; 0: a new one each time")

// mesh is a mesh under load: two Envoys, requests through them, changes through
// its watcher.
type mesh struct {
	*rig.Mesh
	ctx    context.Context // of the fault
	dice   *rand.Rand
	writer *writer
	envoys []*proxy

	log, chain *rig.Witness
	roots      map[string]string // root of every version that was ever seen
	noReplay   bool              // a test has deleted records that a replay of the log needs
}

// proxy is an Envoy, and the requests through it.
type proxy struct {
	*rig.Envoy
	name          string
	routes, extra *rig.Flow
}

// arrangement starts a bus and the processes that use it.
type arrangement func(ctx context.Context, dir, config string) (*rig.Mesh, error)

// patience bounds the start, and each fault. NATS servers alone sometimes take
// most of a minute to agree on a leader.
const patience = 4 * time.Minute

// onOne starts a mesh of the programs in a folder of bin/ on one NATS server.
func onOne(folder string, builders, twins int) arrangement {
	return func(ctx context.Context, dir, config string) (*rig.Mesh, error) {
		nats, err := rig.StartNATS(ctx, dir)
		if err != nil {
			return nil, err
		}
		return rig.Assemble(ctx, dir, config, rig.Parts{
			NATS: nats, Builders: builders, Frontends: 2, Twins: twins, Folder: folder,
		})
	}
}

// start starts everything, and waits until requests and changes flow.
func start(t *testing.T, arranged arrangement) *mesh {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	m := &mesh{ctx: ctx, dice: dice(t), roots: map[string]string{}}
	dir := t.TempDir()

	ports := map[string]int{"sotw": 0, "delta": 0}
	for name := range ports {
		port, err := testport.TCP()
		must(t, err)
		ports[name] = port
	}
	var err error
	m.writer, err = newWriter(dir, *seed, ports)
	must(t, err)
	m.Mesh, err = arranged(ctx, dir, m.writer.dir.Path)
	must(t, err)
	t.Cleanup(m.End)
	t.Cleanup(func() { m.explain(t) })
	go m.writer.run()
	t.Cleanup(m.writer.close)
	m.witness(t)
	for _, name := range []string{"sotw", "delta"} {
		m.join(t, name, ports[name])
	}
	m.settle(t)
	return m
}

// dice returns the source of random choices, and logs its seed.
func dice(t *testing.T) *rand.Rand {
	t.Helper()
	for *seed == 0 {
		*seed = uint64(time.Now().UnixNano() % 1e6)
	}
	t.Logf("-seed %d", *seed)
	return rand.New(rand.NewPCG(*seed, 1))
}

// join starts an Envoy and requests through it.
func (m *mesh) join(t *testing.T, name string, port int) {
	t.Helper()
	e, err := m.Join(m.ctx, rig.EnvoyConfig{
		Node: name, Delta: name == "delta",
		Overlay: fmt.Sprintf("node: {id: %[1]s, cluster: demo, metadata: {LABELS: {app: %[1]s}}}", name),
	}, port)
	must(t, err)
	t.Cleanup(e.Kill)
	p := &proxy{Envoy: e, name: name}
	url := fmt.Sprintf("http://127.0.0.1:%d/", port)
	all, cancel := context.WithTimeout(t.Context(), time.Hour)
	t.Cleanup(cancel)
	p.routes, err = rig.StartFlow(all, rig.FlowConfig{URL: url, Header: routesHeader, Conns: 2})
	must(t, err)
	t.Cleanup(p.routes.Stop)
	p.extra, err = rig.StartFlow(all, rig.FlowConfig{URL: url, Host: extraHost, Header: extraHeader, Conns: 1})
	must(t, err)
	t.Cleanup(p.extra.Stop)
	m.envoys = append(m.envoys, p)
}

// witness starts to remember the records that the bus has acknowledged.
func (m *mesh) witness(t *testing.T) {
	t.Helper()
	bus := m.bus()
	key, err := bus.Key("admin")
	must(t, err)
	for stream, w := range map[string]**rig.Witness{rig.Events: &m.log, rig.Versions: &m.chain} {
		*w, err = rig.NewWitness(bus.URL(), key, stream)
		must(t, err)
		ctx, cancel := context.WithCancel(t.Context())
		ended := make(chan struct{})
		go func() {
			defer close(ended)
			(*w).Run(ctx)
		}()
		t.Cleanup(func() { cancel(); <-ended })
	}
}

// bus is one NATS server, or three.
type bus interface {
	URL() string
	Key(role string) (nats.Option, error)
}

func (m *mesh) bus() bus {
	if m.NATS != nil {
		return m.NATS
	}
	return m.Cluster
}

// explain logs the last output of each process if the test has failed.
func (m *mesh) explain(t *testing.T) {
	if !t.Failed() {
		return
	}
	for _, s := range m.Servers() {
		t.Logf("Last output of %s:\n%s", s.Name, s.Tail(12))
	}
	for _, e := range m.envoys {
		t.Logf("Last output of %s:\n%s", e.Name, e.Tail(8))
	}
}

// fault causes a fault, and judges the outcome.
func (m *mesh) fault(t *testing.T, what string, happens func(t *testing.T)) {
	t.Helper()
	ok := t.Run(what, func(t *testing.T) {
		ctx, cancel := context.WithTimeout(t.Context(), patience)
		defer cancel()
		m.ctx = ctx
		happens(t)
		m.flows(t)
		m.judge(t)
	})
	if !ok {
		t.FailNow() // later faults would fail as a consequence of this one
	}
}

// later waits until a random moment.
func (m *mesh) later(most time.Duration) {
	timer := time.NewTimer(time.Duration(m.dice.Int64N(int64(most))))
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-m.ctx.Done():
	}
}

// flows waits until a change that is saved now is served.
func (m *mesh) flows(t *testing.T) {
	t.Helper()
	want := m.writer.revisions()[routesFile] + 1
	for _, e := range m.envoys {
		must(t, program.Until(m.ctx, fmt.Sprintf("%s to route by revision %d", e.name, want), func(context.Context) error {
			if got := e.routes.Revision(); got < want {
				return fmt.Errorf("it routes by %d", got)
			}
			return nil
		}))
	}
}

// leader waits until one builder leads and every other running builder has
// compared its work.
func (m *mesh) leader(t *testing.T) (leader, standby *rig.Server) {
	t.Helper()
	must(t, program.Until(m.ctx, "a leader and a warm standby", func(ctx context.Context) error {
		leader, standby = nil, nil
		for _, s := range m.Builders {
			if s.Running() != nil {
				continue
			}
			var r rig.BuilderReport
			if err := s.Debug(ctx, "builder", &r); err != nil {
				return err
			}
			switch {
			case r.Error != "":
				return fmt.Errorf("%s: %s", r.Builder, r.Error)
			case r.Leader && leader != nil:
				return errors.New("two lead")
			case r.Leader:
				leader = s
			case r.Compared == 0:
				return fmt.Errorf("%s has compared nothing", s.Name)
			default:
				standby = s
			}
		}
		if leader == nil {
			return errors.New("no builder leads")
		}
		return nil
	}))
	return leader, standby
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}
