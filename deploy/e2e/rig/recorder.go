package rig

import (
	"bytes"
	"context"
	"io"
	"net"
	"sync"
)

// Recorder passes connections on to a server and keeps what goes over them, in both
// directions.
type Recorder struct {
	Port int

	listener net.Listener
	to       string
	mu       sync.Mutex
	kept     bytes.Buffer
}

// Record begins to record the connections to a server, which clients reach at Port on
// loopback from now on. Stop ends it.
func Record(to string) (*Recorder, error) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, err
	}
	r := &Recorder{Port: l.Addr().(*net.TCPAddr).Port, listener: l, to: to}
	go func() { // ends with Stop
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			go r.pass(c)
		}
	}()
	return r, nil
}

// pass copies a connection until one side ends it.
func (r *Recorder) pass(client net.Conn) {
	defer client.Close()
	server, err := new(net.Dialer).DialContext(context.Background(), "tcp", r.to)
	if err != nil {
		return
	}
	defer server.Close()
	ended := make(chan struct{}, 2)
	for _, way := range [][2]net.Conn{{client, server}, {server, client}} {
		go func() {
			_, _ = io.Copy(io.MultiWriter(way[0], r), way[1]) // it ended, for whatever reason
			ended <- struct{}{}
		}()
	}
	<-ended
}

// Write keeps a part of a connection.
func (r *Recorder) Write(b []byte) (int, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.kept.Write(b)
}

// Recorded returns what was recorded until now.
func (r *Recorder) Recorded() []byte {
	r.mu.Lock()
	defer r.mu.Unlock()
	return bytes.Clone(r.kept.Bytes())
}

// Stop ends the recording of new connections.
func (r *Recorder) Stop() { r.listener.Close() }
