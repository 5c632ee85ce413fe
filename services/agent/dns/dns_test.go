package dns_test

import (
	"context"
	"fmt"
	"log/slog"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"

	mdns "github.com/miekg/dns"

	"meshlog.dev/services/agent/dns"
)

// upstream is a DNS server on another port that knows one name.
func upstream(t *testing.T) (resolv string) {
	t.Helper()
	udp, err := net.ListenPacket("udp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	tcp, err := net.Listen("tcp", udp.LocalAddr().String())
	if err != nil {
		t.Fatal(err)
	}
	handler := mdns.HandlerFunc(func(w mdns.ResponseWriter, q *mdns.Msg) {
		m := new(mdns.Msg).SetReply(q)
		if q.Question[0].Name != "example.org." {
			m.Rcode = mdns.RcodeNameError
		} else if q.Question[0].Qtype == mdns.TypeA {
			m.Answer = []mdns.RR{&mdns.A{Hdr: mdns.RR_Header{Name: "example.org.", Rrtype: mdns.TypeA, Class: mdns.ClassINET, Ttl: 60}, A: net.IPv4(192, 0, 2, 1)}}
		}
		_ = w.WriteMsg(m)
	})
	for _, s := range []*mdns.Server{{PacketConn: udp, Handler: handler}, {Listener: tcp, Handler: handler}} {
		go func() { _ = s.ActivateAndServe() }()
	}
	t.Cleanup(func() { _ = udp.Close(); _ = tcp.Close() })
	_, port, _ := net.SplitHostPort(udp.LocalAddr().String())
	resolv = filepath.Join(t.TempDir(), "resolv.conf")
	if err := os.WriteFile(resolv, []byte("nameserver 127.0.0.1\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	dns.SetPort(t, port)
	return resolv
}

func serve(t *testing.T) *dns.Server {
	t.Helper()
	s, err := dns.Listen(dns.Config{Address: "127.0.0.1:0", ResolvConf: upstream(t), Log: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan struct{})
	go func() { _ = s.Run(ctx); close(ended) }()
	t.Cleanup(func() { cancel(); <-ended })
	return s
}

// AGT-6: Go's resolver gets mesh names from the table, over UDP and TCP; other names are
// forwarded, also before there is a table.
func TestResolver(t *testing.T) {
	s := serve(t)
	for _, network := range []string{"udp", "tcp"} {
		r := &net.Resolver{PreferGo: true, Dial: func(ctx context.Context, _, _ string) (net.Conn, error) {
			return new(net.Dialer).DialContext(ctx, network, s.Addr())
		}}
		look := func(name string, want ...string) {
			t.Helper()
			ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
			defer cancel()
			ips, err := r.LookupHost(ctx, name)
			slices.Sort(ips)
			if fmt.Sprint(ips) != fmt.Sprint(want) {
				t.Errorf("%s by %s: %v, %v; want %v", name, network, ips, err, want)
			}
		}
		look("example.org.", "192.0.2.1")
		s.SetTable(dns.Table{
			"cart.shop.svc.cluster.local.": {netip.MustParseAddr("10.0.0.1"), netip.MustParseAddr("fd00::1")},
			"*.wild.example.":              {netip.MustParseAddr("10.0.0.2")},
			"six.shop.":                    {netip.MustParseAddr("fd00::6")},
		})
		look("Cart.shop.svc.cluster.local.", "10.0.0.1", "fd00::1")
		look("a.b.wild.example.", "10.0.0.2")
		look("wild.example.")
		look("example.org.", "192.0.2.1")
		look("nowhere.example.")
	}
}

// AGT-6: a name of the mesh without an address of the wanted kind exists: the answer is
// empty (NODATA), not NXDOMAIN. The TTL is 30 s.
func TestNoData(t *testing.T) {
	s := serve(t)
	s.SetTable(dns.Table{"six.shop.": {netip.MustParseAddr("fd00::6")}})
	for qtype, want := range map[uint16]int{mdns.TypeA: 0, mdns.TypeAAAA: 1} {
		resp, err := mdns.Exchange(new(mdns.Msg).SetQuestion("six.shop.", qtype), s.Addr())
		if err != nil {
			t.Fatal(err)
		}
		if resp.Rcode != mdns.RcodeSuccess || len(resp.Answer) != want || want > 0 && resp.Answer[0].Header().Ttl != 30 {
			t.Errorf("%s: %v", mdns.TypeToString[qtype], resp)
		}
	}
}
