package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"time"

	"meshlog.dev/deploy/e2e/load/fleet"
	"meshlog.dev/deploy/e2e/load/kube"
	"meshlog.dev/deploy/e2e/rig"
	"meshlog.dev/deploy/testkit/kubetest"
	"meshlog.dev/deploy/testkit/program"
)

// kubernetesCommand measures a mesh whose source is a Kubernetes cluster: how
// long it takes from nothing to the first version, what that costs each process,
// and one endpoint's change, leg by leg.
const kubernetesCommand = "kubernetes"

// kubernetesPlan holds the settings of the measurement.
type kubernetesPlan struct {
	size    kube.Size
	streams int
	rounds  int
	pause   time.Duration // between two rounds
}

// cold holds the timings of a start with a full API server and an empty mesh,
// measured from the start of the watcher's process.
type cold struct {
	filled  time.Duration // how long it took to write the objects
	begun   time.Duration // the watcher's session is on the log
	first   time.Duration // the first object is on the log
	logged  time.Duration // the last object is on the log
	records int
	version time.Duration // the first version is published
	served  time.Duration // the frontend serves it
	proxies time.Duration // all proxies have everything
}

// held is the memory of a process: its peak until the first version was served,
// and its size once the mesh is idle.
type held struct {
	name    string
	peak    int64
	settled int64
}

// moments holds the times of one change.
type moments struct {
	kube.Change
	rig.StageTiming
	sent time.Time       // the first byte to the Envoy
	acks []time.Duration // of the proxies, since the change was written
	// envoy is when Envoy had acknowledged the change.
	envoy time.Time
}

type kubernetesResults struct {
	plan    kubernetesPlan
	objects int
	cold    cold
	memory  []held
	changes []moments
}

func parseKubernetes(args []string) (kubernetesPlan, error) {
	p := kubernetesPlan{size: kube.Size{Services: 1000, Endpoints: 10, Pods: 2000, Rules: 100}, streams: 10, rounds: 100, pause: 100 * time.Millisecond}
	fs := flag.NewFlagSet("load "+kubernetesCommand, flag.ContinueOnError)
	fs.IntVar(&p.size.Services, "services", p.size.Services, "`services` in the cluster, each with a slice of its endpoints")
	fs.IntVar(&p.size.Endpoints, "endpoints", p.size.Endpoints, "`endpoints` of each service")
	fs.IntVar(&p.size.Pods, "pods", p.size.Pods, "`pods` behind them")
	fs.IntVar(&p.streams, "streams", p.streams, "`proxies`, beside an Envoy; at most 500")
	fs.IntVar(&p.rounds, "rounds", p.rounds, "`changes` of an endpoint; at most 1000")
	if err := fs.Parse(args); err != nil {
		return p, err
	}
	switch {
	case p.size.Services < 1 || p.size.Services > 20_000:
		return p, fmt.Errorf("-services %d: from 1 to 20000", p.size.Services)
	case p.size.Endpoints < 1 || p.size.Endpoints > 100:
		return p, fmt.Errorf("-endpoints %d: from 1 to 100", p.size.Endpoints)
	case p.size.Pods < 100*p.size.Endpoints || p.size.Pods > 100_000:
		return p, fmt.Errorf("-pods %d: from 100 times -endpoints to 100000", p.size.Pods)
	case p.streams < 1 || p.streams > 500:
		return p, fmt.Errorf("-streams %d: from 1 to 500", p.streams)
	case p.rounds < 1 || p.rounds > 1000:
		return p, fmt.Errorf("-rounds %d: from 1 to 1000", p.rounds)
	}
	return p, nil
}

func runKubernetes(ctx context.Context, p kubernetesPlan) (_ *kubernetesResults, err error) {
	dir, err := os.MkdirTemp("", "meshlog-kubernetes-")
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()
	server, err := kubetest.StartIn(ctx, dir)
	if err != nil {
		return nil, err
	}
	defer server.Kill()
	if err := server.InstallIstioCRDs(ctx); err != nil {
		return nil, err
	}
	r := &kubernetesResults{plan: p, objects: p.size.Objects()}
	began := time.Now()
	filled, err := kube.Fill(ctx, server, p.size)
	if err != nil {
		return nil, err
	}
	r.cold.filled = time.Since(began)

	mesh, err := r.start(ctx, dir, server)
	if mesh != nil {
		defer mesh.End()
	}
	if err != nil {
		return nil, err
	}
	return r, r.changeAll(ctx, mesh, filled)
}

// start starts a mesh, and measures the cold listing.
func (r *kubernetesResults) start(ctx context.Context, dir string, server *kubetest.Server) (*rig.Mesh, error) {
	access, err := kubetest.Kubeconfig(server.Config())
	if err != nil {
		return nil, err
	}
	kubeconfig := filepath.Join(dir, "kubeconfig")
	if err := os.WriteFile(kubeconfig, access, 0o600); err != nil {
		return nil, err
	}
	nats, err := rig.StartNATS(ctx, dir)
	if err != nil {
		return nil, err
	}
	mesh, err := rig.Assemble(ctx, dir, "", rig.Parts{
		NATS: nats, Builders: 1, Frontends: 1,
		Kube: []rig.KubeCluster{{Name: "load", Kubeconfig: kubeconfig, Watchers: 1}},
	})
	if err != nil {
		return nil, err
	}
	watcher, frontend := mesh.Kube[0][0], mesh.Frontends[0]
	since := watcher.Started
	r.cold.served = time.Since(since)
	if err := r.logged(ctx, mesh, since); err != nil {
		return mesh, err
	}
	for _, s := range []*rig.Server{watcher, mesh.Builders[0], frontend} {
		m, err := memoryOf(s.PID())
		if err != nil {
			return mesh, err
		}
		r.memory = append(r.memory, held{name: s.Name, peak: m.peak})
	}
	return mesh, nil
}

// record is a record of the log.
type record struct {
	Seq  int
	Time time.Time
}

// logged reads the times of the cold listing from the log and the versions.
func (r *kubernetesResults) logged(ctx context.Context, mesh *rig.Mesh, since time.Time) error {
	one := func(args ...string) (record, error) {
		var found []record
		err := mesh.CLI(ctx, &found, append([]string{"log", "--source", "kubernetes"}, args...)...)
		if err == nil && len(found) != 1 {
			err = fmt.Errorf("meshlog log %v finds %d records, want one", args, len(found))
		}
		return append(found, record{})[0], err
	}
	begin, err := one("--op", "begin")
	if err != nil {
		return err
	}
	first, err := one("--from", fmt.Sprint(begin.Seq+1), "--to", fmt.Sprint(begin.Seq+1))
	if err != nil {
		return err
	}
	last, err := one("--op", "put", "-n", "1")
	if err != nil {
		return err
	}
	var versions []struct{ PublishedAt time.Time }
	if err := mesh.CLI(ctx, &versions, "versions", "-n", "-1"); err != nil {
		return err
	}
	if len(versions) == 0 {
		return errors.New("there is no version")
	}
	r.cold.begun, r.cold.first, r.cold.logged = begin.Time.Sub(since), first.Time.Sub(since), last.Time.Sub(since)
	r.cold.records = last.Seq - begin.Seq
	r.cold.version = versions[len(versions)-1].PublishedAt.Sub(since)
	return nil
}

// changeAll connects proxies and an Envoy, and changes an endpoint again and
// again.
func (r *kubernetesResults) changeAll(ctx context.Context, mesh *rig.Mesh, filled *kube.Mesh) error {
	frontend := mesh.Frontends[0]
	proxies, err := r.connect(ctx, mesh)
	if err != nil {
		return err
	}
	defer proxies.Close()
	envoy, err := mesh.Envoy(ctx, rig.EnvoyConfig{Node: "envoy-1", Cluster: "demo"})
	if err != nil {
		return err
	}
	defer envoy.Kill()
	if err := envoy.Ready(ctx); err != nil {
		return err
	}
	first, err := mesh.Acked(ctx, envoy.Name, rig.ClusterLoadAssignment, rig.Version{})
	if err != nil {
		return err
	}
	before := first.Acked
	for i := range warmups + r.plan.rounds {
		if err := wait(ctx, r.plan.pause); err != nil {
			return err
		}
		wave := proxies.Expect(fleet.EDS)
		c, err := filled.ChangeEndpoint(ctx)
		if err != nil {
			return err
		}
		if err := wave.Wait(ctx); err != nil {
			return fmt.Errorf("change %d: %w", i, err)
		}
		if _, err := wave.Resources(c.Token); err != nil {
			return fmt.Errorf("change %d: %w", i, err)
		}
		acked, err := mesh.Acked(ctx, envoy.Name, rig.ClusterLoadAssignment, before)
		if err != nil {
			return fmt.Errorf("change %d: %w", i, err)
		}
		before = acked.Acked
		if i >= warmups {
			r.changes = append(r.changes, moments{Change: c, sent: acked.SentTime, acks: wave.Took(c.Written), envoy: acked.AckedTime})
		}
	}
	if err := r.timings(ctx, mesh); err != nil {
		return err
	}
	return r.settle(ctx, []*rig.Server{mesh.Kube[0][0], mesh.Builders[0], frontend})
}

// connect connects the proxies, and waits until they have everything.
func (r *kubernetesResults) connect(ctx context.Context, mesh *rig.Mesh) (*fleet.Fleet, error) {
	at := address(mesh.Frontends[0].XDS)
	var nodes [][]byte
	for i := range r.plan.streams {
		n, err := fleet.Sidecar(i, kube.Namespace(i))
		if err != nil {
			return nil, err
		}
		nodes = append(nodes, n)
	}
	lesson, err := fleet.Learn(ctx, at, fleet.SotW, nodes[0])
	if err != nil {
		return nil, err
	}
	if n := len(lesson.Names.Endpoints); n < r.plan.size.Services {
		return nil, fmt.Errorf("%d clusters have endpoints, want %d or more", n, r.plan.size.Services)
	}
	began := time.Now()
	proxies, first := fleet.Connect(ctx, fleet.Config{Target: at, Mode: fleet.SotW, Nodes: nodes, Names: lesson.Names})
	if err := first.Wait(ctx); err != nil {
		proxies.Close()
		return nil, fmt.Errorf("first sync: %w", err)
	}
	r.cold.proxies = time.Since(began)
	return proxies, nil
}

// timings adds the builder's timings of each change.
func (r *kubernetesResults) timings(ctx context.Context, mesh *rig.Mesh) error {
	ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	builder := mesh.Builders[0]
	// The builder reports its timings a moment later.
	return program.Until(ctx, "the timings of "+builder.Name, func(ctx context.Context) error {
		var report rig.BuilderReport
		if err := builder.Debug(ctx, "builder", &report); err != nil {
			return err
		}
		for i := range r.changes {
			c := &r.changes[i]
			at := slices.IndexFunc(report.Timings, func(t rig.StageTiming) bool {
				return t.Observed.After(c.Written) && t.Observed.Before(c.envoy)
			})
			if at < 0 {
				return fmt.Errorf("none of %d timings is of change %d", len(report.Timings), i)
			}
			c.StageTiming = report.Timings[at]
		}
		return nil
	})
}

// settle records the memory of each process once the mesh is idle.
func (r *kubernetesResults) settle(ctx context.Context, servers []*rig.Server) error {
	for i, s := range servers {
		m, err := target{pid: s.PID(), admin: s.Admin}.settled(ctx, r.plan.pause)
		if err != nil {
			return err
		}
		r.memory[i].settled = m.resident
	}
	return nil
}
