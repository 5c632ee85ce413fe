package rig

import (
	"context"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strconv"

	"meshlog.dev/deploy/testkit/program"
	"meshlog.dev/deploy/testkit/testport"
)

// natsToken is the token that the servers accept.
const natsToken = "only-on-loopback"

// NATS is a separate NATS server process with JetStream. It accepts a token or,
// if Auth is set, a key of each role together with a certificate.
type NATS struct {
	*program.Process
	Port      int
	Token     string
	TokenFile string
	// Data is the directory of its streams.
	Data string
	// Auth is the directory that `meshlog bus-auth` wrote.
	Auth string

	host    string
	monitor string // host and port of its monitoring endpoint
}

// natsConfig holds the settings in which servers differ.
type natsConfig struct {
	name, dir, host string
	more            string // additional configuration
	token           string
	tokenFile       string
	auth            string // directory within dir; empty: clients use the token
	wrap            func(argv []string) []string
}

// access returns the server's configuration of its users.
func (c natsConfig) access() string {
	if c.auth == "" {
		return fmt.Sprintf("authorization { token: %q }", c.token)
	}
	return fmt.Sprintf(`include "%s/auth.conf"
tls { cert_file: "%[2]s/server.pem", key_file: "%[2]s/server.key", ca_file: "%[2]s/ca.pem", verify: true }`,
		c.auth, filepath.Join(c.dir, c.auth))
}

// StartNATS starts a server that keeps its streams in dir and syncs each write
// before it acknowledges it. It waits until the server accepts connections.
func StartNATS(ctx context.Context, dir string) (*NATS, error) {
	c := natsConfig{
		name: "nats-server", dir: dir, host: "127.0.0.1", token: natsToken, tokenFile: filepath.Join(dir, "nats.token"),
		wrap: func(argv []string) []string { return argv },
	}
	if err := os.WriteFile(c.tokenFile, []byte(c.token+"\n"), 0o600); err != nil {
		return nil, err
	}
	return startNATS(ctx, c)
}

// StartSecuredNATS starts a server that accepts only the users that `meshlog
// bus-auth` writes, each with its key, and only clients with a certificate.
func StartSecuredNATS(ctx context.Context, dir string) (*NATS, error) {
	c := natsConfig{
		name: "nats-server", dir: dir, host: "127.0.0.1", auth: "auth",
		wrap: func(argv []string) []string { return argv },
	}
	if err := BusAuth(ctx, filepath.Join(dir, c.auth), "--watcher", "file/default", "--tls", c.host); err != nil {
		return nil, err
	}
	n, err := startNATS(ctx, c)
	if err == nil {
		n.Auth = filepath.Join(dir, c.auth)
	}
	return n, err
}

// BusAuth runs `meshlog bus-auth` on a directory.
func BusAuth(ctx context.Context, dir string, flags ...string) error {
	var files []any
	return meshlog(ctx, &files, append([]string{"bus-auth", dir}, flags...)...)
}

// Flags returns the flags by which a program with a role, or the command line
// (role operator), finds the server and its key.
func (n *NATS) Flags(role string) []string {
	if n.Auth == "" {
		return []string{"--bus", n.URL(), "--bus-token-file", n.TokenFile}
	}
	in := func(file string) string { return filepath.Join(n.Auth, file) }
	return []string{
		"--bus", n.URL(), "--bus-nkey", in(role + ".nk"),
		"--bus-ca", in("ca.pem"), "--bus-cert", in("client.pem"), "--bus-key", in("client.key"),
	}
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
		Port: port, Token: c.token, TokenFile: c.tokenFile, Data: filepath.Join(c.dir, c.name+".data"),
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
