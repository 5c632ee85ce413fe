package main

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"time"

	"meshlog.dev/deploy/e2e/rig"
	"meshlog.dev/deploy/testkit/program"
)

// enough is how many requests show that something goes on.
const enough = 1000

// request sends requests through an Envoy that accepts them on a port, until the end.
func (s *registriesStage) request(ctx context.Context, port int) error {
	address := fmt.Sprintf("http://127.0.0.1:%d/", port)
	call, end := rig.To(address, consulHost, conns)
	l, err := rig.StartCalls(ctx, address, conns, call, end)
	if err == nil {
		s.loads = append(s.loads, l)
	}
	return err
}

// shift moves half of the requests from Consul to Nacos.
func (s *registriesStage) shift(ctx context.Context) error {
	s.chapter("The migration begins: routes.yaml moves requests from Consul to Nacos")
	s.columns("weights", "save to ACK")
	if err := s.request(ctx, s.port); err != nil {
		return err
	}
	for _, w := range []struct{ consul, nacos int }{{100, 0}, {90, 10}, {50, 50}} {
		if err := s.weighed(ctx, w.consul, w.nacos); err != nil {
			return err
		}
	}
	return s.noneFailed()
}

// weighed saves weights, and prints how the requests follow them.
func (s *registriesStage) weighed(ctx context.Context, consul, nacos int) error {
	var saved time.Time // the first weights were there at the start
	var err error
	if s.seen != (rig.Version{}) {
		if saved, err = s.weigh(consul, nacos); err != nil {
			return err
		}
	}
	c, err := s.applied(ctx, rig.RouteConfiguration, theRoute, saved, s.seen)
	if err != nil {
		return err
	}
	toACK := "at start"
	if !saved.IsZero() {
		toACK = tenths(c.toACK)
	}
	s.seen = c.version
	measured, err := s.measure(ctx, s.loads[0], consul, nacos)
	if err != nil {
		return err
	}
	s.line(fmt.Sprintf("%d/%d", consul, nacos), c.version.String(), toACK, measured, c.cause)
	return nil
}

// measure checks that a load follows the weights, and returns the measured split.
func (s *registriesStage) measure(ctx context.Context, l *rig.Load, consul, nacos int) (string, error) {
	measured, sent, err := s.split(ctx, l, [2]weight{{s.before.registry, consul}, {s.after.registry, nacos}})
	s.answered += sent
	return measured, err
}

// noneFailed demands that every request so far was answered, and prints how many.
func (s *registriesStage) noneFailed() error {
	for _, l := range s.loads {
		t := l.Reset()
		if t.Sent > 0 && t.Err() != nil {
			return t.Err()
		}
		s.answered += t.Sent
	}
	s.holds("%d requests so far, none failed", s.answered)
	return nil
}

// deregister takes an instance out of Nacos.
func (s *registriesStage) deregister(ctx context.Context) error {
	s.chapter("An instance in Nacos is deregistered")
	b := s.after.backends[0]
	parameters := nacosInstance(b)
	s.command(fmt.Sprintf("curl -X DELETE 'http://%s%s?%s'", s.nacos.Addr, nacosInstances, parameters.Encode()))
	if err := s.without(ctx, s.after, b, func() error {
		return s.nacos.Call(ctx, http.MethodDelete, nacosInstances, parameters, nil)
	}); err != nil {
		return err
	}
	s.note("   Nacos pushes a change after half a second or a second; that is most of it")
	return nil
}

// critical makes an instance in Consul fail its check, and pass it again.
func (s *registriesStage) critical(ctx context.Context) error {
	s.chapter("The check of an instance in Consul becomes critical, and passes again")
	b := s.before.backends[0]
	check := func(state string) error {
		path := "/v1/agent/check/" + state + "/service:" + consulID(0)
		s.command("curl -X PUT " + s.consul.URL + path)
		return s.consul.Put(ctx, path, nil, nil)
	}
	if err := s.without(ctx, s.before, b, func() error { return check("fail") }); err != nil {
		return err
	}
	served := b.Served()
	if err := check("pass"); err != nil {
		return err
	}
	if err := program.Until(ctx, "requests to the instance that passes its check", func(context.Context) error {
		if b.Served() == served {
			return errors.New("none came")
		}
		return nil
	}); err != nil {
		return err
	}
	s.holds("127.0.0.1:%d answers again", b.Port)
	return s.noneFailed()
}

// without makes a change that takes an instance out of service, and demands that no request
// reaches it afterwards while the others go on.
func (s *registriesStage) without(ctx context.Context, h half, b *rig.Backend, change func() error) (err error) {
	if s.seen, err = s.serving(ctx); err != nil {
		return err
	}
	began := time.Now()
	if err := change(); err != nil {
		return err
	}
	if err := s.known(ctx, h, b, false); err != nil {
		return err
	}
	c, err := s.applied(ctx, rig.ClusterLoadAssignment, h.slice, began, s.seen)
	if err != nil {
		return err
	}
	s.seen = c.version
	s.holds("envoy-1 acknowledged version %s %s later (%s)", c.version, c.toACK.Round(time.Millisecond), c.cause)
	if err := s.flows(ctx, 10*conns); err != nil { // requests in flight when it was taken out
		return err
	}
	served := b.Served()
	if err := s.flows(ctx, enough); err != nil {
		return err
	}
	if n := b.Served() - served; n > 0 {
		return fmt.Errorf("%d requests reached 127.0.0.1:%d, which is out of service", n, b.Port)
	}
	s.holds("of the next %d requests none reached 127.0.0.1:%d, and none failed", enough, b.Port)
	return nil
}

// flows waits until n more requests were sent through each Envoy.
func (s *registriesStage) flows(ctx context.Context, n int) error {
	for _, l := range s.loads {
		before := l.Sent()
		if err := program.Until(ctx, fmt.Sprintf("%d more requests", n), func(context.Context) error {
			if got := l.Sent() - before; got < n {
				return fmt.Errorf("%d were sent", got)
			}
			return nil
		}); err != nil {
			return err
		}
	}
	return nil
}

// known waits until Envoy sends requests to an instance, or no longer does.
func (s *registriesStage) known(ctx context.Context, h half, b *rig.Backend, want bool) error {
	return s.envoy.UntilAlive(ctx, fmt.Sprintf("envoy-1 to send requests to 127.0.0.1:%d: %t", b.Port, want), func(ctx context.Context) error {
		hosts, err := s.envoy.Hosts(ctx, fmt.Sprintf("outbound|%d||%s", s.servicePort, h.host))
		if err == nil && hosts[b.Addr] != want {
			err = fmt.Errorf("it has %v", hosts)
		}
		return err
	})
}

// consulEmpty kills Consul. It comes back without any data, and later the instances register
// again.
func (s *registriesStage) consulEmpty(ctx context.Context) error {
	s.chapter("Consul is killed, and comes back empty")
	s.consul.Kill()
	s.holds("consul is dead (pid %d)", s.consul.PID())
	if err := s.await(ctx, "DOWN, FROZEN", "sources"); err != nil {
		return err
	}
	if err := errors.Join(s.consul.Wipe(), s.consul.Start(ctx)); err != nil {
		return err
	}
	s.holds("consul runs again (pid %d), with an empty data directory: no service, no instance", s.consul.PID())
	if err := s.await(ctx, "nothing is removed before a second one agrees", "sources"); err != nil {
		return err
	}
	if err := s.kept(ctx, s.before, s.before.backends); err != nil {
		return err
	}
	if err := s.registerInConsul(ctx); err != nil {
		return err
	}
	s.holds("the instances have registered again; a registry that is still empty 30 s later is believed")
	return s.noneFailed()
}

// nacosEmpty restarts Nacos without its data.
func (s *registriesStage) nacosEmpty(ctx context.Context) error {
	s.chapter("Nacos restarts, and has lost everything too")
	s.nacos.Kill()
	if err := errors.Join(s.nacos.Wipe(), s.nacos.Start(ctx)); err != nil {
		return err
	}
	s.holds("rnacos runs again (pid %d), with an empty data directory; what is missing is held for a minute", s.nacos.PID())
	if err := s.await(ctx, "instances are held", "sources"); err != nil {
		return err
	}
	if err := s.kept(ctx, s.after, s.after.backends[1:]); err != nil {
		return err
	}
	if err := s.registerInNacos(ctx); err != nil {
		return err
	}
	if err := s.known(ctx, s.after, s.after.backends[0], true); err != nil {
		return err
	}
	s.holds("the instances have registered again, with the one that was deregistered: 127.0.0.1:%d answers again", s.after.backends[0].Port)
	return s.noneFailed()
}

// kept demands that the requests go on as before, and reach each of some instances.
func (s *registriesStage) kept(ctx context.Context, h half, instances []*rig.Backend) error {
	served := make([]int64, len(instances))
	for i, b := range instances {
		served[i] = b.Served()
	}
	measured, err := s.measure(ctx, s.loads[0], 50, 50)
	if err != nil {
		return err
	}
	for i, b := range instances {
		if b.Served() == served[i] {
			return fmt.Errorf("127.0.0.1:%d of %s got no request", b.Port, h.registry)
		}
	}
	s.holds("envoy-1 sends requests to all %d instances of %s as before, and none fails: %s requests", len(instances), h.registry, measured)
	return nil
}

// finish moves the rest of the requests.
func (s *registriesStage) finish(ctx context.Context) error {
	s.chapter("The migration ends: Nacos answers everything, and Consul is no longer needed")
	var err error
	if s.seen, err = s.serving(ctx); err != nil {
		return err
	}
	s.columns("weights", "save to ACK")
	if err := s.weighed(ctx, 0, 100); err != nil {
		return err
	}
	if err := s.follows(ctx); err != nil {
		return err
	}
	s.consul.Kill()
	s.holds("consul is dead (pid %d)", s.consul.PID())
	if err := s.flows(ctx, enough); err != nil {
		return err
	}
	if err := s.noneFailed(); err != nil {
		return err
	}
	return s.unrejected(ctx, s.envoy)
}

// yours prints the commands that a user at the terminal can try.
func (s *registriesStage) yours(ctx context.Context) error {
	for _, l := range s.loads {
		l.Stop()
	}
	s.loads = nil
	if err := s.consul.Start(ctx); err != nil {
		return err
	}
	s.chapter("Your turn")
	s.note("curl -H 'Host: %s' http://127.0.0.1:%d/", consulHost, s.port)
	s.note("$EDITOR %s/routes.yaml", s.config.Path)
	s.note("curl -X PUT %s/v1/agent/check/fail/service:%s", s.consul.URL, consulID(1))
	s.note("bin/meshlog log --follow --data %s", s.mesh.Data)
	s.note("bin/meshlog sources --data %s", s.mesh.Data)
	s.note("")
	s.note("Ctrl-C ends it.")
	return nil
}
