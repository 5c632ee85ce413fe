package rig

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"meshlog.dev/deploy/testkit/program"
	"meshlog.dev/deploy/testkit/testport"
)

// Server is one of our programs, with the ports that it was given.
type Server struct {
	*program.Process
	Admin int  // health, metrics, debug
	XDS   int  // 0 if it serves no xDS
	TLS   *TLS // for xDS; nil: xDS is served without TLS
	Place Place
	// Started is when its process was last started.
	Started time.Time

	program, name, dir string
	args               []string
}

// startServer runs bin/<program> with the ports and the place of s and additional
// flags.
func startServer(program, name, dir string, s Server, flags ...string) (*Server, error) {
	var err error
	if s.Admin, err = testport.TCP(); err != nil {
		return nil, err
	}
	s.program, s.name, s.dir = program, name, dir
	s.args = append(s.args, flags...)
	s.args = append(s.args, "--admin", loopback(s.Admin), "--pprof")
	switch at := net.JoinHostPort(s.Place.host(), strconv.Itoa(s.XDS)); {
	case s.XDS == 0:
	case s.TLS != nil:
		s.args = append(s.args, "--listen", "", "--tls-listen", at,
			"--tls-cert", s.TLS.Cert, "--tls-key", s.TLS.Key, "--tls-client-ca", s.TLS.CA)
	default:
		s.args = append(s.args, "--listen", at)
	}
	return &s, s.RestartAs(program)
}

func loopback(port int) string { return fmt.Sprintf("127.0.0.1:%d", port) }

// Restart starts the server again with the same flags, files and ports. The old
// process must have ended.
func (s *Server) Restart() error { return s.RestartAs(s.program) }

// RestartWith is Restart with additional environment variables, for this run.
func (s *Server) RestartWith(env ...string) error { return s.RestartAs(s.program, env...) }

// RestartAs is RestartWith of another program of bin/, for this run.
func (s *Server) RestartAs(name string, env ...string) error {
	bin, err := Bin(name)
	if err != nil {
		return err
	}
	s.Started = time.Now()
	s.Process, err = program.Start(s.name, s.dir, s.Place.Command(append([]string{bin}, s.args...)...), env...)
	return err
}

// RSS returns the resident memory of the server, in bytes.
func (s *Server) RSS() (int64, error) { return RSS(s.PID()) }

// RSS returns the resident memory of a process, in bytes.
func RSS(pid int) (int64, error) {
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	if err != nil {
		return 0, err
	}
	var kib int64
	for line := range strings.Lines(string(b)) {
		if _, err := fmt.Sscanf(line, "VmRSS: %d kB", &kib); err == nil {
			return kib << 10, nil
		}
	}
	return 0, fmt.Errorf("/proc/%d/status has no VmRSS", pid)
}

// get asks the admin interface; any code but 200 is an error.
func (s *Server) get(ctx context.Context, path string) ([]byte, error) {
	return httpGetWith(ctx, s.Place.client(), "http://"+loopback(s.Admin)+path)
}

// Ready waits until the server reports that it is ready.
func (s *Server) Ready(ctx context.Context) error {
	return s.UntilAlive(ctx, s.Name+" to be ready", func(ctx context.Context) error {
		_, err := s.get(ctx, "/readyz")
		return err
	})
}

// answer bounds a request to the admin interface, because a paused process never
// answers.
const answer = 2 * time.Second

// Debug reads the server's report under /debug/<name>.
func (s *Server) Debug(ctx context.Context, name string, into any) error {
	b, err := s.Page(ctx, name)
	if err != nil {
		return err
	}
	return decode("/debug/"+name, b, into)
}

// Page reads the server's page under /debug/<name> as it is; name may have a query.
func (s *Server) Page(ctx context.Context, name string) ([]byte, error) {
	ctx, cancel := context.WithTimeout(ctx, answer)
	defer cancel()
	return s.get(ctx, "/debug/"+name)
}

// StartProgram runs a program of bin/ with an admin server. It is not yet ready then.
func StartProgram(dir, program, name string, flags ...string) (*Server, error) {
	return startServer(program, name, dir, Server{}, flags...)
}

// Meshlog runs a command of bin/meshlog and returns its output.
func Meshlog(ctx context.Context, args ...string) (string, error) {
	out, err := command(ctx, args...)
	return string(out), err
}

// bus are the flags by which a separate process, or the command line, finds NATS.
type bus []string

// StartFrontend runs bin/frontend with its data in data, serving on a port.
// Without flags for the bus it serves the content of data.
func StartFrontend(dir, name, data string, port int, bus ...string) (*Server, error) {
	return StartFrontendTLS(dir, name, data, port, nil, bus...)
}

// StartFrontendTLS is StartFrontend that serves xDS over mutual TLS only; nil: without
// TLS.
func StartFrontendTLS(dir, name, data string, port int, tls *TLS, flags ...string) (*Server, error) {
	return startServer("frontend", name, dir, Server{XDS: port, TLS: tls}, append(flags, "--id", name, "--data", data)...)
}

// Mesh is a running meshlog: in one process, or in separate ones.
type Mesh struct {
	// Watcher, Builders and Frontends are the same server if meshlog runs in one
	// process.
	Watcher             *Server
	Builders, Frontends []*Server
	// Twins stand by for the watcher.
	Twins []*Server
	// MCP has the watcher of a source of MCP-over-xDS.
	MCP []*Server
	// Kube are the watchers of each cluster of Parts; the first watcher of a
	// cluster is active, at first.
	Kube [][]*Server
	// NATS is the bus if it is one separate process, Cluster if it is three.
	// Otherwise they are nil.
	NATS    *NATS
	Cluster *NATSCluster
	// Data is the data directory of `meshlog up`, or "" with separate processes.
	Data string

	servers []*Server
	dir     string
	cli     bus
}

// Up runs `meshlog up` on a directory of configuration, with its data in
// dir/data.
func Up(ctx context.Context, dir, config string) (*Mesh, error) { return UpTLS(ctx, dir, config, nil) }

// UpTLS is Up that serves xDS over mutual TLS only; nil: without TLS.
func UpTLS(ctx context.Context, dir, config string, tls *TLS) (*Mesh, error) {
	return UpWith(ctx, dir, tls, "--config", config)
}

// SourcesFile writes a file for --sources with one entry, in YAML, and returns its path.
func SourcesFile(dir, entry string) (string, error) {
	path := filepath.Join(dir, "sources.yaml")
	return path, os.WriteFile(path, []byte("sources:\n- "+entry+"\n"), 0o600)
}

// UpWith is UpTLS with the configuration that flags name.
func UpWith(ctx context.Context, dir string, tls *TLS, flags ...string) (*Mesh, error) {
	port, err := testport.TCP()
	if err != nil {
		return nil, err
	}
	m := &Mesh{dir: dir, Data: filepath.Join(dir, "data")}
	m.cli = bus{"--data", m.Data}
	up, err := startServer("meshlog", "up", dir, Server{XDS: port, TLS: tls}, append([]string{"up", "--data", m.Data, "--console-listen", "127.0.0.1:0"}, flags...)...)
	if err != nil {
		return nil, err
	}
	m.servers = []*Server{up}
	m.Watcher, m.Builders, m.Frontends = up, m.servers, m.servers
	return m, m.started(ctx)
}

// Apart runs a NATS server and separate processes that share only it:
// bin/watcher-file on a directory of configuration, and a number of bin/builder
// and bin/frontend.
func Apart(ctx context.Context, dir, config string, builders, frontends int) (*Mesh, error) {
	nats, err := StartNATS(ctx, dir)
	if err != nil {
		return nil, err
	}
	return Assemble(ctx, dir, config, Parts{NATS: nats, Builders: builders, Frontends: frontends})
}

// ApartOnCluster is Apart on three NATS servers, each with a replica of all
// streams. The mesh owns them from then on.
func ApartOnCluster(ctx context.Context, dir, config string, c *NATSCluster, builders, frontends int) (*Mesh, error) {
	return Assemble(ctx, dir, config, Parts{Cluster: c, Builders: builders, Frontends: frontends})
}

// started waits until every server is ready. If one does not become ready, it
// ends all of them.
func (m *Mesh) started(ctx context.Context) error {
	for _, s := range m.servers {
		if err := s.Ready(ctx); err != nil {
			m.End()
			return err
		}
	}
	return nil
}

// Servers returns all meshlog processes.
func (m *Mesh) Servers() []*Server { return m.servers }

// End kills every process that runs.
func (m *Mesh) End() {
	for _, s := range m.servers {
		s.Kill()
	}
	if m.NATS != nil {
		m.NATS.Kill()
	}
	if m.Cluster != nil {
		m.Cluster.Kill()
	}
}

// Envoy starts an Envoy that knows all frontends. It is not yet Ready then. Envoy
// sets the XDS and Dir of c.
func (m *Mesh) Envoy(ctx context.Context, c EnvoyConfig) (*Envoy, error) {
	c.Dir, c.XDS, c.Hosts = m.dir, nil, nil
	for _, f := range m.Frontends {
		c.XDS, c.Hosts = append(c.XDS, f.XDS), append(c.Hosts, f.Place.host())
	}
	return StartEnvoy(ctx, c)
}

// Join is Envoy, and waits until the Envoy accepts requests on a port.
func (m *Mesh) Join(ctx context.Context, c EnvoyConfig, port int) (*Envoy, error) {
	e, err := m.Envoy(ctx, c)
	if err != nil {
		return nil, err
	}
	if err = e.Ready(ctx); err == nil {
		err = e.Listening(ctx, port)
	}
	if err != nil {
		e.Kill()
		return nil, err
	}
	return e, nil
}

// Acked waits until a proxy, connected to any frontend, has acknowledged the last
// response of a type, in a version newer than before.
func (m *Mesh) Acked(ctx context.Context, proxy, typeURL string, before Version) (TypeReport, error) {
	var t TypeReport
	err := program.Until(ctx, proxy+" to acknowledge "+typeURL, func(ctx context.Context) error {
		var errs []error
		for _, f := range m.Frontends {
			var err error
			if t, err = f.acked(ctx, proxy, typeURL, before); err == nil {
				return nil
			}
			errs = append(errs, fmt.Errorf("%s: %w", f.Name, err))
		}
		return errors.Join(errs...)
	})
	return t, err
}

// CLI runs a command of bin/meshlog on this mesh and decodes its JSON output.
func (m *Mesh) CLI(ctx context.Context, into any, args ...string) error {
	return meshlog(ctx, into, append(args, m.cli...)...)
}

// Show returns the text output of a command of bin/meshlog on this mesh, also with an
// error.
func (m *Mesh) Show(ctx context.Context, args ...string) (string, error) {
	out, err := command(ctx, append(args, m.cli...)...)
	return string(out), err
}

// ShowAll is Show with what the command says on standard error.
func (m *Mesh) ShowAll(ctx context.Context, args ...string) (string, error) {
	bin, err := Bin("meshlog")
	if err != nil {
		return "", err
	}
	out, err := exec.CommandContext(ctx, bin, append(args, m.cli...)...).CombinedOutput()
	return string(out), err
}

func meshlog(ctx context.Context, into any, args ...string) error {
	args = append(args, "-o", "json")
	out, err := command(ctx, args...)
	if err != nil {
		return err
	}
	return decode("meshlog "+strings.Join(args, " "), out, into)
}

// command returns the output of bin/meshlog, also with an error.
func command(ctx context.Context, args ...string) ([]byte, error) {
	bin, err := Bin("meshlog")
	if err != nil {
		return nil, err
	}
	cmd := exec.CommandContext(ctx, bin, args...)
	var stderr strings.Builder
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if err != nil {
		return out, fmt.Errorf("meshlog %s: %w: %s", strings.Join(args, " "), err, strings.TrimSpace(stderr.String()))
	}
	return out, nil
}

func decode(what string, b []byte, into any) error {
	if err := json.Unmarshal(b, into); err != nil {
		return fmt.Errorf("%s: %w in %.200q", what, err, b)
	}
	return nil
}
