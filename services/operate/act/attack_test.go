package act

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/spf13/cobra"

	"meshlog.dev/deploy/testkit/testport"
	"meshlog.dev/proto/ident"
	"meshlog.dev/services/internal/bus"
	"meshlog.dev/services/internal/busauth"
	"meshlog.dev/services/internal/process"
	"meshlog.dev/services/operate/command"
	"meshlog.dev/services/operate/inspect"
	"meshlog.dev/services/operate/operatetest"
	"meshlog.dev/services/roles/builder"
	watcherroles "meshlog.dev/services/roles/watcher"
	"meshlog.dev/services/watcher/file"
	"meshlog.dev/store"
	"meshlog.dev/store/natsfeed"
)

// service is a document with this address.
func service(address string) string {
	return fmt.Sprintf(`apiVersion: networking.istio.io/v1
kind: ServiceEntry
metadata: {name: a, namespace: prod}
spec:
  hosts: [a.example.com]
  ports: [{number: 80, name: http, protocol: HTTP}]
  resolution: STATIC
  endpoints: [{address: %s}]
`, address)
}

// run runs a command, and returns what it prints.
func run(t *testing.T, cmd *cobra.Command, args ...string) (string, error) {
	t.Helper()
	root := &cobra.Command{SilenceErrors: true, SilenceUsage: true}
	root.AddCommand(cmd)
	var out bytes.Buffer
	root.SetOut(&out)
	root.SetArgs(append([]string{cmd.Name()}, args...))
	err := root.ExecuteContext(t.Context())
	return out.String(), err
}

// BUS-4: an administrator's client writes on the version chain. The leader and
// the frontend say so and go on; the next version follows the last good one.
func TestAForeignMessageOnTheVersionChain(t *testing.T) {
	t.Parallel()
	m := operatetest.Start(t, map[string]string{"a.yaml": service("10.0.0.1")})
	target := &command.Target{Data: m.Data, Bus: process.DefaultBus()}
	target.AsAdmin()
	defer target.Close()
	nc, err := target.Conn()
	if err != nil {
		t.Fatal(err)
	}
	js, err := jetstream.New(nc)
	if err != nil {
		t.Fatal(err)
	}
	for range 3 {
		if _, err := js.Publish(t.Context(), natsfeed.SubjectPrefix+"mesh", []byte("no version")); err != nil {
			t.Fatal(err)
		}
	}
	m.Events.Wait(t, "the newest messages of the version chain are no versions; they are passed over, and the next version follows the last good one", "newest")
	if out, err := run(t, inspect.Status(), "--data", m.Data); err == nil || !strings.Contains(out, "of the version chain is no version") {
		t.Errorf("status: %v, %s; want that it names the message", err, out)
	}
	operatetest.WriteFiles(t, m.Config, map[string]string{"a.yaml": service("10.0.0.2")})
	m.Events.Wait(t, "serving", "version")
	chain, err := target.Chain(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	head, err := chain.Head(t.Context())
	if err != nil || head.Foreign != nil {
		t.Errorf("the head is %s, with foreign messages behind it: %v, %v", head.Version(), head.Foreign, err)
	}
	if _, err := chain.Fetch(t.Context(), head.Version()); err != nil {
		t.Error(err)
	}
}

// BUS-4, on three servers: the next version follows the last good one.
func TestAForeignMessageOnThreeServers(t *testing.T) {
	t.Parallel()
	shard := ident.Shard{Source: "file", Instance: "default"}
	m := startMesh(t, 3, 64, shard, bus.Builder(), bus.Operator(), bus.Watcher(shard))
	m.events.Wait(t, "published", "version")
	operator, err := bus.Connect(m.options(bus.Operator()))
	if err != nil {
		t.Fatal(err)
	}
	defer operator.Close()
	chain, err := natsfeed.Open(t.Context(), operator, natsfeed.Options{})
	if err != nil {
		t.Fatal(err)
	}
	m.served(chain, "10.0.0.1")
	admin, err := bus.Connect(m.options(bus.Admin()))
	if err != nil {
		t.Fatal(err)
	}
	defer admin.Close()
	for range 3 {
		if answer, err := admin.Request(natsfeed.SubjectPrefix+"mesh", []byte("no version"), 5*time.Second); err != nil || bytes.Contains(answer.Data, []byte(`"error"`)) {
			t.Fatalf("write on the chain: %v", err)
		}
	}
	m.events.Wait(t, "the newest messages of the version chain are no versions; they are passed over, and the next version follows the last good one", "newest")
	m.offer("10.0.0.2")
	m.served(chain, "10.0.0.2")
}

// mesh is one NATS server or several with a user for each role, and processes of
// their own.
type mesh struct {
	t       *testing.T
	dir     string // keys and the servers' configuration
	config  string // documents
	servers []*server.Server
	events  operatetest.Events
}

// url returns the addresses of the servers.
func (m *mesh) url() string {
	var all []string
	for _, s := range m.servers {
		all = append(all, s.ClientURL())
	}
	return strings.Join(all, ",")
}

// reload has the servers read their configuration again.
func (m *mesh) reload() {
	m.t.Helper()
	for _, s := range m.servers {
		if err := s.Reload(); err != nil {
			m.t.Fatal(err)
		}
	}
}

func (m *mesh) users(roles ...bus.Role) {
	m.t.Helper()
	if _, err := busauth.WriteUsers(m.dir, process.DefaultDomain, roles); err != nil {
		m.t.Fatal(err)
	}
}

// offer makes the source offer a service at an address.
func (m *mesh) offer(address string) {
	operatetest.WriteFiles(m.t, m.config, map[string]string{"a.yaml": service(address)})
}

// served waits until a version has the service at this address, and returns it.
func (m *mesh) served(chain *natsfeed.Feed, address string) store.Stored {
	m.t.Helper()
	for {
		head := m.head(chain)
		for r := range head.Snapshot.Rows() {
			if bytes.Contains(r.Value, []byte(address)) {
				return head
			}
		}
		m.events.Wait(m.t, "published", "version")
	}
}

func (m *mesh) key(r bus.Role) string { return filepath.Join(m.dir, r.KeyName()) }

func (m *mesh) options(r bus.Role) bus.ConnectOptions {
	return bus.ConnectOptions{URL: m.url(), NkeyFile: m.key(r), Role: r, Name: r.String(), Log: slog.New(slog.DiscardHandler)}
}

func (m *mesh) connect(r bus.Role) func(context.Context) (*bus.Conn, error) {
	return func(context.Context) (*bus.Conn, error) { return bus.Connect(m.options(r)) }
}

// start runs a process until the test ends.
func (m *mesh) start(run func(context.Context, *process.Process) error) {
	m.t.Helper()
	admin, err := process.NewAdmin("127.0.0.1:0")
	if err != nil {
		m.t.Fatal(err)
	}
	p := &process.Process{Build: "test", Log: slog.New(slog.NewJSONHandler(m.events, nil)), Admin: admin}
	ctx, cancel := context.WithCancel(m.t.Context())
	ended := make(chan error, 1)
	go func() { ended <- run(ctx, p) }()
	m.t.Cleanup(func() {
		cancel()
		if err := <-ended; err != nil && !errors.Is(err, context.Canceled) {
			m.t.Error(err)
		}
	})
}

// startMesh starts that many servers, a builder, and a watcher of a document.
func startMesh(t *testing.T, servers int, logMiB int64, watcher ident.Shard, roles ...bus.Role) *mesh {
	t.Helper()
	m := &mesh{t: t, dir: t.TempDir(), config: t.TempDir(), events: make(operatetest.Events, 10_000)}
	m.users(roles...)
	m.offer("10.0.0.1")
	m.startServers(servers)
	settings := builder.DefaultSettings()
	settings.LogMiB = logMiB
	m.start(func(ctx context.Context, p *process.Process) error {
		return builder.Run(ctx, builder.Options{
			Domain: process.DefaultDomain, ID: "b", Data: t.TempDir(), Replicas: servers, Settings: settings, Connect: m.connect(bus.Builder()), Process: p,
		})
	})
	m.start(func(ctx context.Context, p *process.Process) error {
		return watcherroles.Run(ctx, watcherroles.Options{
			Domain: process.DefaultDomain, Shard: watcher, Holder: "w", Watcher: file.New(m.config), Connect: m.connect(bus.Watcher(watcher)), Process: p,
		})
	})
	return m
}

func (m *mesh) startServers(n int) {
	m.t.Helper()
	var ports []int // each server knows the ports of all before any of them starts
	var routes []string
	for range n {
		port, err := testport.TCP()
		if err != nil {
			m.t.Fatal(err)
		}
		ports, routes = append(ports, port), append(routes, fmt.Sprintf("\"nats://127.0.0.1:%d\"", port))
	}
	for i, port := range ports {
		text := fmt.Appendf(nil, "listen: \"127.0.0.1:-1\"\ninclude %q\njetstream { store_dir: %q }\n", busauth.ConfigName, m.t.TempDir())
		if n > 1 {
			text = fmt.Appendf(text, "server_name: n%d\ncluster { name: test, listen: \"127.0.0.1:%d\", routes: [%s] }\n", i, port, strings.Join(routes, ", "))
		}
		conf := filepath.Join(m.dir, fmt.Sprintf("nats-%d.conf", i))
		if err := os.WriteFile(conf, text, 0o600); err != nil {
			m.t.Fatal(err)
		}
		o, err := server.ProcessConfigFile(conf)
		if err != nil {
			m.t.Fatal(err)
		}
		o.NoSigs, o.NoLog = true, true
		s, err := server.NewServer(o)
		if err != nil {
			m.t.Fatal(err)
		}
		s.Start()
		m.t.Cleanup(func() { s.Shutdown(); s.WaitForShutdown() })
		m.servers = append(m.servers, s)
	}
	for _, s := range m.servers {
		if !s.ReadyForConnections(time.Minute) {
			m.t.Fatal("a server does not start")
		}
	}
}

// head returns the newest version.
func (m *mesh) head(chain *natsfeed.Feed) store.Stored {
	m.t.Helper()
	head, err := command.FetchHead(m.t.Context(), chain)
	if err != nil {
		m.t.Fatal(err)
	}
	return head
}

// BUS-6: a client with a watcher's key fills the log, so that no process can
// write. The alert names the shard; the operator removes the user and raises the
// log, and writing resumes within 60 s of the alert. What is served stays.
func TestAWatcherFillsTheLog(t *testing.T) {
	for _, servers := range []int{1, 3} {
		t.Run(fmt.Sprint("servers=", servers), func(t *testing.T) {
			t.Parallel()
			fillTheLog(t, servers)
		})
	}
}

func fillTheLog(t *testing.T, servers int) {
	honest, loud := ident.Shard{Source: "file", Instance: "default"}, ident.Shard{Source: "file", Instance: "loud"}
	roles := []bus.Role{bus.Builder(), bus.Operator(), bus.Watcher(honest)}
	const logMiB = 16
	m := startMesh(t, servers, logMiB, honest, append(roles, bus.Watcher(loud))...)
	m.events.Wait(t, "published", "version")
	operator, err := bus.Connect(m.options(bus.Operator()))
	if err != nil {
		t.Fatal(err)
	}
	defer operator.Close()
	chain, err := natsfeed.Open(t.Context(), operator, natsfeed.Options{})
	if err != nil {
		t.Fatal(err)
	}
	before := m.served(chain, "10.0.0.1")

	attacker, err := bus.Connect(m.options(bus.Watcher(loud)))
	if err != nil {
		t.Fatal(err)
	}
	defer attacker.Close()
	garbage := make([]byte, 256<<10)
	write := func(n int) error {
		answer, err := attacker.Request("meshlog.ev.mesh.file.loud.Resource.x", garbage[:n], 5*time.Second)
		if err == nil && bytes.Contains(answer.Data, []byte(`"error"`)) {
			err = fmt.Errorf("%s", answer.Data)
		}
		return err
	}
	for _, n := range []int{len(garbage), 1 << 10, 0} { // until not even a small record fits
		for err = nil; err == nil; {
			err = write(n)
		}
	}
	if !strings.Contains(err.Error(), "maximum bytes exceeded") {
		t.Fatalf("the log refuses the attacker with %v, want that it is full", err)
	}
	if shards := m.events.Wait(t, "shards take half of the log: when it is full, no process can write", "shards"); shards != "file/loud" {
		t.Errorf("the alert names %q, want file/loud", shards)
	}
	alerted := time.Now()
	m.offer("10.0.0.2")
	m.events.Wait(t, "cannot append; trying again", "error")

	on := []string{"--bus", m.url(), "--bus-nkey", m.key(bus.Operator())}
	if out, err := run(t, inspect.Status(), on...); err == nil || !strings.Contains(out, "file/loud takes 15 of the 16 MiB") {
		t.Errorf("status: %v, %s; want that it names file/loud", err, out)
	}
	if out, err := run(t, inspect.Sources(), on...); err != nil || !strings.Contains(out, "file/loud: its records take 9") {
		t.Errorf("sources: %v, %s; want that it names file/loud", err, out)
	}
	if head := m.head(chain); head.Version() != before.Version() {
		t.Errorf("version %s was published on a full log, after %s", head.Version(), before.Version())
	}
	m.users(roles...) // without the loud watcher
	m.reload()
	if out, err := run(t, Streams(), "--bus", m.url(), "--bus-nkey", m.key(bus.Admin()), "--log-mib", "32", "--apply"); err != nil {
		t.Fatalf("streams --apply: %v, %s", err, out)
	}
	after := m.served(chain, "10.0.0.2")
	if took := time.Since(alerted); took > time.Minute {
		t.Errorf("writing resumed %s after the alert, want 60 s at most", took)
	} else {
		t.Logf("writing resumed %s after the alert", took)
	}
	if d := store.Diff(before.Snapshot, after.Snapshot); len(d.Put) != 1 || len(d.Remove) != 0 {
		t.Errorf("%d rows changed and %d are gone, want the changed service alone", len(d.Put), len(d.Remove))
	}
	if err := write(0); err == nil {
		t.Error("the removed user still writes")
	}
}
