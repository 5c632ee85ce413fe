package rig

import (
	"context"
	"net"
	"net/http"
)

// Place is where a process runs. The zero Place is this machine; a Network has
// others.
type Place struct {
	// Host is the address at which other processes reach this one; empty:
	// loopback.
	Host string

	// wrap makes a command line run at the place; nil: it runs here.
	wrap func(argv []string) []string
	// dial connects from the place to loopback there; nil: the place is here.
	dial func(ctx context.Context, network, addr string) (net.Conn, error)
}

func (p Place) host() string {
	if p.Host == "" {
		return "127.0.0.1"
	}
	return p.Host
}

// Command returns a command line that runs argv at the place.
func (p Place) Command(argv ...string) []string {
	if p.wrap == nil {
		return argv
	}
	return p.wrap(argv)
}

// client returns an HTTP client for servers on loopback at the place.
func (p Place) client() *http.Client {
	if p.dial == nil {
		return http.DefaultClient
	}
	// Connections are not kept: the place may be gone before the next request.
	return &http.Client{Transport: &http.Transport{DialContext: p.dial, DisableKeepAlives: true}}
}

// Dir is where the processes keep their data, each in a directory of its name.
func (m *Mesh) Dir() string { return m.dir }
