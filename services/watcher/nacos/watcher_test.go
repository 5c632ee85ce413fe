package nacos

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"meshlog.dev/proto/ident"
	"meshlog.dev/services/watcher/registry"
)

// NAC-5: the connection is set up, requests before the registration are repeated, and
// the server's questions are answered.
func TestNAC5Handshake(t *testing.T) {
	s := newScripted(t)
	early := 3
	s.script = func(kind string, _ map[string]any) any {
		if kind == serviceList && early > 0 {
			early--
			return failure(codeUnregistered, "Connection is unregistered.")
		}
		return nil
	}
	s.set(id("web"), at("10.0.0.1"))
	o := follow(t, Config{Addresses: []string{s.address()}}, quick())
	o.awaitEndpoints(t, "web", "10.0.0.1")
	s.request(clientDetection)
	s.set(id("web"), at("10.0.0.2"))
	o.awaitEndpoints(t, "web", "10.0.0.2")
	o.await(t, "answers", "[ClientDetectionResponse 2 NotifySubscriberResponse 3 SetupAckResponse 1]", func() string { return fmt.Sprint(s.replied()) })
}

// NAC-5: a server that opens the stream and confirms nothing is left.
func TestNAC5NoConfirmation(t *testing.T) {
	silent, s := newScripted(t), newScripted(t)
	silent.mu.Lock()
	silent.silent = true
	silent.mu.Unlock()
	s.set(id("web"), at("10.0.0.1"))
	o := follow(t, Config{Addresses: []string{silent.address(), s.address()}}, quick())
	o.awaitEndpoints(t, "web", "10.0.0.1")
	if got := silent.count(serviceList); got != 0 {
		t.Errorf("%d lists before the setup was confirmed", got)
	}
}

// NAC-5: when a server asks the watcher to leave, or dies, it goes to the next one, and
// nothing is removed.
func TestNAC5NextServer(t *testing.T) {
	a, b := newScripted(t), newScripted(t)
	for _, s := range []*scripted{a, b} {
		s.set(id("web"), at("10.0.0.1"))
	}
	o := follow(t, Config{Addresses: []string{a.address(), b.address()}}, quick())
	o.awaitEndpoints(t, "web", "10.0.0.1")
	a.request(connectReset)
	o.awaitTrue(t, "subscribed at the second server", func() bool { return b.count(subscribe) == 1 })
	b.set(id("web"), at("10.0.0.1"), at("10.0.0.2"))
	o.awaitEndpoints(t, "web", "10.0.0.1", "10.0.0.2")
	before := a.count(subscribe)
	b.stop()
	o.awaitTrue(t, "subscribed at the first server", func() bool { return a.count(subscribe) > before })
	a.set(id("web"), at("10.0.0.1"), at("10.0.0.2"), at("10.0.0.3"))
	o.awaitEndpoints(t, "web", "10.0.0.1", "10.0.0.2", "10.0.0.3")
	if o.errs() != "<nil>" || len(o.lists) != 1 {
		t.Errorf("runs ended with %s, %d listings", o.errs(), len(o.lists))
	}
}

// NAC-6: a list whose count is not that of its names removes nothing.
func TestNAC6Count(t *testing.T) {
	s := newScripted(t)
	s.set(id("a"), at("10.0.0.1"))
	s.set(id("b"), at("10.0.0.2"))
	whole := make(chan struct{})
	s.script = func(kind string, _ map[string]any) any {
		select {
		case <-whole:
		default:
			if kind == serviceList {
				return map[string]any{"resultCode": 200, "count": 2, "serviceNames": []string{"a"}}
			}
		}
		return nil
	}
	o := follow(t, Config{Addresses: []string{s.address()}}, quick())
	o.awaitServices(t, "a")
	if !o.lists[0].Partial {
		t.Error("the listing is not partial")
	}
	close(whole)
	o.awaitServices(t, "a", "b")
	o.awaitTrue(t, "a whole listing", func() bool { return !o.lists[len(o.lists)-1].Partial })
}

// NAC-7: services are subscribed to, 16 at a time; those of Dubbo's consumers are not read.
func TestNAC7Subscribe(t *testing.T) {
	s := newScripted(t)
	want := []string{}
	for i := range 100 {
		name := fmt.Sprintf("s%02d", i)
		s.set(id(name), at("10.0.0.1"))
		want = append(want, name)
	}
	s.set(id("consumers:com.x.Hello:1.0:g"), at("10.0.0.9"))
	status := registry.NewStatus(ident.Shard{Source: Source, Instance: DefaultNamespace})
	o := follow(t, Config{Addresses: []string{s.address()}, Status: status}, quick())
	o.awaitServices(t, want...)
	o.awaitTrue(t, "the status", func() bool { // REG-15
		r := status.Report()
		return r.GetServices() == 100 && r.GetInstances() == 100 && r.GetPolled() == 100 && r.GetSwept() == 0 && r.GetDoubted() == "" && r.GetOldestRead() != nil
	})
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.most > requests {
		t.Errorf("%d requests at a time", s.most)
	}
	for _, c := range s.connections {
		if len(c.subscribed) != 100 {
			t.Errorf("%d subscriptions", len(c.subscribed))
		}
	}
}

// NAC-8: the order of arrival counts, not the server's clock, and an answer that a push
// has overtaken does not count.
func TestNAC8Order(t *testing.T) {
	s := newScripted(t)
	s.set(id("web"), at("10.0.0.1"))
	asked, release := make(chan struct{}), make(chan struct{})
	first := true
	s.script = func(kind string, _ map[string]any) any {
		if kind == serviceQuery && first {
			first = false
			close(asked)
			<-release
			return map[string]any{"resultCode": 200, "serviceInfo": map[string]any{"name": "web", "groupName": DefaultGroup, "hosts": []any{at("10.0.0.9")}}}
		}
		return nil
	}
	o := follow(t, Config{Addresses: []string{s.address()}}, quick())
	o.awaitEndpoints(t, "web", "10.0.0.1")
	<-asked
	s.lose(id("web"), at("10.0.0.2"))
	s.push(id("web"), map[string]any{"lastRefTime": 1})
	o.awaitEndpoints(t, "web", "10.0.0.2")
	queries := s.count(serviceQuery)
	close(release)
	o.awaitTrue(t, "asked again", func() bool { return s.count(serviceQuery) > queries+1 })
	o.awaitEndpoints(t, "web", "10.0.0.2")
}

// NAC-9: a push that got lost is made good by a query.
func TestNAC9LostPush(t *testing.T) {
	s := newScripted(t)
	s.set(id("web"), at("10.0.0.1"))
	o := follow(t, Config{Addresses: []string{s.address()}}, quick())
	o.awaitEndpoints(t, "web", "10.0.0.1")
	s.lose(id("web"), at("10.0.0.1"), at("10.0.0.2"))
	o.awaitEndpoints(t, "web", "10.0.0.1", "10.0.0.2")
}

// NAC-16: one service that loses all instances is empty after a query has agreed, and
// gone when it is not listed.
func TestNAC16Empty(t *testing.T) {
	s := newScripted(t)
	s.set(id("web"), at("10.0.0.1"))
	s.set(id("api"), at("10.0.0.2"))
	o := follow(t, Config{Addresses: []string{s.address()}}, quick())
	o.awaitServices(t, "api", "web")
	queries := s.count(serviceQuery)
	s.set(id("web"))
	o.awaitEndpoints(t, "web")
	if s.count(serviceQuery) == queries {
		t.Error("believed without a query")
	}
	s.remove(id("web"))
	o.awaitServices(t, "api")
	s.set(id("web"), at("10.0.0.3"))
	o.awaitEndpoints(t, "web", "10.0.0.3")
}

// NAC-16: a push without instances that a query contradicts changes nothing.
func TestNAC16FalseEmpty(t *testing.T) {
	s := newScripted(t)
	s.set(id("web"), at("10.0.0.1"))
	o := follow(t, Config{Addresses: []string{s.address()}}, quick())
	o.awaitEndpoints(t, "web", "10.0.0.1")
	queries := s.count(serviceQuery)
	s.push(id("web"), map[string]any{"hosts": []any{}})
	o.awaitTrue(t, "queries", func() bool { return s.count(serviceQuery) > queries+2 })
	s.set(id("web"), at("10.0.0.1"), at("10.0.0.2"))
	o.awaitEndpoints(t, "web", "10.0.0.1", "10.0.0.2")
	if slices.Contains(o.history["web"], 0) {
		t.Errorf("web had %v endpoints", o.history["web"])
	}
}

// NAC-16: when many services lose all instances at once, they stay until a second look a
// minute later agrees; what comes back meanwhile counts.
func TestNAC16Mass(t *testing.T) {
	s := newScripted(t)
	for i := range 30 {
		s.set(id(fmt.Sprint("s", i)), at("10.0.0.1"))
	}
	s.set(id("web"), at("10.0.0.1"))
	l := quick()
	l.hold = 3 * time.Second
	status := registry.NewStatus(ident.Shard{Source: Source, Instance: DefaultNamespace})
	o := follow(t, Config{Addresses: []string{s.address()}, Status: status}, l)
	o.awaitTrue(t, "services", func() bool { return len(o.services()) == 31 })
	start := time.Now()
	for i := range 30 {
		s.set(id(fmt.Sprint("s", i)))
	}
	o.awaitTrue(t, "a warning", func() bool { return strings.Count(o.told(), "are missing in Nacos") == 30 })
	o.awaitTrue(t, "the status", func() bool {
		return strings.Contains(status.Report().GetDoubted(), "services lost all of their instances within 30s; 30 instances are held")
	})
	s.set(id("s7"), at("10.0.0.7"))
	s.set(id("web"), at("10.0.0.2"))
	o.awaitEndpoints(t, "web", "10.0.0.2")
	o.awaitEndpoints(t, "s7", "10.0.0.1", "10.0.0.7")
	o.awaitEndpoints(t, "s3")
	if held := time.Since(start); held < l.hold {
		t.Errorf("given up after %s", held)
	}
	o.awaitEndpoints(t, "s7", "10.0.0.7")
	o.awaitTrue(t, "no doubt", func() bool { return status.Report().GetDoubted() == "" })
}

// NAC-16: with keep-empty a service never becomes empty, also when it is not listed.
func TestNAC16KeepEmpty(t *testing.T) {
	s := newScripted(t)
	s.set(id("web"), at("10.0.0.1"), at("10.0.0.2"))
	o := follow(t, Config{Addresses: []string{s.address()}, KeepEmpty: true}, quick())
	o.awaitEndpoints(t, "web", "10.0.0.1", "10.0.0.2")
	s.set(id("web"))
	o.awaitTrue(t, "a warning", func() bool { return strings.Contains(o.told(), "2 instances are missing") })
	s.remove(id("web"))
	lists := s.count(serviceList)
	o.awaitTrue(t, "lists", func() bool { return s.count(serviceList) > lists+10 })
	o.awaitEndpoints(t, "web", "10.0.0.1", "10.0.0.2")
	s.set(id("web"), at("10.0.0.3"))
	o.awaitEndpoints(t, "web", "10.0.0.3")
}

// NAC-17: a server that comes back without instances, and gets them again one by one,
// removes none; what has not come back after a minute goes.
func TestNAC17Restart(t *testing.T) {
	s := newScripted(t)
	s.set(id("web"), at("10.0.0.1"), at("10.0.0.2"), at("10.0.0.3"))
	s.set(id("old"), at("10.0.0.4"))
	o := follow(t, Config{Addresses: []string{s.address()}}, quick())
	o.awaitServices(t, "old", "web")
	s.stop()
	s.lose(id("web"))
	s.remove(id("old"))
	s.start()
	o.awaitTrue(t, "subscribed", func() bool { return s.count(subscribe) >= 3 })
	s.set(id("web"), at("10.0.0.2"))
	s.set(id("web"), at("10.0.0.2"), at("10.0.0.1", "healthy", false))
	o.awaitEndpoints(t, "web", "10.0.0.1 unhealthy", "10.0.0.2", "10.0.0.3")
	o.awaitEndpoints(t, "web", "10.0.0.1 unhealthy", "10.0.0.2")
	o.awaitServices(t, "web")
	for _, n := range o.history["web"] {
		if n < 2 {
			t.Errorf("web had %v endpoints", o.history["web"])
		}
	}
	if len(o.lists) != 1 || o.lists[0].Partial {
		t.Errorf("%d listings", len(o.lists))
	}
}

// REG-10, NAC-17: a registry that is away for long freezes the source, and what it lacks
// when it is back is held.
func TestREG10Down(t *testing.T) {
	s := newScripted(t)
	s.set(id("web"), at("10.0.0.1"))
	l := quick()
	l.down = 300 * time.Millisecond
	o := follow(t, Config{Addresses: []string{s.address()}}, l)
	o.awaitEndpoints(t, "web", "10.0.0.1")
	s.stop()
	o.awaitTrue(t, "an error", func() bool { return strings.Contains(o.errs(), "no server has answered for 300ms") })
	s.lose(id("web"), at("10.0.0.2"))
	s.start()
	o.awaitEndpoints(t, "web", "10.0.0.1", "10.0.0.2")
	o.awaitEndpoints(t, "web", "10.0.0.2")
	for _, l := range o.lists {
		if l.Partial {
			t.Error("a listing is partial")
		}
	}
}

// REG-11: a service that cannot be read makes the listing partial, without delaying the
// others for long, and a new listing follows when it can be read.
func TestREG11Unreadable(t *testing.T) {
	s := newScripted(t)
	s.set(id("web"), at("10.0.0.1"))
	s.set(id("bad"), at("10.0.0.2"))
	healed := make(chan struct{})
	s.script = func(kind string, body map[string]any) any {
		select {
		case <-healed:
		default:
			if kind == subscribe && body["serviceName"] == "bad" {
				return failure(500, "overloaded")
			}
		}
		return nil
	}
	o := follow(t, Config{Addresses: []string{s.address()}}, quick())
	o.awaitServices(t, "web")
	if !o.lists[0].Partial {
		t.Error("the listing is not partial")
	}
	if got := o.told(); !strings.Contains(got, "service bad cannot be read") {
		t.Errorf("problems: %s", got)
	}
	close(healed)
	o.awaitServices(t, "bad", "web")
	o.awaitTrue(t, "a whole listing", func() bool { return !o.lists[len(o.lists)-1].Partial })
	o.await(t, "problems", "", o.told)
}
