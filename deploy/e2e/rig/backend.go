package rig

import (
	"context"
	"io"
	"net"
	"net/http"
	"strings"
	"sync/atomic"
)

// Backend is an HTTP server in this process that answers every request with its
// name.
type Backend struct {
	Name string
	Port int
	Addr string // host:port

	served atomic.Int64
	server *http.Server
	ended  chan struct{}
}

// StartBackend listens on a free loopback port and serves.
func StartBackend(name string) (*Backend, error) { return StartBackendAt("127.0.0.1", name) }

// StartBackendAt is StartBackend on an address: loopback, or OwnAddress.
func StartBackendAt(address, name string) (*Backend, error) {
	l, err := net.Listen("tcp", net.JoinHostPort(address, "0"))
	if err != nil {
		return nil, err
	}
	b := &Backend{Name: name, Port: l.Addr().(*net.TCPAddr).Port, Addr: l.Addr().String(), ended: make(chan struct{})}
	b.server = &http.Server{Handler: http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		b.served.Add(1)
		_, _ = io.WriteString(w, name+"\n")
	})}
	go func() { // ends with Stop
		defer close(b.ended)
		_ = b.server.Serve(l)
	}()
	return b, nil
}

// Served returns how many requests the backend has answered.
func (b *Backend) Served() int64 { return b.served.Load() }

// Stop closes the server and its connections.
func (b *Backend) Stop() {
	b.server.Close()
	<-b.ended
}

// ask sends one request for a host, or that of the URL if it is empty. It returns the name
// of the backend that answered, or "" without an answer, and the status code.
func ask(ctx context.Context, client *http.Client, url, host string) (backend string, status int, err error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return "", 0, err
	}
	req.Host = host
	resp, err := client.Do(req)
	if err != nil {
		return "", 0, err
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(io.LimitReader(resp.Body, 1<<16))
	if resp.StatusCode == http.StatusOK {
		backend = strings.TrimSpace(string(body))
	}
	return backend, resp.StatusCode, err
}
