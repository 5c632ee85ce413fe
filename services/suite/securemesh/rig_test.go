package securemesh_test

import (
	"bytes"
	"context"
	"crypto/x509"
	"encoding/json"
	"encoding/pem"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"meshlog.dev/deploy/testkit/certtest"
	"meshlog.dev/deploy/testkit/testport"
	"meshlog.dev/services/internal/process"
	"meshlog.dev/services/operate/cli"
	"meshlog.dev/services/operate/operatetest"
	"meshlog.dev/services/roles/agent"
	"meshlog.dev/services/roles/up"
	"meshlog.dev/services/suite/envoytest"
)

func must(t testing.TB, errs ...error) {
	t.Helper()
	if err := errors.Join(errs...); err != nil {
		t.Fatal(err)
	}
}

func port(t testing.TB) int {
	t.Helper()
	p, err := testport.TCP()
	must(t, err)
	return p
}

func at(ip string, port int) string { return fmt.Sprintf("%s:%d", ip, port) }

// mesh is a running `meshlog up --ca`.
type mesh struct {
	*testing.T
	dir     string
	config  string // the directory that it watches
	data    string
	servers string // the file with the CA of the frontend's certificate
	roots   string // the file with the root by which agents begin to trust the CA
	xds, ca string
}

// start runs a mesh that serves these documents. set changes its settings; nil: it does not.
func start(t *testing.T, documents string, set func(*mesh, *up.Settings)) *mesh {
	m := &mesh{T: t, dir: t.TempDir(), config: t.TempDir()}
	m.data = filepath.Join(m.dir, "data")
	certtest.WriteFile(t, m.config, "mesh.yaml", []byte(documents))
	servers := certtest.NewCA("servers")
	m.servers = certtest.WriteFile(t, m.dir, "servers.pem", servers.PEM())
	s := up.DefaultSettings()
	s.Config, s.Data, s.CA = m.config, m.data, true
	s.Authority.Listen, s.Authority.MaxTTL, s.Authority.InsecureKeyFile = "127.0.0.1:0", time.Minute, true
	s.Frontend.Listen, s.Frontend.TLSListen, s.Frontend.MeshClients = "", "127.0.0.1:0", true
	s.Frontend.TLS.Cert, s.Frontend.TLS.Key = servers.Server("xds", time.Now().Add(time.Hour)).Write(t, m.dir, "xds")
	if set != nil {
		set(m, s)
	}
	must(t, s.Check())
	lines, _ := m.run(func(ctx context.Context, p *process.Process) error { return up.Run(ctx, p, s) })
	m.xds = lines.Wait(t, "up", "xds-tls")
	m.ca = lines.Wait(t, "serving certificates", "port")
	lines.Wait(t, "serving", "version")
	var roots string
	m.until("a version with the roots", time.Minute, func() (err error) {
		roots, err = m.try("ca", "roots")
		return err
	})
	m.roots = certtest.WriteFile(t, m.dir, "root.pem", []byte(roots))
	return m
}

// run runs a part until stop, or until the test ends.
func (m *mesh) run(run func(context.Context, *process.Process) error) (lines operatetest.Events, stop func()) {
	m.Helper()
	log, lines := operatetest.NewEvents()
	admin, err := process.NewAdmin("127.0.0.1:0")
	must(m.T, err)
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- run(ctx, &process.Process{Build: "test", Log: log, Admin: admin}) }()
	stop = sync.OnceFunc(func() {
		cancel()
		if err := <-ended; err != nil {
			m.Errorf("a part ended: %v", err)
		}
	})
	m.Cleanup(stop)
	return lines, stop
}

// meshlog runs a command and returns what it prints.
func (m *mesh) meshlog(args ...string) string {
	m.Helper()
	said, err := m.try(args...)
	must(m.T, err)
	return said
}

// try is meshlog for a command that may fail.
func (m *mesh) try(args ...string) (string, error) {
	var out bytes.Buffer
	cmd := cli.New()
	cmd.SilenceErrors, cmd.SilenceUsage = true, true
	cmd.SetOut(&out)
	cmd.SetErr(io.Discard)
	cmd.SetArgs(append(args, "--data", m.data))
	err := cmd.ExecuteContext(m.Context())
	return out.String(), err
}

// workload is an agent with its Envoy.
type workload struct {
	*mesh
	name     string
	settings *agent.Settings
	lines    operatetest.Events
	stop     func()
}

// workload runs the agent of a workload: its namespace and account are name, and ip is its
// address. Frontends are reached at xds.
func (m *mesh) workload(name, ip, xds string, set func(*agent.Settings)) *workload {
	m.Helper()
	dir, err := os.MkdirTemp("", "agent") // a socket's name is short
	must(m.T, err)
	m.Cleanup(func() { _ = os.RemoveAll(dir) })
	s := agent.DefaultSettings()
	s.Environment = nil
	s.Name, s.Namespace, s.Account, s.IPs, s.Labels = name+"-1", name, name, []string{ip}, []string{"app=" + name}
	s.Envoy, s.Dir, s.EnvoyAdmin, s.Concurrency = envoytest.Envoy(m), dir, at("127.0.0.1", port(m)), 1
	s.XDS, s.XDSServerName, s.XDSCA = []string{xds}, "localhost", m.servers
	s.CA, s.CAServerName, s.CARoots = m.ca, "localhost", m.roots
	s.JoinTokenFile = certtest.WriteFile(m, m.dir, name+".token", []byte(m.meshlog("ca", "token", "--namespace", name, "--account", name)))
	s.CertificatesOut = filepath.Join(m.dir, name+".certs")
	s.Ready, s.TTL, s.Drain, s.TerminationDrain = at("127.0.0.1", port(m)), time.Minute, 2*time.Second, 0
	s.EnvoyArgs = []string{"--log-level", "warning"}
	if set != nil {
		set(s)
	}
	must(m.T, s.Check())
	w := &workload{mesh: m, name: name, settings: s}
	w.lines, w.stop = m.run(func(ctx context.Context, p *process.Process) error { return s.Run(ctx, p, envoyLog{m.T, name}) })
	return w
}

// envoyLog puts what an Envoy says into the test's log.
type envoyLog struct {
	t    *testing.T
	name string
}

func (l envoyLog) Write(b []byte) (int, error) {
	if l.t.Context().Err() == nil {
		l.t.Logf("Envoy of %s: %s", l.name, bytes.TrimSpace(b))
	}
	return len(b), nil
}

// ready asks for the readiness of the workload's proxy.
func (w *workload) ready() error {
	return get("http://"+w.settings.Ready+"/healthz/ready", "")
}

// get asks for a URL under the name of a host.
func get(url, host string) error {
	return getBy(http.DefaultClient, url, host)
}

func getBy(c *http.Client, url, host string) error {
	r, err := http.NewRequest(http.MethodGet, url, nil)
	if err != nil {
		return err
	}
	r.Host = host
	resp, err := c.Do(r)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	b, err := io.ReadAll(resp.Body)
	if err == nil && resp.StatusCode != http.StatusOK {
		err = fmt.Errorf("%s: %s", resp.Status, b)
	}
	return err
}

// certificate returns the workload's certificate now.
func (w *workload) certificate() (*x509.Certificate, error) {
	b, err := os.ReadFile(filepath.Join(w.settings.CertificatesOut, "tls.crt"))
	if err != nil {
		return nil, err
	}
	block, _ := pem.Decode(b)
	return x509.ParseCertificate(block.Bytes)
}

// until waits for a condition.
func (m *mesh) until(what string, within time.Duration, is func() error) {
	m.Helper()
	ctx, cancel := context.WithTimeout(m.Context(), within)
	defer cancel()
	tick := time.NewTicker(50 * time.Millisecond)
	defer tick.Stop()
	for {
		err := is()
		if err == nil {
			return
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			m.Fatalf("%s: %v", what, err)
		}
	}
}

// load sends a request every 5 ms, one after the other, until stop, which returns how many it sent.
func (m *mesh) load(url, host string) (stop func() int64) {
	var n atomic.Int64
	end := make(chan struct{})
	var all sync.WaitGroup
	client := &http.Client{Timeout: 20 * time.Second}
	all.Go(func() {
		tick := time.NewTicker(5 * time.Millisecond)
		defer tick.Stop()
		for {
			select {
			case <-end:
				return
			case <-tick.C:
			}
			if err := getBy(client, url, host); err != nil {
				m.Errorf("request %d at %s: %v", n.Load(), time.Now().Format(time.TimeOnly), err)
				return
			}
			n.Add(1)
		}
	})
	once := sync.OnceFunc(func() { close(end); all.Wait() })
	m.Cleanup(once)
	return func() int64 { once(); return n.Load() }
}

// root is a root of the mesh, as `meshlog ca status` shows it.
type root struct {
	Root    string   `json:"root"`
	State   string   `json:"state"`
	Waiting []string `json:"waiting"`
	Proxies []struct {
		Proxy string `json:"proxy"`
	} `json:"proxies"`
}

// status returns the roots by their states.
func (m *mesh) status() map[string]root {
	m.Helper()
	var views []struct {
		Roots []root `json:"roots"`
	}
	said := m.meshlog("ca", "status", "-o", "json")
	must(m.T, json.Unmarshal([]byte(said), &views))
	all := map[string]root{}
	for _, v := range views {
		for _, r := range v.Roots {
			all[r.State] = r
		}
	}
	return all
}

// relay passes connections to an address on, and can fall asleep: then it keeps them
// open and passes nothing on, as a host does that is suspended.
type relay struct {
	to string
	l  net.Listener

	mu     sync.Mutex
	conns  map[net.Conn]struct{}
	asleep chan struct{} // closed when it wakes; nil: it is awake
}

func newRelay(t *testing.T, to string) *relay {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	must(t, err)
	r := &relay{to: to, l: l, conns: map[net.Conn]struct{}{}}
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			go r.pass(c)
		}
	}()
	t.Cleanup(func() { _ = l.Close(); r.wake(); r.cut() })
	return r
}

func (r *relay) pass(c net.Conn) {
	r.wait()
	up, err := net.Dial("tcp", r.to)
	if err != nil {
		_ = c.Close()
		return
	}
	r.mu.Lock()
	r.conns[c], r.conns[up] = struct{}{}, struct{}{}
	r.mu.Unlock()
	var both sync.WaitGroup
	for _, way := range [][2]net.Conn{{c, up}, {up, c}} {
		both.Go(func() {
			b := make([]byte, 32<<10)
			for {
				n, err := way[0].Read(b)
				r.wait()
				if _, werr := way[1].Write(b[:n]); err != nil || werr != nil {
					_, _ = c.Close(), up.Close()
					return
				}
			}
		})
	}
	both.Wait()
	r.mu.Lock()
	delete(r.conns, c)
	delete(r.conns, up)
	r.mu.Unlock()
}

func (r *relay) wait() {
	r.mu.Lock()
	asleep := r.asleep
	r.mu.Unlock()
	if asleep != nil {
		<-asleep
	}
}

func (r *relay) sleep() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.asleep = make(chan struct{})
}

func (r *relay) wake() {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.asleep != nil {
		close(r.asleep)
		r.asleep = nil
	}
}

// cut ends all connections.
func (r *relay) cut() {
	r.mu.Lock()
	defer r.mu.Unlock()
	for c := range r.conns {
		_ = c.Close()
	}
}
