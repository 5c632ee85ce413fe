package main

import (
	"context"
	"errors"
	"fmt"
	"time"

	"meshlog.dev/deploy/e2e/cluster"
	"meshlog.dev/deploy/e2e/rig"
	"meshlog.dev/deploy/e2e/shop"
	"meshlog.dev/deploy/testkit/program"
)

// apply writes the shop to the cluster, and waits until Envoy serves it.
func (s *clusterStage) apply(ctx context.Context) (err error) {
	s.chapter("From kubectl apply to Envoy's ACK")
	s.command("kubectl apply --server-side -f " + s.shop.Path)
	begun := time.Now()
	if err := s.shop.Apply(ctx, s.cluster); err != nil {
		return err
	}
	if s.v1, err = s.pod(ctx, "v1"); err != nil {
		return err
	}
	first, err := s.pod(ctx, "v2")
	if err != nil {
		return err
	}
	s.v2 = []*cluster.Pod{first}
	s.holds("Namespace, Service, DestinationRule, Gateway, VirtualService, two Pods, two EndpointSlices: written in %s", since(begun))
	if err := s.envoy.Listening(ctx, s.edge().Port); err != nil {
		return err
	}
	for _, p := range []*cluster.Pod{s.v1, first} {
		if err := s.known(ctx, p, true); err != nil {
			return err
		}
	}
	t, err := s.mesh.Acked(ctx, s.envoy.Name, rig.ClusterLoadAssignment, rig.Version{})
	if err != nil {
		return err
	}
	s.seen = t.Acked
	s.holds("envoy-1 has acknowledged version %s %s after the first of them was applied", t.Acked, t.AckedTime.Sub(begun).Round(time.Millisecond))
	answers := rig.Send(ctx, s.edge().URL(), 20)
	if err := answers.Err(); err != nil {
		return err
	}
	s.holds("%s answers: %d of %d requests", s.edge().URL(), answers.Sent, answers.Sent)
	return nil
}

// pod starts a pod of a version.
func (s *clusterStage) pod(ctx context.Context, version string) (*cluster.Pod, error) {
	return s.cluster.Run(ctx, cluster.Namespace, cluster.Service, version)
}

// known waits until Envoy sends requests to a pod, or with want false, no longer
// does.
func (s *clusterStage) known(ctx context.Context, p *cluster.Pod, want bool) error {
	of := fmt.Sprintf("outbound|80|%s|%s", p.Version, cluster.Host)
	return s.envoy.UntilAlive(ctx, fmt.Sprintf("envoy-1 to have %s as an endpoint: %t", p.Name, want), func(ctx context.Context) error {
		hosts, err := s.envoy.Hosts(ctx, of)
		if err == nil && hosts[p.Addr] != want {
			err = fmt.Errorf("%s has %v", of, hosts)
		}
		return err
	})
}

// canary shifts requests from one version to the other, and loses none.
func (s *clusterStage) canary(ctx context.Context) error {
	s.chapter("A canary: the VirtualService is applied with other weights while requests flow")
	s.command("kubectl apply --server-side --field-manager release-bot -f " + s.shop.Path + "/routes.yaml")
	s.columns("weights", "apply to ACK")
	load, err := rig.StartLoad(ctx, s.edge().URL(), conns)
	if err != nil {
		return err
	}
	defer load.Stop()
	total := 0 // of requests
	for _, w := range []struct{ v1, v2 int }{{50, 50}, {0, 100}} {
		at, err := s.shop.Weigh(ctx, s.cluster, "release-bot", w.v1, w.v2)
		if err != nil {
			return err
		}
		c, err := s.applied(ctx, rig.RouteConfiguration, theRoute, at, s.seen)
		if err != nil {
			return err
		}
		s.seen = c.version
		measured, sent, err := s.split(ctx, load, versions(w.v1, w.v2))
		if err != nil {
			return err
		}
		total += sent
		s.line(fmt.Sprintf("%d/%d", w.v1, w.v2), c.version.String(), tenths(c.toACK), measured, c.cause)
	}
	return s.lostNone(ctx, load.Stop(), total)
}

// lostNone demands that all requests were answered, and prints how many.
func (s *clusterStage) lostNone(ctx context.Context, last rig.Tally, before int) error {
	if last.Sent > 0 && last.Err() != nil {
		return last.Err()
	}
	s.holds("all %d requests were answered", before+last.Sent)
	return s.unrejected(ctx, s.envoy)
}

// scale adds pods and removes them again, and loses no request.
func (s *clusterStage) scale(ctx context.Context) error {
	s.chapter("Scale shop-v2 to three pods and back to one while requests flow")
	s.command("kubectl scale deployment/shop-v2 --replicas 3    # the demo starts the pods itself, and writes their slices")
	s.columns("pods", "slice to ACK")
	load, err := rig.StartLoad(ctx, s.edge().URL(), conns)
	if err != nil {
		return err
	}
	defer load.Stop()
	for len(s.v2) < 3 {
		p, err := s.cluster.Begin(ctx, cluster.Namespace, cluster.Service, "v2")
		if err != nil {
			return err
		}
		if err := s.slice(ctx, len(s.v2)+1, p, true, func() error { return p.Ready(ctx, true) }); err != nil {
			return err
		}
		s.v2 = append(s.v2, p)
	}
	for len(s.v2) > 1 {
		p := s.v2[len(s.v2)-1]
		// A pod ends in this order: its slice marks it terminating while it still
		// answers, and it ends once no request is sent to it any more.
		if err := s.slice(ctx, len(s.v2)-1, p, false, func() error { return p.Terminate(ctx) }); err != nil {
			return err
		}
		if err := p.Remove(ctx); err != nil {
			return err
		}
		s.v2 = s.v2[:len(s.v2)-1]
	}
	return s.lostNone(ctx, load.Stop(), 0)
}

// slice writes a pod's slice and prints when Envoy had it.
func (s *clusterStage) slice(ctx context.Context, pods int, p *cluster.Pod, want bool, write func() error) error {
	at, served := time.Now(), p.Served()
	if err := write(); err != nil {
		return err
	}
	if err := s.known(ctx, p, want); err != nil {
		return err
	}
	c, err := s.applied(ctx, rig.ClusterLoadAssignment, "EndpointSlice demo/"+p.Name, at, s.seen)
	if err != nil {
		return err
	}
	s.seen = c.version
	measured := "no request is sent there"
	if want {
		measured = "the new one answers"
		err := program.Until(ctx, "a request to "+p.Name, func(context.Context) error {
			if p.Served() == served {
				return errors.New("none came")
			}
			return nil
		})
		if err != nil {
			return err
		}
	}
	s.line(fmt.Sprint(pods), c.version.String(), tenths(c.toACK), measured, c.cause)
	return nil
}

// history prints which client changed the weights.
func (s *clusterStage) history(ctx context.Context) error {
	s.chapter("Which client changed the weights?")
	return s.ask(ctx, "release-bot", "history", "VirtualService/demo/shop")
}

// away kills the API server: requests continue.
func (s *clusterStage) away(ctx context.Context) error {
	s.chapter("The API server is killed")
	before, err := s.source(ctx)
	if err != nil {
		return err
	}
	load, err := rig.StartLoad(ctx, s.edge().URL(), conns)
	if err != nil {
		return err
	}
	defer load.Stop()
	s.cluster.API.Kill()
	s.holds("kube-apiserver is dead (pid %d)", s.cluster.API.PID())
	var after source
	err = s.up().UntilAlive(ctx, "meshlog to report the cluster as down", func(ctx context.Context) (err error) {
		if after, err = s.source(ctx); err == nil && after.State != "down" {
			err = fmt.Errorf("it is %s", after.State)
		}
		return err
	})
	if err != nil {
		return err
	}
	if err := s.ask(ctx, "DOWN, FROZEN", "sources"); err != nil {
		return err
	}
	if after.Objects != before.Objects {
		return fmt.Errorf("%d objects are left of %d", after.Objects, before.Objects)
	}
	s.holds("its %d objects stay as they are", after.Objects)
	return s.lostNone(ctx, load.Stop(), 0)
}

// source is meshlog's report of the cluster.
type source struct {
	Source, Instance, State string
	Objects                 int
}

func (s *clusterStage) source(ctx context.Context) (source, error) {
	var all []source
	if err := s.mesh.CLI(ctx, &all, "sources"); err != nil {
		return source{}, err
	}
	for _, o := range all {
		if o.Instance == s.cluster.Name {
			return o, nil
		}
	}
	return source{}, fmt.Errorf("no source %s in %+v", s.cluster.Name, all)
}

// back starts the API server again, and changes continue.
func (s *clusterStage) back(ctx context.Context) (err error) {
	s.chapter("It comes back")
	if err := s.cluster.API.Start(ctx); err != nil {
		return err
	}
	s.holds("kube-apiserver runs again (pid %d)", s.cluster.API.PID())
	if s.seen, err = s.serving(ctx); err != nil { // removed pods caused versions that the demo did not wait for
		return err
	}
	at, err := s.shop.Weigh(ctx, s.cluster, "kubectl", 100, 0)
	if err != nil {
		return err
	}
	c, err := s.applied(ctx, rig.RouteConfiguration, theRoute, at, s.seen)
	if err != nil {
		return err
	}
	s.seen = c.version
	s.holds("weights 100/0, applied at once: %s later envoy-1 has acknowledged version %s (%s);", c.toACK.Round(100*time.Millisecond), c.version, c.cause)
	s.note("   most of that is the watcher's backoff before it retries the API server, 30s at most")
	// An Envoy worker accepts some requests before Envoy's main thread hands it
	// the new routes.
	if err := rig.Send(ctx, s.edge().URL(), 10*conns).Err(); err != nil {
		return err
	}
	t := rig.Send(ctx, s.edge().URL(), sample)
	if err := t.Err(); err != nil {
		return err
	}
	if t.Backends[shop.V1] != t.Sent {
		return fmt.Errorf("%d of %d requests went to shop-v2, which has weight 0", t.Backends[shop.V2], t.Sent)
	}
	s.holds("envoy-1 answers: %d of %d requests, all from shop-v1", t.Backends[shop.V1], sample)
	return nil
}

// yours prints the commands that a user at the terminal can try.
func (s *clusterStage) yours(context.Context) error {
	s.chapter("Your turn")
	s.note("%s    # a shell on the network of the demo, for all of these", rig.Enter())
	s.note("curl %s", s.edge().URL())
	s.note("export KUBECONFIG=%s MESHLOG_DATA=%s", s.cluster.Kubeconfig, s.mesh.Data)
	s.note("kubectl edit -n demo virtualservice shop")
	s.note("bin/meshlog log --follow")
	s.note("bin/meshlog sources")
	s.note("")
	s.note("Ctrl-C ends it.")
	return nil
}

func tenths(d time.Duration) string { return d.Round(100 * time.Microsecond).String() }

func since(t time.Time) time.Duration { return time.Since(t).Round(time.Millisecond) }
