package rig

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"time"
)

// Server is one of our programs, with the ports that it was given.
type Server struct {
	*Process
	Admin int // health, metrics, debug
	XDS   int // 0 where it serves none
}

// startServer runs bin/<program> with the ports of s and further flags.
func startServer(program, name, dir string, s Server, flags ...string) (*Server, error) {
	bin, err := Bin(program)
	if err != nil {
		return nil, err
	}
	if s.Admin, err = FreePort(); err != nil {
		return nil, err
	}
	argv := append([]string{bin}, flags...)
	argv = append(argv, "--admin", loopback(s.Admin))
	if s.XDS != 0 {
		argv = append(argv, "--listen", loopback(s.XDS))
	}
	s.Process, err = Start(name, dir, argv)
	return &s, err
}

func loopback(port int) string { return fmt.Sprintf("127.0.0.1:%d", port) }

// Restart starts the server anew with the same flags, files and ports. It
// must have ended.
func (s *Server) Restart() (err error) {
	s.Process, err = s.Again()
	return err
}

// Ready waits until the server says that it does its job.
func (s *Server) Ready(ctx context.Context) error {
	return s.UntilAlive(ctx, s.Name+" to be ready", func(ctx context.Context) error {
		_, err := httpGet(ctx, "http://"+loopback(s.Admin)+"/readyz")
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
	b, err := httpGet(ctx, "http://"+loopback(s.Admin)+"/debug/"+name)
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
func Up(ctx context.Context, dir, config string) (*Mesh, error) {
	port, err := FreePort()
	if err != nil {
		return nil, err
	}
	m := &Mesh{dir: dir, Data: filepath.Join(dir, "data")}
	m.cli = bus{"--data", m.Data}
	up, err := startServer("meshlog", "up", dir, Server{XDS: port}, "up", "--config", config, "--data", m.Data)
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
	m := &Mesh{dir: dir, NATS: nats, cli: bus{"--bus", nats.URL(), "--bus-token-file", nats.TokenFile}}
	return m, m.apart(ctx, config, builders, frontends)
}

// ApartOnCluster is Apart on three NATS servers, each of which has all of the
// streams. They are the mesh's from then on.
func ApartOnCluster(ctx context.Context, dir, config string, c *NATSCluster, builders, frontends int) (*Mesh, error) {
	m := &Mesh{dir: dir, Cluster: c, cli: bus{"--bus", c.URL(), "--bus-token-file", c.TokenFile}}
	return m, m.apart(ctx, config, builders, frontends, "--replicas", strconv.Itoa(len(c.Nodes)))
}

// apart starts the processes, with further flags for the builders, and waits
// until they do their job. It ends them all, and the bus, if they do not.
func (m *Mesh) apart(ctx context.Context, config string, builders, frontends int, ofBuilder ...string) (err error) {
	defer func() {
		if err != nil {
			m.End()
		}
	}()
	add := func(program, name string, xds int, flags ...string) (*Server, error) {
		s, err := startServer(program, name, m.dir, Server{XDS: xds}, append(append(flags, m.cli...), "--id", name)...)
		if err == nil {
			m.servers = append(m.servers, s)
		}
		return s, err
	}
	for i := range builders {
		name := fmt.Sprintf("builder-%d", i+1)
		s, err := add("builder", name, 0, append(ofBuilder[:len(ofBuilder):len(ofBuilder)], "--data", filepath.Join(m.dir, name))...)
		if err != nil {
			return err
		}
		m.Builders = append(m.Builders, s)
	}
	if m.Watcher, err = add("watcher-file", "watcher", 0, "--config", config); err != nil {
		return err
	}
	for i := range frontends {
		name := fmt.Sprintf("frontend-%d", i+1)
		port, err := FreePort()
		if err != nil {
			return err
		}
		s, err := add("frontend", name, port, "--data", filepath.Join(m.dir, name))
		if err != nil {
			return err
		}
		m.Frontends = append(m.Frontends, s)
	}
	return m.started(ctx)
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

// Join starts an Envoy that knows all frontends, and waits until it takes
// requests on a port. It sets the XDS and Dir of c.
func (m *Mesh) Join(ctx context.Context, c EnvoyConfig, port int) (*Envoy, error) {
	c.Dir, c.XDS = m.dir, nil
	for _, f := range m.Frontends {
		c.XDS = append(c.XDS, f.XDS)
	}
	e, err := StartEnvoy(ctx, c)
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

func meshlog(ctx context.Context, into any, args ...string) error {
	bin, err := Bin("meshlog")
	if err != nil {
		return err
	}
	args = append(args, "-o", "json")
	cmd := exec.CommandContext(ctx, bin, args...)
	var stderr strings.Builder
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if err != nil {
		return fmt.Errorf("meshlog %s: %w: %s", strings.Join(args, " "), err, strings.TrimSpace(stderr.String()))
	}
	return decode("meshlog "+strings.Join(args, " "), out, into)
}

func decode(what string, b []byte, into any) error {
	if err := json.Unmarshal(b, into); err != nil {
		return fmt.Errorf("%s: %w in %.200q", what, err, b)
	}
	return nil
}
