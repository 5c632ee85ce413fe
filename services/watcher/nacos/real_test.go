//go:build registries

package nacos

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"meshlog.dev/deploy/testkit/nacostest"
	"meshlog.dev/deploy/testkit/program"
	"meshlog.dev/deploy/testkit/testport"
	"meshlog.dev/services/mesh/problem"
	"meshlog.dev/services/watcher"
	"meshlog.dev/services/watcher/watchertest"
)

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// register registers an instance, which stays without a provider.
func register(t testing.TB, s *nacostest.Server, namespace, service, ip, metadata string) {
	t.Helper()
	must(t, s.Call(context.WithoutCancel(t.Context()), http.MethodPost, "/nacos/v1/ns/instance", url.Values{
		"namespaceId": {namespace}, "serviceName": {service}, "ip": {ip}, "port": {"8080"}, "ephemeral": {"false"}, "metadata": {metadata},
	}, nil))
}

func deregister(t testing.TB, s *nacostest.Server, namespace, service, ip string) {
	t.Helper()
	must(t, s.Call(context.WithoutCancel(t.Context()), http.MethodDelete, "/nacos/v1/ns/instance", url.Values{
		"namespaceId": {namespace}, "serviceName": {service}, "ip": {ip}, "port": {"8080"}, "ephemeral": {"false"},
	}, nil))
}

// TST-2: the acceptance suite. Each object is a service with an instance at a host name,
// so that it is one ServiceEntry.
func TestSuite(t *testing.T) {
	for name, fault := range map[string]struct {
		down, up func(*nacostest.Server) error
		loses    bool // what came in the last seconds
	}{
		"SIGKILL": {
			func(s *nacostest.Server) error { s.Kill(); return nil },
			func(s *nacostest.Server) error { return s.Start(context.Background()) }, true,
		},
		"SIGSTOP": {(*nacostest.Server).Pause, (*nacostest.Server).Resume, false},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := nacostest.Start(t, nacostest.Options{})
			through := newProxy(t, s)
			namespaces := 0
			watchertest.Run(t, func(t *testing.T) watchertest.Source {
				namespaces++
				namespace := fmt.Sprint("ns", namespaces)
				there := map[string]string{}
				put := func(name, value string) {
					there[name] = value
					register(t, s, namespace, name, name+".example", `{"version":"`+value+`"}`)
				}
				down := false
				t.Cleanup(func() {
					if down {
						must(t, fault.up(s))
					}
				})
				return watchertest.Source{
					Watcher: func() watcher.Watcher {
						w, err := New(Config{Addresses: []string{through.address()}, Namespace: namespace, List: time.Second})
						must(t, err)
						return entriesOnly{w}
					},
					Put: put,
					Delete: func(name string) {
						delete(there, name)
						deregister(t, s, namespace, name, name+".example")
					},
					PutAll: func(values map[string]string) {
						through.hold()
						defer through.release()
						for name, value := range values {
							put(name, value)
						}
					},
					Down: func() { must(t, fault.down(s)); down = true },
					Up: func() {
						must(t, fault.up(s))
						down = false
						for name, value := range there {
							if fault.loses {
								put(name, value)
							}
						}
					},
				}
			})
		})
	}
}

// entriesOnly drops objects of other kinds.
type entriesOnly struct{ watcher.Watcher }

func (w entriesOnly) Run(ctx context.Context, s watcher.Sink) error {
	return w.Watcher.Run(ctx, entrySink{s})
}

type entrySink struct{ watcher.Sink }

func entries(all []watcher.Object) (some []watcher.Object) {
	for _, o := range all {
		if o.Kind == "ServiceEntry" {
			some = append(some, o)
		}
	}
	return some
}

func (s entrySink) List(ctx context.Context, l watcher.Listing) error {
	l.Objects = entries(l.Objects)
	return s.Sink.List(ctx, l)
}

func (s entrySink) Change(ctx context.Context, set []watcher.Object) error {
	if set = entries(set); len(set) == 0 {
		return nil
	}
	return s.Sink.Change(ctx, set)
}

func (s entrySink) Problems(string, []problem.Diagnostic) {}

// proxy passes connections of both ports through, and can hold back what clients send.
type proxy struct {
	port int
	mu   sync.RWMutex // held for writing while it holds back
}

func newProxy(t *testing.T, s *nacostest.Server) *proxy {
	port, err := testport.Pair(grpcOffset)
	must(t, err)
	p := &proxy{port: port}
	for port, target := range map[int]string{p.port: s.Addr, p.port + grpcOffset: s.GRPC} {
		l, err := net.Listen("tcp4", fmt.Sprint("127.0.0.1:", port))
		must(t, err)
		t.Cleanup(func() { _ = l.Close() })
		go func() {
			for {
				from, err := l.Accept()
				if err != nil {
					return
				}
				go p.pass(from, target)
			}
		}()
	}
	return p
}

func (p *proxy) address() string { return fmt.Sprint("127.0.0.1:", p.port) }
func (p *proxy) hold()           { p.mu.Lock() }
func (p *proxy) release()        { p.mu.Unlock() }

func (p *proxy) pass(from net.Conn, target string) {
	defer from.Close()
	to, err := net.Dial("tcp4", target)
	if err != nil {
		return
	}
	defer to.Close()
	go func() {
		_, _ = io.Copy(from, to)
		_ = from.Close()
	}()
	b := make([]byte, 64<<10)
	for {
		n, err := from.Read(b)
		if err != nil {
			return
		}
		p.mu.RLock()
		_, err = to.Write(b[:n])
		p.mu.RUnlock()
		if err != nil {
			return
		}
	}
}

// provider registers instances over gRPC, which are gone when it is.
type provider struct {
	*link
	cancel context.CancelFunc
}

func provide(t testing.TB, s *nacostest.Server, c *Credentials) *provider {
	t.Helper()
	if c == nil {
		c = &Credentials{}
	}
	ctx, cancel := context.WithCancel(context.WithoutCancel(t.Context()))
	l, err := dial(ctx, server{base: "http://" + s.Addr, grpc: s.GRPC}, DefaultNamespace, c, 5*time.Second)
	must(t, err)
	go func() { _ = l.receive(func(*serviceInfo) {}) }() // ends with the link
	p := &provider{l, cancel}
	t.Cleanup(p.end)
	return p
}

func (p *provider) end() {
	p.cancel()
	p.close()
}

func (p *provider) register(t testing.TB, service string, hosts ...map[string]any) {
	t.Helper()
	for _, h := range hosts {
		delete(h, "serviceName") // for r-nacos it counts, group and all, not that of the request
		must(t, p.call(t.Context(), "InstanceRequest", map[string]any{
			"namespace": DefaultNamespace, "serviceName": service, "groupName": DefaultGroup, "type": "registerInstance", "module": "naming", "instance": h,
		}, &answer{}))
	}
}

func watch(t *testing.T, s *nacostest.Server, change func(*Config)) *world {
	t.Helper()
	cfg := Config{Addresses: []string{s.Addr}, List: time.Second}
	if change != nil {
		change(&cfg)
	}
	return follow(t, cfg, defaultLimits())
}

// TST-5, NAC-17: the server is killed and comes back, and so do its providers: no endpoint
// is removed. What has not come back after a minute goes.
func TestTST5Restart(t *testing.T) {
	t.Parallel()
	s := nacostest.Start(t, nacostest.Options{})
	provide(t, s, nil).register(t, "web", at("10.0.0.1"), at("10.0.0.2"))
	provide(t, s, nil).register(t, "old", at("10.0.0.9"))
	o := watch(t, s, nil)
	o.awaitEndpoints(t, "web", "10.0.0.1", "10.0.0.2")
	o.awaitEndpoints(t, "old", "10.0.0.9")
	must(t, s.Restart(t.Context()))
	back := time.Now()
	pause := time.NewTimer(5 * time.Second) // that of a provider
	defer pause.Stop()
	<-pause.C
	p := provide(t, s, nil)
	p.register(t, "web", at("10.0.0.2"))
	p.register(t, "web", at("10.0.0.1"))
	o.awaitLong(t, "old is gone", func() bool { return len(o.endpoints("old")) == 0 })
	if held := time.Since(back); held < 55*time.Second {
		t.Errorf("given up after %s", held)
	}
	o.awaitEndpoints(t, "web", "10.0.0.1", "10.0.0.2")
	for _, n := range o.history["web"] {
		if n != 2 {
			t.Errorf("web had %v endpoints", o.history["web"])
			break
		}
	}
	if o.errs() != "<nil>" || len(o.lists) != 1 {
		t.Errorf("%d listings, runs ended with %s", len(o.lists), o.errs())
	}
}

// TST-5, NAC-17, REG-9: the server comes back with older data, which lack 20 of 30 services.
// They are held for a minute, until a second look agrees; the others are never gone.
func TestTST5OlderData(t *testing.T) {
	t.Parallel()
	s := nacostest.Start(t, nacostest.Options{})
	fill := func(first, last int) {
		for i := first; i <= last; i++ {
			register(t, s, DefaultNamespace, fmt.Sprintf("s%02d", i), "10.0.0.1", "{}")
		}
	}
	fill(1, 10)
	must(t, s.Stop())
	older := t.TempDir()
	must(t, os.CopyFS(older, os.DirFS(s.Data)))
	must(t, s.Start(t.Context()))
	fill(11, 30)
	o := watch(t, s, nil)
	o.awaitTrue(t, "30 services", func() bool { return len(o.services()) == 30 })
	must(t, s.Stop())
	must(t, s.Wipe())
	must(t, os.CopyFS(s.Data, os.DirFS(older)))
	must(t, s.Start(t.Context()))
	back := time.Now()
	has := func(name string) bool { return len(o.endpoints(name)) == 1 }
	o.awaitLong(t, "what the older data lack is gone", func() bool { return !has("s11") && !has("s30") })
	if held := time.Since(back); held < 55*time.Second {
		t.Errorf("given up after %s", held)
	}
	for i := 1; i <= 10; i++ {
		if name := fmt.Sprintf("s%02d", i); !has(name) || slices.Contains(o.history[name], 0) {
			t.Errorf("%s had %v endpoints", name, o.history[name])
		}
	}
}

// TST-5, REG-10: the server is paused for a minute: the source is down in 15 s, nothing is
// removed, and afterwards changes arrive again.
func TestTST5Paused(t *testing.T) {
	t.Parallel()
	s := nacostest.Start(t, nacostest.Options{})
	register(t, s, DefaultNamespace, "web", "10.0.0.1", "{}")
	o := watch(t, s, nil)
	o.awaitEndpoints(t, "web", "10.0.0.1")
	must(t, s.Pause())
	paused := time.Now()
	o.awaitTrue(t, "an error", func() bool { return strings.Contains(o.errs(), "no server has answered") })
	if took := time.Since(paused); took > 21*time.Second {
		t.Errorf("down after %s", took)
	}
	minute := time.NewTimer(time.Until(paused.Add(time.Minute)))
	defer minute.Stop()
	<-minute.C
	must(t, s.Resume())
	http.DefaultClient.CloseIdleConnections() // the server ends those that it could not serve
	register(t, s, DefaultNamespace, "web", "10.0.0.2", "{}")
	o.awaitEndpoints(t, "web", "10.0.0.1", "10.0.0.2")
	for _, n := range o.history["web"] {
		if n == 0 {
			t.Errorf("web had %v endpoints", o.history["web"])
		}
	}
}

// TST-5, NAC-16: the last instance goes, and the service with it; of 30 services that lose
// all instances at once none does for a minute.
func TestTST5Emptied(t *testing.T) {
	t.Parallel()
	s := nacostest.Start(t, nacostest.Options{})
	alone, many := provide(t, s, nil), provide(t, s, nil)
	alone.register(t, "web", at("10.0.0.1"))
	o := watch(t, s, nil)
	o.awaitEndpoints(t, "web", "10.0.0.1")
	alone.end()
	gone := time.Now()
	o.awaitEndpoints(t, "web")
	if took := time.Since(gone); took < 5*time.Second || took > 9*time.Second {
		t.Errorf("believed after %s", took)
	}
	o.awaitLong(t, "web is gone", func() bool { return len(o.services()) == 0 })
	for i := range 30 {
		many.register(t, fmt.Sprintf("s%02d", i), at("10.0.0.2"))
	}
	o.awaitTrue(t, "services", func() bool { return len(o.services()) == 30 })
	many.end()
	gone = time.Now()
	o.awaitLong(t, "the services are empty", func() bool {
		for _, name := range o.services() {
			if len(o.endpoints(name)) > 0 {
				return false
			}
		}
		return true
	})
	if took := time.Since(gone); took < time.Minute {
		t.Errorf("believed after %s", took)
	}
}

// TST-5, NAC-12: the token ends while the watcher follows: it gets another one, and misses
// nothing.
func TestTST5LoginEnds(t *testing.T) {
	t.Parallel()
	s := nacostest.Start(t, nacostest.Options{User: "mesh", Password: "log-of-the-mesh", Env: []string{"RNACOS_API_LOGIN_TIMEOUT=5"}})
	c := account(t, "log-of-the-mesh")
	p := provide(t, s, &c)
	p.register(t, "web", at("10.0.0.1"))
	o := watch(t, s, func(cfg *Config) { cfg.Credentials = c })
	o.awaitEndpoints(t, "web", "10.0.0.1")
	later := time.NewTimer(11 * time.Second) // two lifetimes
	defer later.Stop()
	<-later.C
	p.register(t, "api", at("10.0.0.2"))
	o.awaitEndpoints(t, "api", "10.0.0.2")
	if o.errs() != "<nil>" {
		t.Errorf("runs ended with %s", o.errs())
	}
	wrong := account(t, "wrong")
	refused := watch(t, s, func(cfg *Config) { cfg.Credentials = wrong })
	refused.awaitTrue(t, "an error", func() bool { return strings.Contains(refused.errs(), "log in with "+wrong.UsernameFile) })
}

// TST-5, NAC-13 to 15: names of Dubbo, weights, groups, and the protect threshold.
func TestTST5Instances(t *testing.T) {
	t.Parallel()
	s := nacostest.Start(t, nacostest.Options{})
	p := provide(t, s, nil)
	p.register(t, "providers:com.x.Hello:1.0:g", at("10.0.0.1"))
	p.register(t, "consumers:com.x.Hello:1.0:g", at("10.0.0.2"))
	p.register(t, "web", at("10.0.0.3", "weight", 0.5), at("10.0.0.4", "weight", 0), at("10.0.0.5", "enabled", false), at("10.0.0.6", "clusterName", "hz"))
	must(t, s.Call(t.Context(), http.MethodPost, "/nacos/v1/ns/instance", url.Values{
		"serviceName": {"web"}, "groupName": {"g"}, "ip": {"10.0.0.7"}, "port": {"8080"}, "ephemeral": {"false"},
	}, nil))
	o := watch(t, s, func(c *Config) { c.Groups = []string{DefaultGroup, "g"} })
	o.awaitServices(t, "g@@web", "providers:com.x.Hello:1.0:g", "web")
	o.awaitEndpoints(t, "web", "10.0.0.3", "10.0.0.4 draining", "10.0.0.6")
	o.awaitEndpoints(t, "g@@web", "10.0.0.7")

	// Over HTTP without heartbeats an instance becomes unhealthy after 18 s.
	must(t, s.Call(t.Context(), http.MethodPost, "/nacos/v1/ns/instance", url.Values{
		"serviceName": {"sick"}, "ip": {"10.0.0.8"}, "port": {"8080"}, "ephemeral": {"true"},
	}, nil))
	o.awaitEndpoints(t, "sick", "10.0.0.8")
	o.awaitTrue(t, "a warning", func() bool { return strings.Contains(o.told(), "health unknown") })
	o.awaitEndpoints(t, "sick")
}

// TST-4: Nacos' own SDK is the provider. Its instances arrive, with their weights, go when
// it takes them back, and stay while the server restarts, because it registers them again.
func TestTST4SDK(t *testing.T) {
	t.Parallel()
	s := nacostest.Start(t, nacostest.Options{})
	p := startSDK(t, s)
	p.obey(t, "register web 10.0.0.1 8080 1")
	p.obey(t, "register api 10.0.0.3 8080 0")
	o := watch(t, s, nil)
	o.awaitEndpoints(t, "web", "10.0.0.1")
	o.awaitEndpoints(t, "api", "10.0.0.3 draining")
	p.obey(t, "deregister api 10.0.0.3 8080")
	o.awaitEndpoints(t, "api")
	must(t, s.Restart(t.Context()))
	o.awaitLong(t, "the SDK is back", func() bool { return registered(t, s, "web") == 1 })
	o.awaitTrue(t, "nothing is doubted", func() bool { return o.told() == "" })
	o.awaitEndpoints(t, "web", "10.0.0.1")
	if slices.Contains(o.history["web"], 0) {
		t.Errorf("web had %v endpoints", o.history["web"])
	}
}

// registered returns how many instances of a service the server has.
func registered(t testing.TB, s *nacostest.Server, service string) int {
	var list struct{ Hosts []struct{ IP string } }
	if err := s.Call(context.WithoutCancel(t.Context()), http.MethodGet, "/nacos/v1/ns/instance/list", url.Values{"serviceName": {service}}, &list); err != nil {
		return 0
	}
	return len(list.Hosts)
}

// sdk is a running deploy/e2e/tools/nacosprovider.
type sdk struct {
	in  io.Writer
	out *bufio.Scanner
}

func startSDK(t *testing.T, s *nacostest.Server) *sdk {
	t.Helper()
	root, err := program.Root()
	must(t, err)
	bin := filepath.Join(t.TempDir(), "nacosprovider")
	build := exec.CommandContext(t.Context(), "go", "build", "-o", bin, ".")
	build.Dir = filepath.Join(root, "deploy", "e2e", "tools", "nacosprovider")
	build.Env = append(os.Environ(), "GOWORK=off")
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("go build in %s: %v (is the module proxy reachable?)\n%s", build.Dir, err, out)
	}
	cmd := exec.CommandContext(t.Context(), bin, s.Addr, t.TempDir())
	in, err := cmd.StdinPipe()
	must(t, err)
	out, err := cmd.StdoutPipe()
	must(t, err)
	cmd.Stderr = os.Stderr
	must(t, cmd.Start())
	t.Cleanup(func() {
		_ = in.Close()
		_ = cmd.Wait() // t.Context, which has ended, may have killed it
	})
	return &sdk{in, bufio.NewScanner(out)}
}

// obey has the provider carry out a command. The SDK also writes to the output.
func (p *sdk) obey(t *testing.T, command string) {
	t.Helper()
	_, err := fmt.Fprintln(p.in, command)
	must(t, err)
	for p.out.Scan() {
		switch line := p.out.Text(); line {
		case "ok":
			return
		default:
			t.Log(line)
		}
	}
	t.Fatalf("%s: the provider has ended", command)
}

// awaitLong is awaitTrue for what takes a minute or two.
func (o *world) awaitLong(t *testing.T, what string, f func() bool) {
	t.Helper()
	o.within(t, 3*time.Minute, what, "true", func() string { return fmt.Sprint(f()) })
}
