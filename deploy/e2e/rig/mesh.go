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

	"meshlog.dev/deploy/testkit/testport"
)

// Server is one of our programs, with the ports that it was given.
type Server struct {
	*Process
	Admin int  // health, metrics, debug
	XDS   int  // 0 where it serves none
	TLS   *TLS // of XDS; nil: it is served without
	Place Place
	// Started is when its process was started last.
	Started time.Time

	program, name, dir string
	args               []string
}

// startServer runs bin/<program> with the ports and the place of s and further
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

// Restart starts the server anew with the same flags, files and ports. It
// must have ended.
func (s *Server) Restart() error { return s.RestartAs(s.program) }

// RestartWith is Restart with more in the environment, this time.
func (s *Server) RestartWith(env ...string) error { return s.RestartAs(s.program, env...) }

// RestartAs is RestartWith, this time of another program of bin/.
func (s *Server) RestartAs(program string, env ...string) error {
	bin, err := Bin(program)
	if err != nil {
		return err
	}
	s.Started = time.Now()
	s.Process, err = Start(s.name, s.dir, s.Place.Command(append([]string{bin}, s.args...)...), env...)
	return err
}

// RSS is how much memory the server holds, in bytes.
func (s *Server) RSS() (int64, error) {
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", s.PID()))
	if err != nil {
		return 0, err
	}
	var kib int64
	for line := range strings.Lines(string(b)) {
		if _, err := fmt.Sscanf(line, "VmRSS: %d kB", &kib); err == nil {
			return kib << 10, nil
		}
	}
	return 0, fmt.Errorf("/proc/%d/status has no VmRSS", s.PID())
}

// get asks the admin interface; any code but 200 is an error.
func (s *Server) get(ctx context.Context, path string) ([]byte, error) {
	return httpGetWith(ctx, s.Place.client(), "http://"+loopback(s.Admin)+path)
}

// Ready waits until the server says that it does its job.
func (s *Server) Ready(ctx context.Context) error {
	return s.UntilAlive(ctx, s.Name+" to be ready", func(ctx context.Context) error {
		_, err := s.get(ctx, "/readyz")
		return err
	})
}

// answer is how long a process may take to say how it is; one that is paused
// never does.
const answer = 2 * time.Second

// Debug reads what the server reports under /debug/<name>.
func (s *Server) Debug(ctx context.Context, name string, into any) error {
	ctx, cancel := context.WithTimeout(ctx, answer)
	defer cancel()
	b, err := s.get(ctx, "/debug/"+name)
	if err != nil {
		return err
	}
	return decode("/debug/"+name, b, into)
}

// bus are flags that say how a process of its own, or the command line, finds
// NATS.
type bus []string

// StartFrontend runs bin/frontend with its data in data, serving on a port.
// With no flags for the bus it serves what data has.
func StartFrontend(dir, name, data string, port int, bus ...string) (*Server, error) {
	return startServer("frontend", name, dir, Server{XDS: port}, append(bus, "--id", name, "--data", data)...)
}

// Mesh is meshlog as it runs: in one process, or each part on its own.
type Mesh struct {
	// Watcher, Builders and Frontends are one and the same server if meshlog
	// runs in one process.
	Watcher             *Server
	Builders, Frontends []*Server
	// Twins stand by for the watcher.
	Twins []*Server
	// Kube are the watchers of each of the clusters of Parts; the first of a
	// cluster speaks, at first.
	Kube [][]*Server
	// NATS is the bus where it is one process of its own, Cluster where it is
	// three; else they are nil.
	NATS    *NATS
	Cluster *NATSCluster
	// Data is the data directory of the one process, else "".
	Data string

	servers []*Server
	dir     string
	cli     bus
}

// Up runs `meshlog up` on a directory of configuration, with its data in
// dir/data.
func Up(ctx context.Context, dir, config string) (*Mesh, error) { return UpTLS(ctx, dir, config, nil) }

// UpTLS is Up with xDS over mutual TLS alone; nil: without.
func UpTLS(ctx context.Context, dir, config string, tls *TLS) (*Mesh, error) {
	return UpWith(ctx, dir, tls, "--config", config)
}

// UpWith is UpTLS on what flags say.
func UpWith(ctx context.Context, dir string, tls *TLS, flags ...string) (*Mesh, error) {
	port, err := testport.TCP()
	if err != nil {
		return nil, err
	}
	m := &Mesh{dir: dir, Data: filepath.Join(dir, "data")}
	m.cli = bus{"--data", m.Data}
	up, err := startServer("meshlog", "up", dir, Server{XDS: port, TLS: tls}, append([]string{"up", "--data", m.Data}, flags...)...)
	if err != nil {
		return nil, err
	}
	m.servers = []*Server{up}
	m.Watcher, m.Builders, m.Frontends = up, m.servers, m.servers
	return m, m.started(ctx)
}

// Apart runs a NATS server and the processes that share nothing but that:
// bin/watcher-file on a directory of configuration, and a number of bin/builder
// and bin/frontend.
func Apart(ctx context.Context, dir, config string, builders, frontends int) (*Mesh, error) {
	nats, err := StartNATS(ctx, dir)
	if err != nil {
		return nil, err
	}
	return Assemble(ctx, dir, config, Parts{NATS: nats, Builders: builders, Frontends: frontends})
}

// ApartOnCluster is Apart on three NATS servers, each of which has all of the
// streams. They are the mesh's from then on.
func ApartOnCluster(ctx context.Context, dir, config string, c *NATSCluster, builders, frontends int) (*Mesh, error) {
	return Assemble(ctx, dir, config, Parts{Cluster: c, Builders: builders, Frontends: frontends})
}

// started waits until everything does its job, and ends it all if it does not.
func (m *Mesh) started(ctx context.Context) error {
	for _, s := range m.servers {
		if err := s.Ready(ctx); err != nil {
			m.End()
			return err
		}
	}
	return nil
}

// Servers are all processes of ours.
func (m *Mesh) Servers() []*Server { return m.servers }

// End kills what runs.
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

// Envoy starts an Envoy that knows all frontends; it is then not yet Ready. It
// sets the XDS and Dir of c.
func (m *Mesh) Envoy(ctx context.Context, c EnvoyConfig) (*Envoy, error) {
	c.Dir, c.XDS, c.Hosts = m.dir, nil, nil
	for _, f := range m.Frontends {
		c.XDS, c.Hosts = append(c.XDS, f.XDS), append(c.Hosts, f.Place.host())
	}
	return StartEnvoy(ctx, c)
}

// Join is Envoy, and waits until it takes requests on a port.
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

// Acked waits until a proxy has acknowledged what it was sent last of a type,
// by whichever frontend it is connected to, and that is newer than before.
func (m *Mesh) Acked(ctx context.Context, proxy, typeURL string, before Version) (TypeReport, error) {
	var t TypeReport
	err := Until(ctx, proxy+" to acknowledge "+typeURL, func(ctx context.Context) error {
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

// CLI runs a command of bin/meshlog on this mesh and reads what it prints as
// JSON.
func (m *Mesh) CLI(ctx context.Context, into any, args ...string) error {
	return meshlog(ctx, into, append(args, m.cli...)...)
}

// Show is what a command of bin/meshlog on this mesh prints for people.
func (m *Mesh) Show(ctx context.Context, args ...string) (string, error) {
	out, err := command(ctx, append(args, m.cli...)...)
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

// command is what bin/meshlog prints.
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
		return nil, fmt.Errorf("meshlog %s: %w: %s", strings.Join(args, " "), err, strings.TrimSpace(stderr.String()))
	}
	return out, nil
}

func decode(what string, b []byte, into any) error {
	if err := json.Unmarshal(b, into); err != nil {
		return fmt.Errorf("%s: %w in %.200q", what, err, b)
	}
	return nil
}
