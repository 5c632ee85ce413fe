// Package nacostest runs r-nacos, a Nacos server in Rust, for tests. It serves the gRPC
// and HTTP APIs for naming of Nacos 2.x. It is the version that deploy/tools/get pins,
// listens on loopback only, and keeps all its files in one directory.
package nacostest

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"meshlog.dev/deploy/testkit/program"
	"meshlog.dev/deploy/testkit/testport"
)

// grpcOffset is how far the port of gRPC is from that of HTTP.
const grpcOffset = 1000

// Options change the server. The zero value is a server without authentication.
type Options struct {
	// User and Password turn authentication on and are its only account, an
	// administrator's.
	User, Password string
	// Env is further environment, such as RNACOS_API_LOGIN_TIMEOUT=10.
	Env []string
}

// Server is a Nacos server. It can be stopped, killed, paused and started again, and keeps
// its ports and, unless Wipe is called, its data. Ephemeral instances are not data.
type Server struct {
	*program.Server
	// Addr is the address of the HTTP API, GRPC that of the gRPC API, whose port is 1000
	// higher: clients know only the first.
	Addr, GRPC string
	// User and Password are those of Options.
	User, Password string

	refusal string // of the last login while it started
}

// Start runs a server until the test ends.
func Start(t testing.TB, o Options) *Server {
	t.Helper()
	s, err := StartIn(t.Context(), t.TempDir(), o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		s.Kill()
		if t.Failed() {
			t.Logf("last output of %s:\n%s", s.Name, s.Tail(20))
		}
	})
	return s
}

// StartIn runs a server that keeps its files in dir, and waits until it is ready. The
// caller ends it with Stop or Kill.
func StartIn(ctx context.Context, dir string, o Options) (*Server, error) {
	bin, err := program.Tool(ctx, "rnacos")
	if err != nil {
		return nil, err
	}
	http, err := testport.Pair(grpcOffset)
	if err != nil {
		return nil, err
	}
	console, err := testport.TCP()
	if err != nil {
		return nil, err
	}
	grpc := http + grpcOffset
	s := &Server{Addr: loopback(http), GRPC: loopback(grpc), User: o.User, Password: o.Password}
	data := filepath.Join(dir, "data")
	env := []string{
		"RNACOS_HTTP_PORT=" + strconv.Itoa(http), "RNACOS_GRPC_PORT=" + strconv.Itoa(grpc),
		"RNACOS_HTTP_CONSOLE_PORT=" + strconv.Itoa(console),
		"RNACOS_SDK_HOST=127.0.0.1", "RNACOS_CONSOLE_HOST=127.0.0.1",
		"RNACOS_RAFT_NODE_ADDR=" + s.GRPC, "RNACOS_DATA_DIR=" + data,
	}
	if o.User != "" {
		env = append(env, "RNACOS_ENABLE_OPEN_API_AUTH=true",
			"RNACOS_INIT_ADMIN_USERNAME="+o.User, "RNACOS_INIT_ADMIN_PASSWORD="+o.Password)
	}
	s.Server = &program.Server{Name: "rnacos", Dir: dir, Data: data, Argv: []string{bin}, Env: append(env, o.Env...), Ready: s.ready}
	return s, s.Start(ctx)
}

var errPanicked = errors.New("r-nacos has panicked at its start")

const (
	// starts is how often Start starts a server that fails at its start.
	starts = 5
	// startPatience is how long a start may take: it takes one second.
	startPatience = 20 * time.Second
)

// Start starts the server, which must not be running, and waits until it is ready. r-nacos
// 0.8.8 has a race in its start: of some 15 starts one panics in raftapply.rs, and goes on
// without the part that keeps users and configuration. After that its data may have no leader
// for ever. Such a server is started again, without the data that its first start has made.
func (s *Server) Start(ctx context.Context) (err error) {
	_, none := os.Stat(s.Data)
	for range starts {
		s.refusal = ""
		if err = s.startOnce(ctx); err == nil || !s.panicked() && !strings.Contains(s.refusal, "unknown the raft leader") {
			return err
		}
		if none != nil {
			if err := s.Wipe(); err != nil {
				return err
			}
		}
	}
	return err
}

func (s *Server) startOnce(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, startPatience)
	defer cancel()
	return s.Server.Start(ctx)
}

// panicked reports whether the server that was started last has lost its part for raft.
func (s *Server) panicked() bool {
	return strings.Contains(s.Tail(1000), "raftapply.rs") || strings.Contains(s.refusal, "Mailbox has closed")
}

// ready ends a server that has panicked, and returns nil when the server accepts requests on both ports and, with
// authentication, has created its account.
func (s *Server) ready(ctx context.Context) error {
	if s.panicked() {
		s.Kill() // it never gets ready
		return errPanicked
	}
	parameters := url.Values{}
	if s.User != "" {
		token, err := s.Login(ctx)
		if err != nil {
			s.refusal = err.Error()
			return err
		}
		parameters.Set("accessToken", token)
	}
	if err := s.Call(ctx, http.MethodGet, "/nacos/v1/console/health/readiness", parameters, nil); err != nil {
		return err
	}
	conn, err := (&net.Dialer{}).DialContext(ctx, "tcp", s.GRPC)
	if err != nil {
		return err
	}
	return conn.Close()
}

// Login returns a new access token.
func (s *Server) Login(ctx context.Context) (string, error) {
	var answer struct{ AccessToken string }
	err := s.Call(ctx, http.MethodPost, "/nacos/v1/auth/users/login", url.Values{"username": {s.User}, "password": {s.Password}}, &answer)
	return answer.AccessToken, err
}

// Call calls the HTTP API with parameters, and reads the answer into a value, unless it is
// nil: as it is into a *[]byte, as JSON into any other. It is an error unless the status is
// 200.
func (s *Server) Call(ctx context.Context, method, path string, parameters url.Values, into any) error {
	target, body := "http://"+s.Addr+path, ""
	if method == http.MethodPost {
		body = parameters.Encode()
	} else if len(parameters) > 0 {
		target += "?" + parameters.Encode()
	}
	req, err := http.NewRequestWithContext(ctx, method, target, bytes.NewBufferString(body))
	if err != nil {
		return err
	}
	if body != "" {
		req.Header.Set("Content-Type", "application/x-www-form-urlencoded")
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	b, err := io.ReadAll(resp.Body)
	if err != nil {
		return err
	}
	if resp.StatusCode != http.StatusOK {
		return fmt.Errorf("%s %s: %s: %s", method, path, resp.Status, bytes.TrimSpace(b))
	}
	switch into := into.(type) {
	case nil:
		return nil
	case *[]byte:
		*into = b
		return nil
	default:
		return json.Unmarshal(b, into)
	}
}

func loopback(port int) string { return net.JoinHostPort("127.0.0.1", strconv.Itoa(port)) }
