package rig

import (
	"context"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"github.com/nats-io/nats.go"

	"meshlog.dev/deploy/testkit/program"
	"meshlog.dev/deploy/testkit/testport"
)

// NATS is a separate NATS server process with JetStream. It accepts only the users
// that `meshlog bus-auth` writes, each with its key and permissions.
type NATS struct {
	*program.Process
	Port int
	// Data is the directory of its streams.
	Data string
	// Auth is the directory that `meshlog bus-auth` wrote.
	Auth string

	host    string
	monitor string // host and port of its monitoring endpoint
	tls     bool   // clients need a certificate too
	token   string // file with the token of all clients, if there are no users
}

// natsConfig holds the settings in which servers differ.
type natsConfig struct {
	name, dir, host string
	more            string // additional configuration
	auth            string // directory of the users
	tls             bool
	token           string // instead of users; its file is dir/nats.token
	wrap            func(argv []string) []string
}

// access returns the server's configuration of its users.
func (c natsConfig) access() string {
	if c.token != "" {
		return fmt.Sprintf("authorization { token: %q }\n", c.token)
	}
	users := fmt.Sprintf("include %q\n", filepath.Join(filepath.Base(c.auth), "auth.conf"))
	if c.tls {
		users += fmt.Sprintf(`tls { cert_file: "%[1]s/server.pem", key_file: "%[1]s/server.key", ca_file: "%[1]s/ca.pem", verify: true }
`, c.auth)
	}
	return users
}

// authIn is the directory of the users of the servers in a directory.
func authIn(dir string) string { return filepath.Join(dir, "auth") }

// watchers are the flags for the watchers and the console of all tests, and for an attacker that has
// a watcher's key.
var watchers = []string{"--watcher", "file/default", "--watcher", "file/attacker", "--watcher", "kubernetes/*", "--console"}

// StartNATS starts a server that keeps its streams in dir and syncs each write
// before it acknowledges it. It waits until the server accepts connections.
func StartNATS(ctx context.Context, dir string) (*NATS, error) {
	return startOne(ctx, natsConfig{dir: dir}, watchers...)
}

// StartNATSFor is StartNATS for these watchers.
func StartNATSFor(ctx context.Context, dir string, of ...string) (*NATS, error) {
	var users []string
	for _, w := range of {
		users = append(users, "--watcher", w)
	}
	return startOne(ctx, natsConfig{dir: dir}, users...)
}

// StartSecuredNATS is StartNATS for a server that accepts only clients with a
// certificate.
func StartSecuredNATS(ctx context.Context, dir string) (*NATS, error) {
	return startOne(ctx, natsConfig{dir: dir, tls: true}, "--watcher", "file/default", "--tls", "127.0.0.1")
}

// StartOlderNATS is StartNATS for a server as those of earlier builds: with one
// account, and one token for all clients.
func StartOlderNATS(ctx context.Context, dir string) (*NATS, error) {
	c := natsConfig{name: "nats-server", dir: dir, host: "127.0.0.1", token: "only-on-loopback", wrap: func(argv []string) []string { return argv }}
	if err := os.WriteFile(c.tokenFile(), []byte(c.token+"\n"), 0o600); err != nil {
		return nil, err
	}
	return startNATS(ctx, c)
}

func (c natsConfig) tokenFile() string {
	if c.token == "" {
		return ""
	}
	return filepath.Join(c.dir, "nats.token")
}

func startOne(ctx context.Context, c natsConfig, users ...string) (*NATS, error) {
	c.name, c.host, c.auth = "nats-server", "127.0.0.1", authIn(c.dir)
	c.wrap = func(argv []string) []string { return argv }
	if err := BusAuth(ctx, c.auth, users...); err != nil {
		return nil, err
	}
	return startNATS(ctx, c)
}

// BusAuth runs `meshlog bus-auth` on a directory.
func BusAuth(ctx context.Context, dir string, flags ...string) error {
	var written struct{ Files []any }
	return meshlog(ctx, &written, append([]string{"bus-auth", dir}, flags...)...)
}

// Flags returns the flags by which a program with a role, or the command line
// (role operator), finds the server and its key.
func (n *NATS) Flags(role string) []string {
	if n.token != "" {
		return []string{"--bus", n.URL(), "--bus-token-file", n.token}
	}
	in := func(file string) string { return filepath.Join(n.Auth, file) }
	flags := []string{"--bus", n.URL(), "--bus-nkey", keyOf(n.Auth, role)}
	if n.tls {
		flags = append(flags, "--bus-ca", in("ca.pem"), "--bus-cert", in("client.pem"), "--bus-key", in("client.key"))
	}
	return flags
}

// keyOf returns the path of a role's key. The watchers of all Kubernetes clusters may
// share one.
func keyOf(auth, role string) string {
	path := filepath.Join(auth, role+".nk")
	if _, err := os.Stat(path); err != nil && strings.HasPrefix(role, "watcher-kubernetes-") {
		return filepath.Join(auth, "watcher-kubernetes.nk")
	}
	return path
}

// Admin returns the administrator's key, for clients that look at streams.
func (n *NATS) Admin() (nats.Option, error) { return n.Key("admin") }

// Key returns the key of a role, for a client of its own.
func (n *NATS) Key(role string) (nats.Option, error) {
	return nats.NkeyOptionFromSeed(keyOf(n.Auth, role))
}

func startNATS(ctx context.Context, c natsConfig) (*NATS, error) {
	bin, err := program.Tool(ctx, "nats-server")
	if err != nil {
		return nil, err
	}
	port, err := testport.TCP()
	if err != nil {
		return nil, err
	}
	monitor, err := testport.TCP()
	if err != nil {
		return nil, err
	}
	n := &NATS{
		Port: port, Auth: c.auth, tls: c.tls, token: c.tokenFile(), Data: filepath.Join(c.dir, c.name+".data"),
		host: c.host, monitor: net.JoinHostPort(c.host, strconv.Itoa(monitor)),
	}
	if err := os.MkdirAll(n.Data, 0o700); err != nil {
		return nil, err
	}
	config := filepath.Join(c.dir, c.name+".conf")
	err = os.WriteFile(config, fmt.Appendf(nil, `server_name: %q
listen: %q
http: %q
%s
jetstream { store_dir: %q, sync_interval: always }
%s`, c.name, n.addr(), n.monitor, c.access(), n.Data, c.more), 0o600)
	if err != nil {
		return nil, err
	}
	n.Process, err = program.Start(c.name, c.dir, c.wrap([]string{bin, "-c", config}))
	if err != nil {
		return nil, err
	}
	return n, n.listening(ctx)
}

// Restart starts the server again, with the same streams on the same port. The
// old process must have ended.
func (n *NATS) Restart(ctx context.Context) error {
	p, err := n.Again()
	if err != nil {
		return err
	}
	n.Process = p
	return n.listening(ctx)
}

// listening waits until the server accepts connections, and kills it if it does
// not.
func (n *NATS) listening(ctx context.Context) error {
	err := n.UntilAlive(ctx, n.Name+" to listen", func(ctx context.Context) error {
		return dial(ctx, n.addr())
	})
	if err != nil {
		n.Kill()
	}
	return err
}

func (n *NATS) addr() string { return net.JoinHostPort(n.host, strconv.Itoa(n.Port)) }

// URL returns the address for clients.
func (n *NATS) URL() string { return "nats://" + n.addr() }
