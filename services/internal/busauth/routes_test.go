package busauth

import (
	tlslib "crypto/tls"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/nats-io/nats-server/v2/server"

	"meshlog.dev/deploy/testkit/testport"
)

func TestWriteRoutes(t *testing.T) {
	dir, now := t.TempDir(), time.Now()
	write := func(now time.Time, servers []string, want string) string {
		t.Helper()
		got, err := WriteRoutes(dir, servers, now)
		must(t, err)
		var all []string
		for _, f := range got {
			all = append(all, filepath.Base(f.Path)+" "+f.State)
		}
		if diff := cmp.Diff(want, strings.Join(all, ", ")); diff != "" {
			t.Errorf("files (-want +got):\n%s", diff)
		}
		b, err := os.ReadFile(filepath.Join(dir, RoutesName))
		must(t, err)
		return string(b)
	}
	const kept = "routes-ca.pem kept, routes-ca.key kept, route.pem kept, route.key kept"
	first := write(now, []string{"a", "b:7"}, "routes.conf new, routes-ca.pem new, routes-ca.key new, route.pem new, route.key new")
	for _, want := range []string{`"tls://route:`, `@a:6222"`, `@b:7"`} {
		if !strings.Contains(first, want) {
			t.Errorf("the file lacks %s:\n%s", want, first)
		}
	}
	write(now, []string{"a", "b:7"}, "routes.conf kept, "+kept)
	// The password and the pinned key stay, when servers are added and certificates
	// renewed: servers restart one by one.
	secret := regexp.MustCompile(`password: ".{26}"|ROUTE_KEYS: \["[0-9a-f]{64}"\]`)
	second := write(now.AddDate(0, 11, 15), []string{"a", "b:7", "c"}, "routes.conf changed, routes-ca.pem kept, routes-ca.key kept, route.pem changed, route.key kept")
	if diff := cmp.Diff(secret.FindAllString(first, -1), secret.FindAllString(second, -1)); diff != "" || len(secret.FindAllString(first, -1)) != 2 {
		t.Errorf("secrets (-first +second):\n%s", diff)
	}
	for _, name := range []string{RoutesName, "route.key", "routes-ca.key"} {
		info, err := os.Stat(filepath.Join(dir, name))
		must(t, err)
		if info.Mode() != 0o600 {
			t.Errorf("%s: mode %v", name, info.Mode())
		}
	}
	must(t, os.WriteFile(filepath.Join(dir, RoutesName), []byte(second+"\n"), 0o600))
	if _, err := WriteRoutes(dir, []string{"a"}, now); err == nil || !strings.Contains(err.Error(), "was changed since") {
		t.Errorf("a file of a user: %v", err)
	}
}

// member is a server that joins, or tries to.
type member struct {
	*server.Server
	port  int
	lines chan string
}

// join starts a server with a cluster block.
func join(t *testing.T, name, dir, cluster string) *member {
	t.Helper()
	m := &member{lines: make(chan string, 10_000)}
	var err error
	m.port, err = testport.TCP()
	must(t, err)
	path := filepath.Join(dir, name+".conf")
	must(t, os.WriteFile(path, fmt.Appendf(nil, `server_name: %s
listen: "127.0.0.1:-1"
cluster {
  name: meshlog
  listen: "127.0.0.1:%d"
  connect_retries: 5
%s
}
`, name, m.port, cluster), 0o600))
	o, err := server.ProcessConfigFile(path)
	must(t, err)
	o.NoSigs = true
	m.Server, err = server.NewServer(o)
	must(t, err)
	m.SetLoggerV2(m, false, false, false)
	m.Start()
	t.Cleanup(func() { m.Shutdown(); m.WaitForShutdown() })
	if !m.ReadyForConnections(time.Minute) {
		t.Fatal("the server does not start")
	}
	return m
}

func (m *member) line(format string, v ...any) {
	select {
	case m.lines <- fmt.Sprintf(format, v...):
	default:
	}
}
func (m *member) Noticef(format string, v ...any) { m.line(format, v...) }
func (m *member) Warnf(format string, v ...any)   { m.line(format, v...) }
func (m *member) Errorf(format string, v ...any)  { m.line(format, v...) }
func (m *member) Fatalf(format string, v ...any)  { m.line(format, v...) }
func (m *member) Debugf(string, ...any)           {}
func (m *member) Tracef(string, ...any)           {}

// BUS-5: a server joins only with the password, and with the certificate of routes. A
// server that joins without could make itself a user in any account.
func TestRogueServer(t *testing.T) {
	good, other := t.TempDir(), t.TempDir()
	for _, dir := range []string{good, other} {
		_, err := WriteRoutes(dir, []string{"127.0.0.1:1"}, time.Now())
		must(t, err)
		_, err = WriteCertificates(dir, []string{"127.0.0.1"}, time.Now())
		must(t, err)
	}
	tls := func(cert, ca string) string {
		return fmt.Sprintf("  tls { cert_file: %q, key_file: %q, ca_file: %q, verify: true }\n", cert+".pem", cert+".key", ca+".pem")
	}
	own := tls(good+"/route", good+"/routes-ca")
	pinned := fmt.Sprintf("  include %q\n", RoutesName) + strings.Replace(own, "verify: true", "verify: true, pinned_certs: $ROUTE_KEYS", 1)
	b, err := os.ReadFile(filepath.Join(good, RoutesName))
	must(t, err)
	password := password(string(b))

	// Another certificate of the right authority, whose key has leaked.
	leaked := t.TempDir()
	for _, name := range []string{"routes-ca.pem", "routes-ca.key"} {
		b, err := os.ReadFile(filepath.Join(good, name))
		must(t, err, os.WriteFile(filepath.Join(leaked, name), b, 0o600))
	}
	_, err = WriteRoutes(leaked, []string{"127.0.0.1:1"}, time.Now())
	must(t, err)

	route := func(scheme, user string) string {
		return fmt.Sprintf("  routes: [\"%s://%s127.0.0.1:PORT\"]\n", scheme, user)
	}
	at := func(m *member, cluster string) string { return strings.ReplaceAll(cluster, "PORT", fmt.Sprint(m.port)) }
	user := routeUser + ":" + password + "@"
	for name, test := range map[string]struct {
		cluster string
		refusal string // by either server
	}{
		"without TLS":                     {route("nats", user), "tls: first record does not look like a TLS handshake"},
		"without a password":              {route("tls", "") + own, "Authorization Violation"},
		"with a wrong password":           {route("tls", routeUser+":x@") + own, "Authorization Violation"},
		"with a client's certificate":     {route("tls", user) + tls(good+"/client", good+"/routes-ca"), "TLS route handshake error: tls: client didn't provide a certificate"},
		"with the servers' certificate":   {route("tls", user) + tls(good+"/server", good+"/routes-ca"), "TLS route handshake error: tls: client didn't provide a certificate"},
		"with another authority":          {route("tls", user) + tls(other+"/route", good+"/routes-ca"), "certificate signed by unknown authority"},
		"with a key that is not pinned":   {route("tls", user) + tls(leaked+"/route", good+"/routes-ca"), "certificate not pinned"},
		"that the others connect to (CA)": {route("tls", user) + tls(other+"/route", other+"/routes-ca"), "certificate signed by unknown authority"},
	} {
		t.Run(name, func(t *testing.T) {
			honest := join(t, "honest", good, pinned)
			rogue := join(t, "rogue", t.TempDir(), at(honest, test.cluster))
			var said []string
			for deadline := time.After(10 * time.Second); !strings.Contains(strings.Join(said, "\n"), test.refusal); {
				select {
				case line := <-honest.lines:
					said = append(said, "honest: "+line)
				case line := <-rogue.lines:
					said = append(said, "rogue: "+line)
				case <-deadline:
					t.Fatalf("no server says %q:\n%s", test.refusal, strings.Join(said, "\n"))
				}
			}
			if n := honest.NumRoutes(); n != 0 {
				t.Errorf("it joined: %d routes", n)
			}
		})
	}

	// A Go client offers no certificate of an authority that the server does not name;
	// another program does.
	honest := join(t, "honest", good, pinned)
	cert, err := tlslib.LoadX509KeyPair(filepath.Join(good, "client.pem"), filepath.Join(good, "client.key"))
	must(t, err)
	conn, err := net.Dial("tcp", fmt.Sprintf("127.0.0.1:%d", honest.port))
	must(t, err, conn.SetDeadline(time.Now().Add(10*time.Second)))
	defer conn.Close()
	forced := tlslib.Client(conn, &tlslib.Config{
		InsecureSkipVerify:   true, //nolint:gosec // the test is the attacker
		GetClientCertificate: func(*tlslib.CertificateRequestInfo) (*tlslib.Certificate, error) { return &cert, nil },
	})
	err = forced.Handshake()
	if err == nil {
		_, err = forced.Read(make([]byte, 1))
	}
	if err == nil || !strings.Contains(err.Error(), "unknown certificate authority") {
		t.Errorf("a client's certificate that is offered unasked: %v", err)
	}

	// An honest server joins.
	join(t, "honest-2", good, at(honest, route("tls", user))+fmt.Sprintf("  authorization { user: %s, password: %q }\n", routeUser, password)+own)
	for deadline := time.Now().Add(20 * time.Second); honest.NumRoutes() == 0; {
		select {
		case <-honest.lines:
		case <-time.After(time.Until(deadline)):
			t.Fatal("a server with the secrets does not join")
		}
	}
}

// The configurations that we ship have accounts, and routes that demand the secrets.
func TestShippedConfigurations(t *testing.T) {
	t.Setenv("NATS_NAME", "nats-1")
	t.Setenv("POD_NAME", "nats-0")
	for _, name := range []string{"nats/nats-server.conf", "compose/nats.conf", "kubernetes/base/nats.conf"} {
		b, err := os.ReadFile(filepath.Join("../../../deploy", name))
		must(t, err)
		dir := t.TempDir()
		// auth/ and tls/ are directories of one of them.
		for _, sub := range []string{dir, filepath.Join(dir, "auth"), filepath.Join(dir, "tls")} {
			_, err = WriteUsers(sub, "mesh", roles)
			must(t, err)
			_, err = WriteRoutes(sub, []string{"nats-1", "nats-2", "nats-3"}, time.Now())
			must(t, err)
			_, err = WriteCertificates(sub, []string{"nats-1"}, time.Now())
			must(t, err)
		}
		path := filepath.Join(dir, "nats.conf")
		must(t, os.WriteFile(path, []byte(strings.ReplaceAll(string(b), "/etc/nats", dir)), 0o600))
		o, err := server.ProcessConfigFile(path)
		if err != nil {
			t.Errorf("%s: %v", name, err)
			continue
		}
		c := o.Cluster
		if len(o.Accounts) != 6 || c.Username == "" || c.Password == "" || len(o.Routes) != 3 || len(c.TLSPinnedCerts) != 1 ||
			c.TLSConfig == nil || c.TLSConfig.ClientAuth != tlslib.RequireAndVerifyClientCert {
			t.Errorf("%s: %d accounts; routes %v, user %q, %d pinned keys, TLS %v", name, len(o.Accounts), o.Routes, c.Username, len(c.TLSPinnedCerts), c.TLSConfig != nil)
		}
	}
}
