package rig

import (
	"context"
	"net"
	"net/http"
)

// Place is where a process runs. The zero Place is this machine, as it is; a
// Network has others.
type Place struct {
	// Host is the address at which others reach the process; empty: loopback.
	Host string

	// wrap makes a command line run there; nil: it does here.
	wrap func(argv []string) []string
	// dial connects from there to loopback there; nil: there is here.
	dial func(ctx context.Context, network, addr string) (net.Conn, error)
}

func (p Place) host() string {
	if p.Host == "" {
		return "127.0.0.1"
	}
	return p.Host
}

// Command is a command line that runs argv there.
func (p Place) Command(argv ...string) []string {
	if p.wrap == nil {
		return argv
	}
	return p.wrap(argv)
}

// client talks to what listens on loopback there.
func (p Place) client() *http.Client {
	if p.dial == nil {
		return http.DefaultClient
	}
	// No connection is kept: the place may be gone before it is asked again.
	return &http.Client{Transport: &http.Transport{DialContext: p.dial, DisableKeepAlives: true}}
}

// Dir is where the processes keep their data, each in a directory of its name.
func (m *Mesh) Dir() string { return m.dir }
