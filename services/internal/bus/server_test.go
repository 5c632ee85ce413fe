package bus

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/nats-io/nkeys"

	"meshlog.dev/proto/ident"
)

var quiet = slog.New(slog.DiscardHandler)

func startServer(t *testing.T, dir string) *Server {
	t.Helper()
	s, err := StartServer(ServerOptions{Dir: dir, Listen: "127.0.0.1:0", Accounts: administrator, Log: quiet})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := s.Close(); err != nil && !errors.Is(err, os.ErrClosed) {
			t.Error(err)
		}
	})
	return s
}

// administrator writes accounts without any role but the administrator's.
func administrator(dir string) error {
	key, err := nkeys.CreateUser()
	if err != nil {
		return err
	}
	seed, err := key.Seed()
	if err != nil {
		return err
	}
	public, err := key.PublicKey()
	return errors.Join(err, os.MkdirAll(dir, 0o700), os.WriteFile(filepath.Join(dir, "admin.nk"), seed, 0o600),
		os.WriteFile(filepath.Join(dir, AccountsName), fmt.Appendf(nil, `accounts { SYS {}, MESHLOG { jetstream: enabled, users: [ { nkey: %q } ] } }
system_account: SYS
`, public), 0o600))
}

func connect(t *testing.T, s *Server) *nats.Conn {
	t.Helper()
	nc, err := Connect(ConnectOptions{Server: s, Name: t.Name(), Log: quiet})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(nc.Close)
	return nc
}

func TestServerWritesBusFile(t *testing.T) {
	dir := t.TempDir()
	s := startServer(t, dir)
	path := filepath.Join(dir, FileName)
	info, err := os.Stat(path)
	if err != nil {
		t.Fatal(err)
	}
	if info.Mode().Perm() != 0o600 {
		t.Errorf("%s has mode %v, want 0600", path, info.Mode().Perm())
	}
	f, err := ReadBusFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if want := (File{URL: s.URL(), PID: os.Getpid()}); f != want {
		t.Errorf("bus file = %+v, want %+v", f, want)
	}
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	if _, err := ReadBusFile(path); !errors.Is(err, ErrNoBusFile) {
		t.Errorf("after Close: ReadBusFile: %v, want ErrNoBusFile", err)
	}
}

func TestServerKeepsStreams(t *testing.T) {
	dir := t.TempDir()
	for i, want := range []uint64{1, 2} {
		s := startServer(t, dir)
		nc := connect(t, s)
		js, err := jetstream.New(nc)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := js.CreateOrUpdateStream(t.Context(), jetstream.StreamConfig{Name: "T", Subjects: []string{"t"}}); err != nil {
			t.Fatal(err)
		}
		ack, err := js.Publish(t.Context(), "t", []byte("x"))
		if err != nil {
			t.Fatal(err)
		}
		if ack.Sequence != want {
			t.Errorf("start %d: sequence %d, want %d", i, ack.Sequence, want)
		}
		nc.Close()
		if err := s.Close(); err != nil {
			t.Fatal(err)
		}
	}
}

func TestServerRefuses(t *testing.T) {
	taken, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer taken.Close()
	used := t.TempDir()
	startServer(t, used)
	file := filepath.Join(t.TempDir(), "file")
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}

	for _, c := range []struct {
		name string
		o    ServerOptions
		want []string
	}{
		{"directory in use", ServerOptions{Dir: used, Listen: "127.0.0.1:0", Accounts: administrator}, []string{used, "in use by another process", "stop it"}},
		{"port in use", ServerOptions{Dir: t.TempDir(), Listen: taken.Addr().String(), Accounts: administrator}, []string{taken.Addr().String(), "address already in use"}},
		{"no address", ServerOptions{Dir: t.TempDir(), Listen: "localhost", Accounts: administrator}, []string{"listen address of the bus", "localhost", "missing port"}},
		{"no accounts", ServerOptions{Dir: t.TempDir(), Listen: "127.0.0.1:0"}, []string{"needs accounts for its clients"}},
		{"directory is a file", ServerOptions{Dir: file}, []string{file, "not a directory"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			c.o.Log = quiet
			s, err := StartServer(c.o)
			if err == nil {
				s.Close()
				t.Fatal("the server started")
			}
			for _, w := range c.want {
				if !strings.Contains(err.Error(), w) {
					t.Errorf("error %q does not contain %q", err, w)
				}
			}
		})
	}
}

func TestConnect(t *testing.T) {
	dir := t.TempDir()
	s := startServer(t, dir)
	good, bad := filepath.Join(dir, authDir, "admin.nk"), filepath.Join(t.TempDir(), "admin.nk")
	if err := administrator(filepath.Dir(bad)); err != nil {
		t.Fatal(err)
	}
	token := filepath.Join(t.TempDir(), "token")
	if err := os.WriteFile(token, []byte("nonsense\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		name string
		o    ConnectOptions
		want string // empty: it connects
	}{
		{"in process", ConnectOptions{Server: s}, ""},
		{"bus file", ConnectOptions{URL: filepath.Join(dir, FileName)}, ""},
		{"bus file, without the role", ConnectOptions{URL: filepath.Join(dir, FileName), Role: Frontend()}, "auth/frontend.nk; was the file moved"},
		{"bus file, another shard", ConnectOptions{URL: filepath.Join(dir, FileName), Role: Watcher(ident.Shard{Source: "a", Instance: "b"})}, "start `meshlog up` with --bus-watcher a/b"},
		{"bus file and key", ConnectOptions{URL: filepath.Join(dir, FileName), NkeyFile: good}, "do not give another token or credentials"},
		{"key", ConnectOptions{URL: s.URL(), NkeyFile: good}, ""},
		{"wrong key", ConnectOptions{URL: s.URL(), NkeyFile: bad}, "Authorization Violation; it does not take "},
		{"token", ConnectOptions{URL: s.URL(), TokenFile: token}, "Authorization Violation; it does not take "},
		{"no credentials", ConnectOptions{URL: s.URL()}, "Authorization Violation; it does not take "},
		{"no token file", ConnectOptions{URL: s.URL(), TokenFile: token + "x"}, "tokenx: no such file"},
		{"no bus file", ConnectOptions{URL: filepath.Join(dir, "nowhere")}, "nothing runs on this data directory"},
		{"no server", ConnectOptions{URL: "nats://127.0.0.1:1"}, "127.0.0.1:1: nats: no servers available for connection; is it running there?"},
		{"no address", ConnectOptions{}, "give --bus"},
	} {
		t.Run(c.name, func(t *testing.T) {
			c.o.Name, c.o.Log = "a test. *", quiet
			nc, err := Connect(c.o)
			if err == nil {
				err = nc.Flush()
				nc.Close()
			}
			switch {
			case c.want == "" && err != nil:
				t.Error(err)
			case c.want != "" && (err == nil || !strings.Contains(err.Error(), c.want)):
				t.Errorf("error %v does not contain %q", err, c.want)
			}
		})
	}
}

// Each connection attempt reads the bus file again, because a restarted server has
// another address, and here the administrator a new key.
func TestReconnectAfterServerRestart(t *testing.T) {
	dir := t.TempDir()
	first := startServer(t, dir)
	o := ConnectOptions{URL: filepath.Join(dir, FileName), Name: "reader", Log: quiet}
	nc, err := Connect(o)
	if err != nil {
		t.Fatal(err)
	}
	defer nc.Close()
	renewed := make(chan struct{})
	nc.SetReconnectHandler(func(*nats.Conn) { close(renewed) })
	if err := first.Close(); err != nil {
		t.Fatal(err)
	}
	startServer(t, dir)
	select {
	case <-renewed:
	case <-t.Context().Done():
		t.Fatal("not reconnected")
	}
}

func TestConnectWait(t *testing.T) {
	dir := t.TempDir()
	o := ConnectOptions{URL: filepath.Join(dir, FileName), Name: "early", Log: quiet}
	connected := make(chan error, 1)
	go func() {
		nc, err := ConnectWait(t.Context(), o)
		if err == nil {
			nc.Close()
		}
		connected <- err
	}()
	startServer(t, dir)
	if err := <-connected; err != nil {
		t.Fatal(err)
	}
}

// Retry logs each error of a lasting failure once, and no error of a short one.
func TestRetry(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var logged bytes.Buffer
		log := slog.New(slog.NewTextHandler(&logged, nil))
		start := time.Now()
		result, err := Retry(t.Context(), log, func(context.Context) (string, error) {
			switch age := time.Since(start); {
			case age < time.Second:
				return "", errors.New("starting")
			case age < 10*time.Second:
				return "", errors.New("no leader")
			case age < 20*time.Second:
				return "", errors.New("no stream")
			}
			return "ready", nil
		})
		if err != nil || result != "ready" {
			t.Fatalf("Retry = %q, %v", result, err)
		}
		got := logged.String()
		if strings.Contains(got, "starting") || strings.Count(got, "no leader") != 1 || strings.Count(got, "no stream") != 1 {
			t.Errorf("logged:\n%s", got)
		}

		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		broken := errors.New("broken")
		_, err = Retry(ctx, quiet, func(context.Context) (string, error) { return "", broken })
		if !errors.Is(err, context.DeadlineExceeded) || !errors.Is(err, broken) {
			t.Errorf("Retry of a lasting failure = %v, want the context's error and the last error", err)
		}
	})
}
