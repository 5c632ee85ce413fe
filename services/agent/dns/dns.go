// Package dns answers DNS queries of the applications beside an Envoy (AGT-6): the names of
// the mesh from a table, and all others by the servers that the machine has.
package dns

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	mathrand "math/rand/v2"
	"net"
	"net/netip"
	"os"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/miekg/dns"
)

// ttl is how long an answer from the table may be kept, in seconds.
const ttl = 30

const (
	// look is how often the file with the servers is read again.
	look = 5 * time.Second
	// patience is how long one server may take.
	patience = 2 * time.Second
	// most limits the queries that are forwarded at a time.
	most = 1000
)

// upstreamPort is the port of the servers in resolv.conf. Tests change it.
var upstreamPort = "53"

// Table has the addresses of the mesh's names. Keys are in lower case, with a dot at the
// end; a key that begins with "*." is for all names below.
type Table map[string][]netip.Addr

// Config configures a Server.
type Config struct {
	Address    string // HOST:PORT, for UDP and TCP; empty: none
	ResolvConf string
	Log        *slog.Logger
}

// Server answers queries.
type Server struct {
	Config

	udp  net.PacketConn
	tcp  net.Listener
	busy chan struct{}

	table    atomic.Pointer[Table]
	upstream atomic.Pointer[[]string] // HOST:PORT
}

// Listen opens the ports and reads the servers.
func Listen(c Config) (*Server, error) {
	s := &Server{Config: c, busy: make(chan struct{}, most)}
	if c.Address == "" {
		return s, nil
	}
	if _, err := s.read(nil); err != nil {
		return nil, err
	}
	var err error
	if s.tcp, err = net.Listen("tcp", c.Address); err != nil {
		return nil, err
	}
	if s.udp, err = net.ListenPacket("udp", s.tcp.Addr().String()); err != nil {
		return nil, errors.Join(err, s.tcp.Close())
	}
	return s, nil
}

// Addr returns the address, or "".
func (s *Server) Addr() string {
	if s.tcp == nil {
		return ""
	}
	return s.tcp.Addr().String()
}

// SetTable replaces the table.
func (s *Server) SetTable(t Table) { s.table.Store(&t) }

// read reads the servers again if the file is not the one before.
func (s *Server) read(before []byte) ([]byte, error) {
	b, err := os.ReadFile(s.ResolvConf)
	if err != nil || bytes.Equal(b, before) {
		return before, err
	}
	conf, err := dns.ClientConfigFromReader(bytes.NewReader(b))
	if err != nil {
		return before, fmt.Errorf("%s: %w", s.ResolvConf, err)
	}
	var servers []string
	for _, host := range conf.Servers {
		to := net.JoinHostPort(host, upstreamPort)
		if to != s.Address { // its queries would come back
			servers = append(servers, to)
		}
	}
	s.upstream.Store(&servers)
	return b, nil
}

// Run answers queries until ctx is done.
func (s *Server) Run(ctx context.Context) error {
	if s.tcp == nil {
		<-ctx.Done()
		return ctx.Err()
	}
	servers := []*dns.Server{{PacketConn: s.udp, Handler: s}, {Listener: s.tcp, Handler: s}}
	ended := make(chan error, len(servers))
	var running sync.WaitGroup
	for _, d := range servers {
		running.Go(func() { ended <- d.ActivateAndServe() })
	}
	tick := time.NewTicker(look)
	defer tick.Stop()
	var content []byte
	for {
		var err error
		if content, err = s.read(content); err != nil {
			s.Log.Warn("cannot read the DNS servers; those before stay in use", "error", err)
		}
		select {
		case <-ctx.Done():
			_ = s.udp.Close() // both servers end
			_ = s.tcp.Close()
			running.Wait()
			return ctx.Err()
		case err := <-ended:
			return errors.Join(err, s.udp.Close(), s.tcp.Close())
		case <-tick.C:
		}
	}
}

// ServeDNS implements dns.Handler.
func (s *Server) ServeDNS(w dns.ResponseWriter, q *dns.Msg) {
	if answer := s.answer(q); answer != nil {
		_ = w.WriteMsg(fit(w, q, answer)) // a client that has gone needs none
		return
	}
	_ = w.WriteMsg(s.forward(w, q))
}

// fit cuts an answer over UDP to what the client takes.
func fit(w dns.ResponseWriter, q, answer *dns.Msg) *dns.Msg {
	if _, udp := w.RemoteAddr().(*net.UDPAddr); udp {
		size := dns.MinMsgSize
		if opt := q.IsEdns0(); opt != nil {
			size = max(size, int(opt.UDPSize()))
		}
		answer.Truncate(size)
	}
	return answer
}

// answer answers a query for a name of the mesh, or returns nil. A name that has no
// address of the wanted kind exists, so the answer has no records (NODATA); a forwarded
// query would say that there is no such name.
func (s *Server) answer(q *dns.Msg) *dns.Msg {
	table := s.table.Load()
	if table == nil || q.Opcode != dns.OpcodeQuery || len(q.Question) != 1 || q.Question[0].Qclass != dns.ClassINET {
		return nil
	}
	ask := q.Question[0]
	ips, ok := table.find(ask.Name)
	if !ok || ask.Qtype != dns.TypeA && ask.Qtype != dns.TypeAAAA {
		return nil
	}
	m := new(dns.Msg).SetReply(q)
	m.Authoritative, m.RecursionAvailable = true, true
	for _, ip := range ips {
		head := dns.RR_Header{Name: ask.Name, Rrtype: ask.Qtype, Class: dns.ClassINET, Ttl: ttl}
		switch {
		case ip.Is4() && ask.Qtype == dns.TypeA:
			m.Answer = append(m.Answer, &dns.A{Hdr: head, A: ip.AsSlice()})
		case ip.Is6() && ask.Qtype == dns.TypeAAAA:
			m.Answer = append(m.Answer, &dns.AAAA{Hdr: head, AAAA: ip.AsSlice()})
		}
	}
	// Clients take the first address, so each answer begins with another one.
	mathrand.Shuffle(len(m.Answer), func(i, j int) { m.Answer[i], m.Answer[j] = m.Answer[j], m.Answer[i] })
	return m
}

// find returns the addresses of a name: its own, else those of the longest wildcard.
func (t Table) find(name string) ([]netip.Addr, bool) {
	name = strings.ToLower(name)
	if ips, ok := t[name]; ok {
		return ips, true
	}
	for rest := name; ; {
		_, after, ok := strings.Cut(rest, ".")
		if !ok || after == "" {
			return nil, false
		}
		if ips, ok := t["*."+after]; ok {
			return ips, true
		}
		rest = after
	}
}

// forward asks the servers of the machine in turn, by the protocol of the client.
func (s *Server) forward(w dns.ResponseWriter, q *dns.Msg) *dns.Msg {
	failed := new(dns.Msg).SetRcode(q, dns.RcodeServerFailure)
	select {
	case s.busy <- struct{}{}:
		defer func() { <-s.busy }()
	default:
		return failed
	}
	c := &dns.Client{Net: w.LocalAddr().Network(), Timeout: patience}
	for _, to := range *s.upstream.Load() {
		if resp, _, err := c.Exchange(q, to); err == nil {
			return resp
		}
	}
	return failed
}
