package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"time"

	"meshlog.dev/deploy/e2e/load/holders"
	"meshlog.dev/deploy/e2e/rig"
	"meshlog.dev/deploy/testkit/certtest"
	"meshlog.dev/deploy/testkit/program"
	"meshlog.dev/deploy/testkit/testport"
)

// keysCommand measures what private keys cost: how soon a frontend has many of them,
// what memory they take, and how soon a replaced certificate is in handshakes.
const keysCommand = "keys"

// Targets of section 8 of the specification.
const (
	maxRotation   = time.Second     // KEY-11, at p99
	maxCold       = 2 * time.Second // until one proxy has 1000 keys
	maxKeysMemory = 20 << 20        // of a frontend that has 1000 keys
)

// keysPlan holds the settings of the measurement.
type keysPlan struct {
	keys      int // credentials of the gateway
	holders   int // proxies that have the one that is replaced
	envoys    int // that answer handshakes with it
	rotations int
	pause     time.Duration // between two rotations
}

// keysResult holds its figures.
type keysResult struct {
	idle, settled memory
	cold          time.Duration   // from the first request to the last of all keys
	held          []time.Duration // of each proxy and rotation, from the save to the new key
	shaken        []time.Duration // of each Envoy and rotation, from the save to a handshake
}

func parseKeys(args []string) (keysPlan, error) {
	p := keysPlan{keys: 1000, holders: 1000, envoys: 2, rotations: 20, pause: time.Second}
	fs := flag.NewFlagSet("load "+keysCommand, flag.ContinueOnError)
	fs.IntVar(&p.keys, "keys", p.keys, "`credentials` of a gateway; at most 5000")
	fs.IntVar(&p.holders, "proxies", p.holders, "`proxies` that have the credential that is replaced, besides two Envoys; at most 2000")
	fs.IntVar(&p.rotations, "rotations", p.rotations, "how many `times` it is replaced; at most 100")
	if err := fs.Parse(args); err != nil {
		return p, err
	}
	switch {
	case p.keys < 1 || p.keys > 5000:
		return p, fmt.Errorf("-keys %d: from 1 to 5000", p.keys)
	case p.holders < 1 || p.holders > most:
		return p, fmt.Errorf("-proxies %d: from 1 to %d", p.holders, most)
	case p.rotations < 1 || p.rotations > 100:
		return p, fmt.Errorf("-rotations %d: from 1 to 100", p.rotations)
	}
	return p, nil
}

// keysMesh is a mesh of separate processes whose gateway has many credentials.
type keysMesh struct {
	plan         keysPlan
	dir          string
	ca           *certtest.CA // of the credentials
	certificates string       // the directory of the credentials
	port         int          // of the gateway
	clients      rig.TLS      // of the proxies
	nats         *rig.NATS
	builder      *rig.Server
	frontend     *rig.Server
	ends         []func()
}

func runKeys(ctx context.Context, p keysPlan) (_ *keysResult, err error) {
	dir, err := os.MkdirTemp("", "meshlog-keys-")
	if err != nil {
		return nil, err
	}
	m := &keysMesh{plan: p, dir: dir, ca: certtest.NewCA("keys"), certificates: filepath.Join(dir, "certificates")}
	defer func() {
		for _, end := range m.ends {
			end()
		}
		err = errors.Join(err, os.RemoveAll(dir))
	}()
	if err := m.start(ctx); err != nil {
		return nil, err
	}
	r := &keysResult{}
	if err := m.cold(ctx, r); err != nil {
		return nil, fmt.Errorf("a proxy with all keys: %w", err)
	}
	if err := m.rotate(ctx, r); err != nil {
		return nil, fmt.Errorf("rotations: %w", err)
	}
	return r, nil
}

// start writes the configuration and starts all processes of the control plane.
func (m *keysMesh) start(ctx context.Context) (err error) {
	if m.port, err = testport.TCP(); err != nil {
		return err
	}
	config, err := rig.NewConfigDir(m.dir)
	if err != nil {
		return err
	}
	var servers strings.Builder
	for i := range m.plan.keys {
		if err := m.save(i, "v0"); err != nil {
			return err
		}
		fmt.Fprintf(&servers, `
  - port: {number: %d, name: https-%d, protocol: HTTPS}
    bind: 127.0.0.1
    hosts: [%s]
    tls: {mode: SIMPLE, credentialName: %s}`, m.port, i, host(i), credential(i))
	}
	if _, err := config.Save("gateway.yaml", fmt.Sprintf(keysGateway, servers.String())); err != nil {
		return err
	}
	secret := filepath.Join(m.dir, "secret.key")
	if err := os.WriteFile(secret, []byte("0123456789abcdef0123456789abcdef"), 0o600); err != nil {
		return err
	}
	ca, err := rig.NewCA(m.dir, "proxies")
	if err != nil {
		return err
	}
	serves, err := ca.Sign("xds", "")
	if err != nil {
		return err
	}
	if m.clients, err = ca.Sign("edge", "spiffe://cluster.local/ns/default/sa/edge"); err != nil {
		return err
	}
	if m.nats, err = rig.StartNATS(ctx, m.dir); err != nil {
		return err
	}
	m.ends = append(m.ends, m.nats.Kill)
	key := func(file string) string { return filepath.Join(m.nats.Auth, file) }
	if m.builder, err = m.program(ctx, "builder", "builder", "--data", filepath.Join(m.dir, "builder")); err != nil {
		return err
	}
	if _, err := m.program(ctx, "watcher-file", "watcher-file-default", "--config", config.Path, "--certificates", m.certificates,
		"--secret-key-file", secret, "--key-exchange", key("watcher-file-default.xk")); err != nil {
		return err
	}
	port, err := testport.TCP()
	if err != nil {
		return err
	}
	m.frontend, err = rig.StartFrontendTLS(m.dir, "frontend", filepath.Join(m.dir, "frontend"), port, &serves,
		append(m.nats.Flags("frontend"), "--seal-key-file", secret, "--key-exchange", key("frontend.xk"))...)
	if err != nil {
		return err
	}
	m.ends = append(m.ends, m.frontend.Kill)
	return m.frontend.Ready(ctx)
}

// program starts a program with its key of the bus, and waits until it is ready.
func (m *keysMesh) program(ctx context.Context, name, role string, flags ...string) (*rig.Server, error) {
	s, err := rig.StartProgram(m.dir, name, name, append(append(flags, "--id", name), m.nats.Flags(role)...)...)
	if err != nil {
		return nil, err
	}
	m.ends = append(m.ends, s.Kill)
	return s, s.Ready(ctx)
}

func host(i int) string       { return fmt.Sprintf("host-%d.test", i) }
func credential(i int) string { return fmt.Sprintf("credential-%d", i) }

const keysGateway = `apiVersion: networking.istio.io/v1
kind: Gateway
metadata: {name: edge, namespace: default}
spec:
  selector: {app: edge}
  servers:%s
`

// save gives a host a new key and a certificate that names the version.
func (m *keysMesh) save(i int, version string) error {
	pair := m.ca.Server(host(i)+" "+version, time.Now().Add(24*time.Hour))
	dir := filepath.Join(m.certificates, "default", credential(i))
	next := filepath.Join(m.dir, "next")
	err := errors.Join(
		os.MkdirAll(next, 0o700),
		os.WriteFile(filepath.Join(next, "tls.crt"), pair.Cert, 0o600), os.WriteFile(filepath.Join(next, "tls.key"), pair.Key, 0o600),
		os.MkdirAll(filepath.Dir(dir), 0o700))
	if err != nil {
		return err
	}
	// The directory is replaced as one, so that no certificate meets another's key.
	if err := os.Rename(dir, next+".old"); err != nil && !errors.Is(err, os.ErrNotExist) {
		return err
	}
	return errors.Join(os.Rename(next, dir), os.RemoveAll(next+".old"))
}

// served waits until the frontend serves the version with all credentials. It has no
// key then: no proxy has asked.
func (m *keysMesh) served(ctx context.Context) error {
	if _, err := rig.Meshlog(ctx, append([]string{"wait", "latest", "--for", "0"}, m.nats.Flags("operator")...)...); err != nil {
		return err
	}
	return m.frontend.UntilAlive(ctx, "the frontend to serve the newest version", func(ctx context.Context) error {
		var b rig.BuilderReport
		var f rig.FrontendReport
		if err := errors.Join(m.builder.Debug(ctx, "builder", &b), m.frontend.Debug(ctx, "frontend", &f)); err != nil {
			return err
		}
		if f.Serving != b.Head {
			return fmt.Errorf("it serves %s, the newest is %s", f.Serving, b.Head)
		}
		return nil
	})
}

// holders describes proxies that want some of the credentials.
func (m *keysMesh) holders(n int, names ...string) holders.Config {
	return holders.Config{Target: address(m.frontend.XDS), Files: m.clients, Proxies: n, Names: names}
}

// cold measures a proxy that asks a frontend that has no key for all of them.
func (m *keysMesh) cold(ctx context.Context, r *keysResult) (err error) {
	t := target{address: address(m.frontend.XDS), pid: m.frontend.PID(), admin: m.frontend.Admin}
	var names []string
	for i := range m.plan.keys {
		names = append(names, "kubernetes://"+credential(i))
	}
	if err := m.served(ctx); err != nil {
		return err
	}
	if r.idle, err = t.settled(ctx, m.plan.pause/4); err != nil {
		return err
	}
	began := time.Now()
	h, err := holders.Connect(ctx, m.holders(1, names...))
	if err != nil {
		return err
	}
	defer h.Close()
	if err := h.Wait(ctx); err != nil {
		return err
	}
	r.cold = last(sorted(h.Took(began)))
	r.settled, err = t.settled(ctx, m.plan.pause/4)
	return err
}

// rotate measures replacements of one credential that all proxies have.
func (m *keysMesh) rotate(ctx context.Context, r *keysResult) error {
	h, err := holders.Connect(ctx, m.holders(m.plan.holders, "kubernetes://"+credential(0)))
	if err != nil {
		return err
	}
	defer h.Close()
	if err := h.Wait(ctx); err != nil {
		return err
	}
	for i := range m.plan.envoys {
		// Each binds the gateway's port with SO_REUSEPORT, so a handshake may be with either.
		e, err := rig.StartEnvoy(ctx, rig.EnvoyConfig{
			Node: fmt.Sprint("edge-", i), Cluster: "keys", TLS: &m.clients, XDS: []int{m.frontend.XDS}, Dir: m.dir,
		})
		if err != nil {
			return err
		}
		defer e.Kill()
		if err := errors.Join(e.Ready(ctx), e.Listening(ctx, m.port)); err != nil {
			return err
		}
	}
	for i := range m.plan.rotations {
		if err := wait(ctx, m.plan.pause); err != nil {
			return err
		}
		version := fmt.Sprint("v", i+1)
		h.Expect()
		saved := time.Now()
		if err := m.save(0, version); err != nil {
			return err
		}
		took, err := m.shaken(ctx, saved, version)
		if err != nil {
			return fmt.Errorf("%s: %w", version, err)
		}
		r.shaken = append(r.shaken, took)
		if err := h.Wait(ctx); err != nil {
			return fmt.Errorf("%s: %w", version, err)
		}
		r.held = append(r.held, h.Took(saved)...)
	}
	sorted(r.held)
	sorted(r.shaken)
	return nil
}

// handshakes with one certificate in a row are with every Envoy: the kernel spreads
// connections over those that share a port.
const handshakes = 12

// shaken returns how long after the save the last handshake had another certificate.
func (m *keysMesh) shaken(ctx context.Context, saved time.Time, version string) (time.Duration, error) {
	var first time.Time
	row := 0
	err := program.Until(ctx, "handshakes with "+version, func(ctx context.Context) error {
		for row < handshakes {
			name, err := holders.Handshake(ctx, address(m.port), host(0), m.ca.Pool())
			if err != nil {
				return err
			}
			if !strings.HasSuffix(name, " "+version) {
				row = 0
				return fmt.Errorf("a handshake had the certificate %q", name)
			}
			if row == 0 {
				first = time.Now()
			}
			row++
		}
		return nil
	})
	return first.Sub(saved), err
}

func printKeys(w io.Writer, p keysPlan, r *keysResult) {
	fmt.Fprintf(w, "\nKeys: a gateway with %d credentials; the keys come from a watcher over the bus, sealed\n\n", p.keys)
	line := func(what, figure, target string, ok bool) {
		if target != "" {
			target = fmt.Sprintf("%s (at most %s)", verdict(ok), target)
		}
		fmt.Fprintf(w, "  %-62s %28s  %s\n", what, figure, target)
	}
	grown := (r.settled.resident - r.idle.resident)
	line("a proxy that connects has all keys, the frontend had none", ms(r.cold), maxCold.String(), r.cold <= maxCold)
	line("memory of the frontend, with all keys and one proxy", bytes(grown), bytes(maxKeysMemory), grown <= maxKeysMemory)
	line(fmt.Sprintf("save to new key, %d proxies, %d times, p50 / p99 / longest", p.holders, p.rotations), three(r.held), maxRotation.String(), percentile(r.held, 99) <= maxRotation)
	line(fmt.Sprintf("save to handshakes of %d Envoys beside them, the same", p.envoys), three(r.shaken), maxRotation.String(), percentile(r.shaken, 99) <= maxRotation)
}

func three(all []time.Duration) string {
	return fmt.Sprintf("%s / %s / %s", ms(percentile(all, 50)), ms(percentile(all, 99)), ms(last(all)))
}
