package main

import (
	"context"
	"crypto/ecdsa"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"time"

	"meshlog.dev/deploy/e2e/rig"
	"meshlog.dev/deploy/testkit/certtest"
	"meshlog.dev/deploy/testkit/program"
)

// Where the parts of the mesh are: it has a network of its own.
const (
	xdsAddress  = "127.0.0.1:15012"
	caAddress   = "127.0.0.1:15013"
	edgeAddress = "127.0.0.1:8443"
	webCalls    = "127.0.0.1:9001" // where web calls shop, through its sidecar
	shopDirect  = "127.0.0.2:8081" // where shop's sidecar takes calls
)

// secureStage holds the running parts of the demo of a secure mesh.
type secureStage struct {
	scene

	nats     *rig.NATS
	recorder *rig.Recorder
	servers  map[string]*rig.Server // by name
	order    []string               // in which they started
	inputs   string                 // directory of keys that users give, which are searched for and not in
	config   string
	edgeCA   *certtest.CA
	keys     []certtest.Pair // of the edge, the newest last
	issuer   *ecdsa.PrivateKey
	apps     []*http.Server
}

func newSecureStage(s scene) play { return &secureStage{scene: s, servers: map[string]*rig.Server{}} }

func (s *secureStage) steps() []step {
	return []step{s.set, s.https, s.strict, s.token, s.deny, s.root, s.alone, s.fromDisk, s.search}
}

// set starts everything.
func (s *secureStage) set(ctx context.Context) (err error) {
	s.inputs, s.config, s.edgeCA = filepath.Join(s.dir, "inputs"), filepath.Join(s.dir, "config"), certtest.NewCA("edge")
	if err := errors.Join(os.MkdirAll(s.inputs, 0o700), os.MkdirAll(s.config, 0o700)); err != nil {
		return err
	}
	s.issuer = newKey()
	if err := errors.Join(s.save("services.yaml"), s.save("edge.yaml"), s.rotate()); err != nil {
		return err
	}
	if err := s.bus(ctx); err != nil {
		return err
	}
	if err := s.control(ctx); err != nil {
		return err
	}
	for _, w := range []struct{ name, kind, ip string }{{"shop", "sidecar", "127.0.0.2"}, {"web", "sidecar", "127.0.0.3"}, {"edge", "router", "127.0.0.4"}} {
		if err := s.join(ctx, w.name, w.kind, w.ip); err != nil {
			return err
		}
	}
	s.chapter("What runs")
	s.where("nats-server", "the bus; what goes over it is recorded", fmt.Sprintf("pid %d", s.nats.PID()))
	for _, p := range [][2]string{
		{"watcher", "publishes the files and references to the certificates"}, {"builder", "makes versions of them"},
		{"ca", "gives the workloads their certificates"}, {"frontend", "serves the Envoys, and asks the watcher for keys, sealed"},
	} {
		s.where(p[0], p[1], fmt.Sprintf("pid %d", s.servers[p[0]].PID()))
	}
	s.where("shop", "a service, with an agent that runs a real Envoy", fmt.Sprintf("agent pid %d, called at %s", s.servers["shop"].PID(), shopDirect))
	s.where("web", "a service that calls shop", fmt.Sprintf("agent pid %d", s.servers["web"].PID()))
	s.where("edge", "a gateway for HTTPS, likewise", fmt.Sprintf("agent pid %d, https://%s", s.servers["edge"].PID(), edgeAddress))
	s.where("config", "the watched directory; files of deploy/e2e/demo/mesh", s.config)
	return nil
}

// bus starts the bus with a key for each role, and the recorder between it and everybody.
func (s *secureStage) bus(ctx context.Context) (err error) {
	if s.nats, err = rig.StartNATSFor(ctx, s.dir, "file/default", "ca/default"); err != nil {
		return err
	}
	if s.recorder, err = rig.Record(net.JoinHostPort("127.0.0.1", fmt.Sprint(s.nats.Port))); err != nil {
		return err
	}
	s.nats.Port = s.recorder.Port
	return nil
}

// control starts the control plane.
func (s *secureStage) control(ctx context.Context) error {
	secret := make([]byte, 32)
	if _, err := rand.Read(secret); err != nil {
		return err
	}
	seal := filepath.Join(s.inputs, "seal.key")
	if err := os.WriteFile(seal, secret, 0o600); err != nil {
		return err
	}
	ca, err := rig.NewCA(s.inputs, "frontends")
	if err != nil {
		return err
	}
	tls, err := ca.Sign("xds", "")
	if err != nil {
		return err
	}
	key := func(file string) string { return filepath.Join(s.nats.Auth, file) }
	for _, p := range []struct {
		name, program, role string
		flags               []string
	}{
		{"builder", "builder", "builder", []string{"--data", filepath.Join(s.dir, "builder")}},
		{"watcher", "watcher-file", "watcher-file-default", []string{
			"--config", s.config, "--certificates", filepath.Join(s.inputs, "certificates"),
			"--secret-key-file", seal, "--key-exchange", key("watcher-file-default.xk"),
		}},
		{"ca", "ca", "watcher-ca-default", []string{
			"--listen", caAddress, "--dns-names", "localhost", "--ca-key-file", filepath.Join(s.dir, "ca.sealed"), "--seal-key-file", seal, "--join-tokens", "--certificate-renewal",
		}},
		{"frontend", "frontend", "frontend", []string{
			"--data", filepath.Join(s.dir, "frontend"), "--listen", "", "--tls-listen", xdsAddress, "--tls-cert", tls.Cert, "--tls-key", tls.Key,
			"--tls-mesh-clients", "--seal-key-file", seal, "--key-exchange", key("frontend.xk"),
		}},
	} {
		if err := s.begin(ctx, p.name, p.program, append(append(p.flags, "--id", p.name), s.nats.Flags(p.role)...)...); err != nil {
			return err
		}
	}
	roots, err := s.meshlog(ctx, "ca", "roots")
	if err != nil {
		return err
	}
	return os.WriteFile(filepath.Join(s.inputs, "root.pem"), []byte(roots), 0o600)
}

// begin starts a program and waits until it is ready.
func (s *secureStage) begin(ctx context.Context, name, of string, flags ...string) error {
	p, err := rig.StartProgram(s.dir, of, name, flags...)
	if err != nil {
		return err
	}
	s.servers[name], s.order = p, append(s.order, name)
	return p.Ready(ctx)
}

// meshlog runs a command on the mesh.
func (s *secureStage) meshlog(ctx context.Context, args ...string) (string, error) {
	return rig.Meshlog(ctx, append(args, s.nats.Flags("operator")...)...)
}

// join starts a workload with its agent. It proves who it is with a join token.
func (s *secureStage) join(ctx context.Context, name, kind, ip string) error {
	if name != "edge" {
		if err := s.application(name); err != nil {
			return err
		}
	}
	token, err := s.meshlog(ctx, "ca", "token", "--namespace", name, "--account", name)
	if err != nil {
		return err
	}
	envoy, err := program.Tool(ctx, "envoy")
	if err != nil {
		return err
	}
	file := filepath.Join(s.inputs, name+".token")
	if err := os.WriteFile(file, []byte(token), 0o600); err != nil {
		return err
	}
	last := ip[len(ip)-1:]
	flags := []string{
		"--type", kind, "--name", name + "-1", "--namespace", name, "--service-account", name, "--ip", ip, "--labels", "app=" + name,
		"--xds", xdsAddress, "--xds-server-name", "localhost", "--xds-ca", filepath.Join(s.inputs, "ca.pem"),
		"--ca", caAddress, "--ca-server-name", "localhost", "--ca-roots", filepath.Join(s.inputs, "root.pem"), "--join-token-file", file,
		"--state-dir", filepath.Join(s.inputs, name+".state"), "--certificate-ttl", "1m", "--dir", filepath.Join(s.dir, name),
		"--envoy", envoy, "--envoy-admin", "127.0.0.1:1500" + last, "--ready-listen", "127.0.0.1:1502" + last, "--concurrency", "1",
		"--certificates-out", filepath.Join(s.inputs, name+".certificate"), "--termination-drain", "0s",
	}
	return s.begin(ctx, name, "agent", append(flags, "--envoy-arg=--log-level", "--envoy-arg=warning")...)
}

// application serves shop or web at its port on 127.0.0.1.
func (s *secureStage) application(name string) error {
	port, answer := "8081", func(w http.ResponseWriter, r *http.Request) {
		_, who, _ := strings.Cut(r.Header.Get("x-forwarded-client-cert"), "URI=")
		who, _, _ = strings.Cut(who, ",")
		fmt.Fprintf(w, "shop, called by %s\n", who)
	}
	if name == "web" {
		port, answer = "8082", func(w http.ResponseWriter, r *http.Request) {
			out, err := http.NewRequestWithContext(r.Context(), http.MethodGet, "http://"+webCalls+r.URL.Path, nil)
			if err != nil {
				http.Error(w, err.Error(), http.StatusInternalServerError)
				return
			}
			out.Host = "shop.demo"
			resp, err := http.DefaultClient.Do(out)
			if err != nil {
				http.Error(w, err.Error(), http.StatusBadGateway)
				return
			}
			defer resp.Body.Close()
			w.WriteHeader(resp.StatusCode)
			_, _ = io.Copy(w, resp.Body) // the client sees what came
		}
	}
	l, err := net.Listen("tcp", "127.0.0.1:"+port)
	if err != nil {
		return err
	}
	app := &http.Server{Handler: http.HandlerFunc(answer), ReadHeaderTimeout: time.Minute}
	go func() { _ = app.Serve(l) }() // ends with Close
	s.apps = append(s.apps, app)
	return nil
}

// proxy returns nil: the agents run the Envoys.
func (s *secureStage) proxy() *rig.Envoy { return nil }

// yours prints the commands that a user at the terminal can try.
func (s *secureStage) yours(context.Context) error {
	s.chapter("Your turn")
	s.note("The demo runs on a network of its own with its own 127.0.0.1. To open a shell there:")
	s.note("%s", rig.Enter())
	s.note("curl -k -H 'Authorization: Bearer %s' https://%s/", s.bearer(), edgeAddress)
	s.note("")
	s.note("Ctrl-C ends it.")
	return nil
}

// end stops the running parts, the last started first.
func (s *secureStage) end() {
	for i := len(s.order) - 1; i >= 0; i-- {
		s.servers[s.order[i]].Kill()
	}
	for _, app := range s.apps {
		app.Close()
	}
	if s.recorder != nil {
		s.recorder.Stop()
	}
	if s.nats != nil {
		s.nats.Kill()
	}
}
