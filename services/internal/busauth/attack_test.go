package busauth

import (
	"bufio"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/nats-io/nkeys"

	"meshlog.dev/deploy/testkit/program"
	"meshlog.dev/deploy/testkit/testport"
	"meshlog.dev/events/natslog"
	"meshlog.dev/proto/ident"
	"meshlog.dev/services/internal/audit"
	"meshlog.dev/services/internal/bus"
	"meshlog.dev/services/internal/cakv"
	"meshlog.dev/store/natsfeed"
)

var quiet = slog.New(slog.DiscardHandler)

// Shards of the mesh under attack, besides files.
var (
	eu   = ident.Shard{Source: "kubernetes", Instance: "eu"}
	ca   = ident.Shard{Source: bus.CASource, Instance: "default"}
	jwks = ident.Shard{Source: bus.JWKSSource, Instance: "default"}
)

// target is a bus under attack: servers with the accounts of a mesh and its streams.
// Besides its roles, each account has an observer: a user without a permission list.
type target struct {
	testing.TB
	dir       string
	addrs     []string
	observers map[string]nkeys.KeyPair // by account
	admin     jetstream.JetStream
}

// arrangement says how many servers there are, and whether they are processes of
// nats-server, or in this process.
type arrangement struct {
	servers int
	apart   bool
	up      bool // the server of `meshlog up`
}

var (
	one   = arrangement{servers: 1}
	three = arrangement{servers: 3}
)

var arrangements = map[string]arrangement{
	"one": one, "three": three, "one, apart": {servers: 1, apart: true}, "three, apart": {servers: 3, apart: true},
	"embedded": {servers: 1, up: true},
}

// underAttack starts a bus. prepare may change the configuration of its accounts.
func underAttack(t testing.TB, a arrangement, prepare func(conf string) string) *target {
	t.Helper()
	b := &target{TB: t, dir: t.TempDir(), observers: map[string]nkeys.KeyPair{}}
	_, err := WriteUsers(b.dir, "mesh", append(roles, bus.Observer(), bus.Console(), bus.Watcher(eu), bus.Watcher(ca), bus.Watcher(jwks)))
	must(t, err)
	path := filepath.Join(b.dir, ConfigName)
	conf, err := os.ReadFile(path)
	must(t, err)
	watched := usersOf.ReplaceAllStringFunc(string(conf), func(block string) string {
		key, err := nkeys.CreateUser()
		must(t, err)
		public, err := key.PublicKey()
		must(t, err)
		b.observers[usersOf.FindStringSubmatch(block)[1]] = key
		return block + fmt.Sprintf("      { nkey: %q }\n", public)
	})
	if prepare != nil {
		watched = prepare(watched)
	}
	must(t, os.WriteFile(path, []byte(watched), 0o600))
	b.start(a)
	b.fill(a.servers)
	return b
}

// usersOf matches the beginning of an account, up to its users.
var usersOf = regexp.MustCompile(`(?m)^  "([A-Z]\S*)" \{\n(?:    (?:limits|jetstream) .*\n)?    users: \[\n`)

func (b *target) start(a arrangement) {
	if a.up {
		conf, err := os.ReadFile(filepath.Join(b.dir, ConfigName))
		must(b.TB, err)
		s, err := bus.StartServer(bus.ServerOptions{
			Dir: filepath.Join(b.dir, "data"), Listen: "127.0.0.1:0", Log: quiet,
			Accounts: func(dir string) error {
				return errors.Join(os.Mkdir(dir, 0o700), os.WriteFile(filepath.Join(dir, ConfigName), conf, 0o600))
			},
		})
		must(b.TB, err)
		b.Cleanup(func() { must(b.TB, s.Close()) })
		b.addrs = []string{strings.TrimPrefix(s.URL(), "nats://")}
		return
	}
	var ports, routes []string
	for range a.servers {
		for _, list := range []*[]string{&ports, &routes} {
			port, err := testport.TCP()
			must(b.TB, err)
			*list = append(*list, fmt.Sprintf("127.0.0.1:%d", port))
		}
	}
	b.addrs = ports
	for i := range a.servers {
		name := fmt.Sprintf("nats-%d", i+1)
		conf := fmt.Sprintf("server_name: %s\nlisten: %q\ninclude %q\njetstream { store_dir: %q }\n",
			name, ports[i], ConfigName, filepath.Join(b.dir, name))
		if a.servers > 1 {
			conf += fmt.Sprintf("cluster { name: c, listen: %q, routes: [nats://%s] }\n", routes[i], strings.Join(routes, ", nats://"))
		}
		path := filepath.Join(b.dir, name+".conf")
		must(b.TB, os.WriteFile(path, []byte(conf), 0o600))
		if a.apart {
			bin, err := program.Tool(b.Context(), "nats-server")
			must(b.TB, err)
			p, err := program.Start(name, b.dir, []string{bin, "-c", path})
			must(b.TB, err)
			b.Cleanup(p.Kill)
			must(b.TB, p.UntilAlive(b.Context(), name, func(ctx ctx) error {
				c, err := new(net.Dialer).DialContext(ctx, "tcp", ports[i])
				if err == nil {
					c.Close()
				}
				return err
			}))
			continue
		}
		o, err := server.ProcessConfigFile(path)
		must(b.TB, err)
		o.NoSigs, o.NoLog = true, true
		s, err := server.NewServer(o)
		must(b.TB, err)
		s.Start()
		b.Cleanup(func() { s.Shutdown(); s.WaitForShutdown() })
		if !s.ReadyForConnections(time.Minute) {
			b.Fatal("the server does not start")
		}
	}
}

func (b *target) connect(r bus.Role, node int) *bus.Conn {
	b.Helper()
	nc, err := bus.Connect(bus.ConnectOptions{
		URL: "nats://" + b.addrs[node%len(b.addrs)], NkeyFile: filepath.Join(b.dir, r.KeyName()),
		Role: r, Name: r.String() + "-1", Log: quiet,
	})
	must(b.TB, err)
	b.Cleanup(nc.Close)
	return nc
}

// creation is the request to make or change a stream, as content of a record.
const creation = `{"name":"X","subjects":["x"]}`

// fill makes the streams as a builder does, and stores messages that an attacker can
// have the server send: each is a valid request.
func (b *target) fill(replicas int) {
	b.Helper()
	builder := b.connect(bus.Builder(), 0)
	_, err := natslog.EnsureStream(b.Context(), builder, natslog.StreamOptions{Replicas: replicas})
	must(b.TB, err)
	_, err = natsfeed.EnsureStreams(b.Context(), builder, natsfeed.StreamOptions{Replicas: replicas})
	must(b.TB, err, bus.EnsureLeases(b.Context(), builder, replicas), audit.EnsureStream(b.Context(), builder, audit.StreamOptions{Replicas: replicas}), cakv.EnsureStream(b.Context(), builder, replicas))
	for role, subjects := range map[bus.Role][]string{
		bus.Builder():      {"meshlog.ver.mesh", "meshlog.ev.mesh._builder.segment", "$KV.meshlog_lease.builder.mesh"},
		bus.Watcher(files): {"meshlog.ev.mesh.file.default.Gateway.x"},
		bus.Watcher(eu):    {"meshlog.ev.mesh.kubernetes.eu.Gateway.x", "meshlog.audit.mesh.watcher.kubernetes.eu"},
		bus.Frontend():     {"meshlog.audit.mesh.frontend"},
		bus.Operator():     {joinSubject},
		bus.Watcher(ca):    {spentSubject},
	} {
		js, err := jetstream.New(b.connect(role, 1))
		must(b.TB, err)
		for _, s := range subjects {
			_, err := js.Publish(b.Context(), s, []byte(creation))
			must(b.TB, err)
		}
	}
	b.admin, err = jetstream.New(b.connect(bus.Admin(), 0))
	must(b.TB, err)
}

// state returns all streams with what they hold.
func (b *target) state() string {
	b.Helper()
	var s strings.Builder
	list := b.admin.ListStreams(b.Context())
	for i := range list.Info() {
		fmt.Fprintf(&s, "%s %v: %d to %d, %d messages, %d deleted\n", i.Config.Name, i.Config.Subjects,
			i.State.FirstSeq, i.State.LastSeq, i.State.Msgs, i.State.NumDeleted)
	}
	must(b.TB, list.Err())
	return s.String()
}

// heard are the messages under some subjects that reached an account.
type heard struct {
	nc  *nats.Conn
	all chan *nats.Msg
}

// observe listens to everything in an account.
func (b *target) observe(account string, node int) heard {
	b.Helper()
	key := b.observers[account]
	public, err := key.PublicKey()
	must(b.TB, err)
	nc, err := nats.Connect("nats://"+b.addrs[node%len(b.addrs)], nats.Nkey(public, key.Sign))
	must(b.TB, err)
	b.Cleanup(nc.Close)
	h := heard{nc, make(chan *nats.Msg, 10_000)}
	_, err = nc.ChanSubscribe(">", h.all)
	must(b.TB, err, nc.Flush())
	return h
}

// under returns the messages under a subject that have arrived, and forgets the rest.
func (h heard) under(subject string) (n int) {
	for {
		select {
		case m := <-h.all:
			if m.Subject == subject {
				n++
			}
		default:
			return n
		}
	}
}

// raw is a client that chooses its own bytes.
type raw struct {
	testing.TB
	conn net.Conn
	in   *bufio.Reader
}

// raw connects with a key.
func (b *target) raw(key nkeys.KeyPair, node int) *raw {
	b.Helper()
	conn, err := net.Dial("tcp", b.addrs[node%len(b.addrs)])
	must(b.TB, err, conn.SetDeadline(time.Now().Add(time.Minute)))
	b.Cleanup(func() { conn.Close() })
	r := &raw{b.TB, conn, bufio.NewReader(conn)}
	line, err := r.in.ReadString('\n')
	must(b.TB, err)
	var info struct{ Nonce string }
	must(b.TB, json.Unmarshal([]byte(strings.TrimPrefix(line, "INFO ")), &info))
	sig, err := key.Sign([]byte(info.Nonce))
	must(b.TB, err)
	public, err := key.PublicKey()
	must(b.TB, err)
	r.send("CONNECT {\"verbose\":false,\"headers\":true,\"no_responders\":true,\"protocol\":1,\"nkey\":%q,\"sig\":%q}\r\n",
		public, base64.RawURLEncoding.EncodeToString(sig))
	if said := r.ping(); said != "" {
		b.Fatal(said)
	}
	return r
}

func (b *target) key(r bus.Role) nkeys.KeyPair {
	b.Helper()
	seed, err := os.ReadFile(filepath.Join(b.dir, r.KeyName()))
	must(b.TB, err)
	key, err := nkeys.ParseDecoratedNKey(seed)
	must(b.TB, err)
	return key
}

func (r *raw) send(format string, args ...any) {
	r.Helper()
	_, err := fmt.Fprintf(r.conn, format, args...)
	must(r.TB, err)
}

// ping waits until the server has processed what was sent, and returns its errors.
func (r *raw) ping() (said string) {
	r.Helper()
	r.send("PING\r\n")
	for {
		line, err := r.in.ReadString('\n')
		must(r.TB, err)
		switch {
		case strings.HasPrefix(line, "PONG"):
			return said
		case strings.HasPrefix(line, "-ERR"):
			said += line
		}
	}
}

func (r *raw) publish(subject, reply, data string) (said string) {
	r.Helper()
	r.send("PUB %s %s %d\r\n%s\r\n", subject, reply, len(data), data)
	return r.ping()
}

func (r *raw) subscribe(subject string) (said string) {
	r.Helper()
	r.send("SUB %s 1\r\n", subject)
	return r.ping()
}

// traced publishes a message whose trace goes to a subject.
func (r *raw) traced(subject, to, data string) (said string) {
	r.Helper()
	header := "NATS/1.0\r\nNats-Trace-Dest: " + to + "\r\n\r\n"
	r.send("HPUB %s %d %d\r\n%s%s\r\n", subject, len(header), len(header)+len(data), header, data)
	return r.ping()
}

func natsStream(name, subject string) jetstream.StreamConfig {
	return jetstream.StreamConfig{Name: name, Subjects: []string{subject}}
}
