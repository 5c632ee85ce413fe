package busauth

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go"

	"meshlog.dev/events"
	"meshlog.dev/events/natslog"
	"meshlog.dev/proto/ident"
	"meshlog.dev/proto/jsapi"
	"meshlog.dev/services/internal/audit"
	"meshlog.dev/services/internal/bus"
	"meshlog.dev/services/internal/cakv"
	"meshlog.dev/store/natsfeed"
)

var files = ident.Shard{Source: "file", Instance: "default"}

var roles = []bus.Role{bus.Builder(), bus.Frontend(), bus.Operator(), bus.Watcher(files)}

var clusters = bus.Watchers("kubernetes")

func must(t testing.TB, errs ...error) {
	t.Helper()
	if err := errors.Join(errs...); err != nil {
		t.Fatal(err)
	}
}

// secured is a server with the users and certificates of a directory.
type secured struct {
	t      *testing.T
	dir    string
	conf   string
	server *server.Server
}

func start(t *testing.T) *secured {
	t.Helper()
	s := &secured{t: t, dir: t.TempDir()}
	if _, err := WriteUsers(s.dir, "mesh", append(roles, clusters)); err != nil {
		t.Fatal(err)
	}
	if _, err := WriteCertificates(s.dir, []string{"127.0.0.1"}, time.Now()); err != nil {
		t.Fatal(err)
	}
	s.conf = filepath.Join(s.dir, "nats.conf")
	conf := fmt.Sprintf(`listen: "127.0.0.1:-1"
include "auth.conf"
tls { cert_file: "%[1]s/server.pem", key_file: "%[1]s/server.key", ca_file: "%[1]s/ca.pem", verify: true }
jetstream { store_dir: "%[1]s/js" }
`, s.dir)
	if err := os.WriteFile(s.conf, []byte(conf), 0o600); err != nil {
		t.Fatal(err)
	}
	s.run(0)
	t.Cleanup(func() { s.server.Shutdown(); s.server.WaitForShutdown() })
	return s
}

// run starts the server, on a port or, with 0, any.
func (s *secured) run(port int) {
	s.t.Helper()
	o, err := server.ProcessConfigFile(s.conf)
	if err != nil {
		s.t.Fatal(err)
	}
	o.NoSigs, o.NoLog = true, true
	if port != 0 {
		o.Port = port
	}
	if s.server, err = server.NewServer(o); err != nil {
		s.t.Fatal(err)
	}
	s.server.Start()
	if !s.server.ReadyForConnections(time.Minute) {
		s.t.Fatal("the server does not start")
	}
}

func (s *secured) in(name string) string { return filepath.Join(s.dir, name) }

func (s *secured) options(r bus.Role) bus.ConnectOptions {
	return bus.ConnectOptions{
		URL: "tls://" + s.server.Addr().String(), NkeyFile: s.in(r.KeyName()), Role: r, Name: r.String() + "-1",
		CAFile: s.in("ca.pem"), CertFile: s.in("client.pem"), KeyFile: s.in("client.key"),
		Log: slog.New(slog.DiscardHandler),
	}
}

func (s *secured) connect(r bus.Role) *bus.Conn {
	s.t.Helper()
	nc, err := bus.Connect(s.options(r))
	if err != nil {
		s.t.Fatal(err)
	}
	s.t.Cleanup(nc.Close)
	return nc
}

// A refused connection returns the reason, and what the user can do.
func TestRefused(t *testing.T) {
	s := start(t)
	elsewhere := t.TempDir()
	if _, err := WriteUsers(elsewhere, "mesh", roles); err != nil {
		t.Fatal(err)
	}
	if _, err := WriteCertificates(elsewhere, []string{"x"}, time.Now().AddDate(-2, 0, 0)); err != nil {
		t.Fatal(err)
	}
	in := func(name string) string { return filepath.Join(elsewhere, name) }
	for name, test := range map[string]struct {
		change func(o *bus.ConnectOptions)
		want   string
	}{
		"unknown key":      {func(o *bus.ConnectOptions) { o.NkeyFile = in("builder.nk") }, "it does not take the key in " + in("builder.nk") + " (U"},
		"no key":           {func(o *bus.ConnectOptions) { o.NkeyFile = "" }, "it does not take the certificate in"},
		"no such key":      {func(o *bus.ConnectOptions) { o.NkeyFile = "nowhere.nk" }, "key of the bus: open nowhere.nk"},
		"not a key":        {func(o *bus.ConnectOptions) { o.NkeyFile = s.conf }, "nats.conf: holds no seed of a user's key"},
		"unknown CA":       {func(o *bus.ConnectOptions) { o.CAFile = in("ca.pem") }, "is it the right --bus-ca?"},
		"no CA":            {func(o *bus.ConnectOptions) { o.CAFile = "" }, "give the authority that signed the server's certificate with --bus-ca"},
		"not a CA":         {func(o *bus.ConnectOptions) { o.CAFile = s.conf }, "nats.conf: holds no PEM certificate"},
		"no certificate":   {func(o *bus.ConnectOptions) { o.CertFile, o.KeyFile = "", "" }, "the server wants a certificate: give --bus-cert and --bus-key"},
		"half":             {func(o *bus.ConnectOptions) { o.KeyFile = "" }, "a certificate and its key belong together"},
		"expired, unknown": {func(o *bus.ConnectOptions) { o.CertFile, o.KeyFile = in("client.pem"), in("client.key") }, "the server does not take the certificate in " + in("client.pem")},
		"another name": {
			func(o *bus.ConnectOptions) { o.URL = strings.Replace(o.URL, "127.0.0.1", "localhost", 1) },
			"give --bus a name that is in the server's certificate",
		},
		"two": {func(o *bus.ConnectOptions) { o.TokenFile = "x" }, "give one of"},
	} {
		t.Run(name, func(t *testing.T) {
			o := s.options(bus.Frontend())
			test.change(&o)
			nc, err := bus.Connect(o)
			if err == nil {
				nc.Close()
			}
			if err == nil || !strings.Contains(err.Error(), test.want) {
				t.Errorf("%v does not say %q", err, test.want)
			}
		})
	}
}

func TestServerExpired(t *testing.T) {
	s := start(t)
	port := s.stop()
	for _, name := range []string{"ca", "server", "client"} { // again, as of long ago
		if err := os.Remove(s.in(name + ".pem")); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := WriteCertificates(s.dir, []string{"127.0.0.1"}, time.Now().AddDate(-2, 0, 0)); err != nil {
		t.Fatal(err)
	}
	s.run(port)
	_, err := bus.Connect(s.options(bus.Frontend()))
	if err == nil || !strings.Contains(err.Error(), "the server's certificate must be renewed") {
		t.Errorf("an expired server: %v", err)
	}
}

// stop stops the server and returns its port.
func (s *secured) stop() (port int) {
	port = s.server.Addr().(*net.TCPAddr).Port
	s.server.Shutdown()
	s.server.WaitForShutdown()
	return port
}

// Each connection reads keys and certificates again, the authority included: a
// renewed connection has the replaced ones.
func TestRotation(t *testing.T) {
	s := start(t)
	nc := s.connect(bus.Builder())
	renewed := nc.StatusChanged(nats.CONNECTED)
	defer nc.RemoveStatusListener(renewed)
	port := s.stop()
	for _, name := range []string{"builder.nk", "ca.pem", "ca.key", "server.pem", "server.key", "client.pem", "client.key"} {
		if err := os.Remove(s.in(name)); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := WriteUsers(s.dir, "mesh", roles); err != nil {
		t.Fatal(err)
	}
	if _, err := WriteCertificates(s.dir, []string{"127.0.0.1"}, time.Now()); err != nil {
		t.Fatal(err)
	}
	s.run(port)
	select {
	case <-renewed:
	case <-t.Context().Done():
	}
	if err := bus.Ready(nc); err != nil {
		t.Error(err)
	}
}

// A connection that cannot be renewed logs the reason.
func TestNotRenewed(t *testing.T) {
	s := start(t)
	var log lines
	o := s.options(bus.Builder())
	o.Log = slog.New(slog.NewTextHandler(&log, nil))
	log.wait = make(chan string, 64)
	nc, err := bus.Connect(o)
	if err != nil {
		t.Fatal(err)
	}
	defer nc.Close()
	port := s.stop()
	if err := os.Remove(s.in("builder.nk")); err != nil {
		t.Fatal(err)
	}
	if _, err := WriteUsers(s.dir, "mesh", roles[1:]); err != nil { // roles[0] is no longer a user
		t.Fatal(err)
	}
	elsewhere := t.TempDir()
	if _, err := WriteUsers(elsewhere, "mesh", roles); err != nil {
		t.Fatal(err)
	}
	if err := os.Rename(filepath.Join(elsewhere, "builder.nk"), s.in("builder.nk")); err != nil {
		t.Fatal(err)
	}
	s.run(port)
	const want = "it does not take the key in"
	for line := range log.wait {
		if strings.Contains(line, want) {
			break
		}
	}
	if err := bus.Ready(nc); err == nil || !strings.Contains(err.Error(), want) {
		t.Errorf("Ready: %v", err)
	}
}

// lines is a log writer that sends each line to a channel.
type lines struct{ wait chan string }

func (l *lines) Write(b []byte) (int, error) {
	select {
	case l.wait <- string(b):
	default:
	}
	return len(b), nil
}

// A request without permission fails soon, and the error names the subject.
func TestDenied(t *testing.T) {
	s := start(t)
	// A builder makes the streams.
	builder := s.connect(bus.Builder())
	if _, err := natslog.EnsureStream(t.Context(), builder, natslog.StreamOptions{}); err != nil {
		t.Fatal(err)
	}
	if _, err := natsfeed.EnsureStreams(t.Context(), builder, natsfeed.StreamOptions{}); err != nil {
		t.Fatal(err)
	}
	if err := bus.EnsureLeases(t.Context(), builder, 1); err != nil {
		t.Fatal(err)
	}
	if err := bus.Ready(builder); err != nil {
		t.Fatal(err)
	}
	begin := func(instance string) []events.Event {
		return []events.Event{{ID: "x/" + instance, Body: &events.Begin{
			Shard: ident.Shard{Source: "file", Instance: instance}, Session: "1", Holder: "h",
		}}}
	}
	openLog := func(nc *bus.Conn) *natslog.Log {
		log, err := natslog.Open(t.Context(), nc, natslog.Options{Shard: &files})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { log.Close() })
		return log
	}
	fleet := func(nc *bus.Conn) *bus.Fleet { return bus.NewFleet(nc, "mesh", slog.New(slog.DiscardHandler)) }
	for name, test := range map[string]struct {
		role    bus.Role
		do      func(nc *bus.Conn) error
		subject string
	}{
		"another shard": {bus.Watcher(files), func(nc *bus.Conn) error {
			_, err := openLog(nc).Append(t.Context(), begin("other"), events.Fence{})
			return err
		}, "meshlog.ev.mesh.file.other._ctl"},
		"another shard, each": {bus.Watcher(files), func(nc *bus.Conn) error {
			return openLog(nc).AppendEach(t.Context(), append(begin("default"), begin("other")...))
		}, "meshlog.ev.mesh.file.other._ctl"},
		"objects of a watcher, by an operator": {bus.Operator(), func(nc *bus.Conn) error {
			log, err := natslog.Open(t.Context(), nc, natslog.Options{})
			if err != nil {
				return err
			}
			defer log.Close()
			put := func(source string) []events.Event {
				return []events.Event{{ID: "put/" + source, Body: &events.Object{
					Key: ident.Key{Source: source, Instance: "default", Kind: "Gateway", Namespace: "x", Name: "a"}, Op: events.Delete, Session: "1", Pseq: 1,
				}}}
			}
			if _, err := log.Append(t.Context(), put(ident.API), events.Fence{}); err != nil { // it may apply objects (API-4)
				return err
			}
			_, err = log.Append(t.Context(), put("file"), events.Fence{})
			return err
		}, "meshlog.ev.mesh.file.default.Gateway.x"},
		"another shard's last": {bus.Watcher(files), func(nc *bus.Conn) error {
			_, err := openLog(nc).Last(t.Context(), events.ControlSubject(ident.Shard{Source: "file", Instance: "other"}))
			return err
		}, "$JS.API.DIRECT.GET.MESHLOG_EVENTS.meshlog.ev.mesh.file.other._ctl"},
		"the log": {bus.Frontend(), func(nc *bus.Conn) error {
			_, err := natslog.Open(t.Context(), nc, natslog.Options{})
			return err
		}, "$JS.API.STREAM.INFO.MESHLOG_EVENTS"},
		"the versions": {bus.Watcher(files), func(nc *bus.Conn) error {
			_, err := natsfeed.Open(t.Context(), nc, natsfeed.Options{})
			return err
		}, "$JS.API.STREAM.INFO.MESHLOG_VERSIONS"},
		"a blob": {bus.Frontend(), func(nc *bus.Conn) error {
			feed, err := natsfeed.Open(t.Context(), nc, natsfeed.Options{})
			if err != nil {
				return err
			}
			_, err = feed.PutBlob(t.Context(), []byte("x"))
			return err
		}, "$O.meshlog_blobs."},
		"reports": {bus.Frontend(), func(nc *bus.Conn) error {
			_, err := fleet(nc).Reports(t.Context(), bus.Summary)
			return err
		}, "meshlog.fleet.mesh.ask."},
		"digests": {bus.Frontend(), func(nc *bus.Conn) error {
			_, err := fleet(nc).Digests(t.Context(), files, "1", nil)
			return err
		}, "meshlog.fleet.mesh.digests"},
		"the audit": {bus.Frontend(), func(nc *bus.Conn) error {
			r, err := audit.NewReader(nc, "mesh")
			if err == nil {
				_, _, err = r.Newest(t.Context(), 1)
			}
			return err
		}, "$JS.API.STREAM.INFO.MESHLOG_AUDIT"},
		"the audit's stream": {bus.Operator(), func(nc *bus.Conn) error {
			return audit.EnsureStream(t.Context(), nc, audit.StreamOptions{})
		}, "$JS.API.STREAM.CREATE.MESHLOG_AUDIT"},
		"a key": {bus.Operator(), func(nc *bus.Conn) error {
			_, err := fleet(nc).RequestKey(t.Context(), files, nil)
			return err
		}, "meshlog.key.mesh.file.default"},
		"leases": {bus.Frontend(), func(nc *bus.Conn) error {
			return bus.EnsureLeases(t.Context(), nc, 1)
		}, "$JS.API.STREAM.INFO.KV_meshlog_lease"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			nc := s.connect(test.role)
			err := test.do(nc)
			if err == nil || !strings.Contains(err.Error(), test.subject) || !strings.Contains(err.Error(), "bus-auth") {
				t.Errorf("%v does not name %q and bus-auth", err, test.subject)
			}
			if err := bus.Ready(nc); !errors.As(err, new(*jsapi.DeniedError)) || !strings.Contains(err.Error(), "may not publish to "+test.subject) {
				t.Errorf("Ready: %v", err)
			}
		})
	}
}

// A process that watches all instances of a source publishes for each of them on its
// own connection, and for no other source.
func TestWatchers(t *testing.T) {
	s := start(t)
	if _, err := natslog.EnsureStream(t.Context(), s.connect(bus.Builder()), natslog.StreamOptions{}); err != nil {
		t.Fatal(err)
	}
	for _, test := range []struct {
		shard ident.Shard
		may   bool
	}{
		{ident.Shard{Source: "kubernetes", Instance: "east"}, true},
		{ident.Shard{Source: "kubernetes", Instance: "west.1"}, true},
		{files, false},
	} {
		o := s.options(bus.Watcher(test.shard))
		o.NkeyFile = s.in(clusters.KeyName())
		nc, err := bus.Connect(o)
		if err != nil {
			t.Fatal(err)
		}
		defer nc.Close()
		log, err := natslog.Open(t.Context(), nc, natslog.Options{Shard: &test.shard})
		if err == nil {
			defer log.Close()
			begin := &events.Begin{Shard: test.shard, Session: "1", Holder: "h"}
			_, err = log.Append(t.Context(), []events.Event{{ID: "x/" + test.shard.String(), Body: begin}}, events.Fence{})
		}
		if err == nil {
			_, err = log.Last(t.Context(), events.ControlSubject(test.shard))
		}
		if may := err == nil; may != test.may {
			t.Errorf("%s: %v", test.shard, err)
		}
	}
	if p := Permissions(clusters, "mesh"); !slices.Contains(p.Subscribe, "meshlog.fleet.mesh.listing.kubernetes.*") {
		t.Errorf("the watcher may not receive requests to list again: %v", p.Subscribe)
	}
}

// An operator reads the settings of streams, only the administrator changes them: with
// other settings a stream republishes its records into another one.
func TestStreams(t *testing.T) {
	s := start(t)
	builder, operator := s.connect(bus.Builder()), s.connect(bus.Operator())
	wanted := func(age time.Duration) []bus.StreamConfig {
		log, chain := natslog.StreamOptions{MaxAge: age}, natsfeed.StreamOptions{MaxAge: age}
		return []bus.StreamConfig{log.Config(), chain.Config(), chain.BlobConfig(), bus.LeaseConfig(1), audit.StreamOptions{}.Config(), cakv.Config(1)}
	}
	compare := func(age time.Duration) []bus.StreamState {
		t.Helper()
		states, err := bus.CompareStreams(t.Context(), operator, wanted(age)...)
		if err != nil {
			t.Fatal(err)
		}
		return states
	}
	for _, state := range compare(time.Hour) {
		if !state.Missing {
			t.Errorf("%s: exists before any process created it", state.Name)
		}
	}
	if _, err := natslog.EnsureStream(t.Context(), builder, natslog.StreamOptions{MaxAge: time.Hour}); err != nil {
		t.Fatal(err)
	}
	if _, err := natsfeed.EnsureStreams(t.Context(), builder, natsfeed.StreamOptions{MaxAge: time.Hour}); err != nil {
		t.Fatal(err)
	}
	must(t, bus.EnsureLeases(t.Context(), builder, 1), audit.EnsureStream(t.Context(), builder, audit.StreamOptions{}), cakv.EnsureStream(t.Context(), builder, 1))
	for _, state := range compare(time.Hour) {
		if state.Missing || len(state.Differences) > 0 {
			t.Errorf("%s: was just created with wrong settings: %+v", state.Name, state)
		}
	}
	states := compare(2 * time.Hour)
	got := map[string][]bus.Difference{}
	for _, state := range states {
		if len(state.Differences) > 0 {
			got[state.Name] = state.Differences
		}
	}
	age := []bus.Difference{{Setting: "max_age", Is: "1h0m0s", Wants: "2h0m0s"}}
	if diff := cmp.Diff(map[string][]bus.Difference{"MESHLOG_EVENTS": age, "MESHLOG_VERSIONS": age}, got); diff != "" {
		t.Errorf("differences (-want +got):\n%s", diff)
	}
	for _, nc := range []*bus.Conn{builder, operator} {
		err := states[0].Apply(t.Context(), nc)
		if err == nil || !strings.Contains(err.Error(), "may not publish to $JS.API.STREAM.UPDATE.MESHLOG_EVENTS") || !strings.Contains(err.Error(), "--bus-nkey DIR/admin.nk") {
			t.Errorf("%s changes settings: %v", nc.Opts.Name, err)
		}
	}
	for _, state := range states[:2] {
		if err := state.Apply(t.Context(), s.connect(bus.Admin())); err != nil {
			t.Error(err)
		}
	}
	for _, state := range compare(2 * time.Hour) {
		if len(state.Differences) > 0 {
			t.Errorf("%s: still has wrong settings after Apply: %+v", state.Name, state.Differences)
		}
	}
}

// The account of a watcher that is added while servers run reaches the streams after the
// second reload, as bus-auth says. Other watchers keep their connections.
func TestNewAccount(t *testing.T) {
	s := start(t)
	if _, err := natslog.EnsureStream(t.Context(), s.connect(bus.Builder()), natslog.StreamOptions{}); err != nil {
		t.Fatal(err)
	}
	begin := func(shard ident.Shard) error {
		nc := s.connect(bus.Watcher(shard))
		ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
		defer cancel()
		log, err := natslog.Open(ctx, nc, natslog.Options{Shard: &shard})
		if err != nil {
			return err
		}
		defer log.Close()
		_, err = log.Append(ctx, []events.Event{{ID: "x/" + shard.String(), Body: &events.Begin{Shard: shard, Session: "1", Holder: "h"}}}, events.Fence{})
		return err
	}
	must(t, begin(files))
	old := s.connect(bus.Watcher(files))
	lost := old.StatusChanged(nats.DISCONNECTED, nats.RECONNECTING)

	added := ident.Shard{Source: "consul", Instance: "dc1"}
	got, err := WriteUsers(s.dir, "mesh", append(roles, clusters, bus.Watcher(added)))
	must(t, err)
	if state := states(got)["auth.conf"]; state != "extended" {
		t.Errorf("auth.conf is %s, want extended", state)
	}
	must(t, s.server.Reload(), s.server.Reload())
	must(t, begin(added), begin(files))
	select {
	case <-lost:
		t.Error("another watcher lost its connection")
	default:
	}
}
