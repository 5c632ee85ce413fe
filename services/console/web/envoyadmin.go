package web

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"slices"
	"strings"
	"time"

	"meshlog.dev/services/internal/process"
	"meshlog.dev/services/operate/command"
	"meshlog.dev/services/operate/inspect"
)

// Limits of a question to an Envoy's admin address.
const (
	dumpTime = 5 * time.Second
	maxDump  = 32 << 20 // bytes
	maxInfo  = 1 << 20
)

// AdminRule allows admin addresses of Envoys: a network, or one address with its port.
type AdminRule struct {
	net  netip.Prefix
	port uint16 // 0: any
}

// ParseAdminRules reads a network (10.1.0.0/16), an address, an address with a port
// (10.1.2.3:15000), or the word loopback. A name is none: it could resolve to another address
// each time.
func ParseAdminRules(s string) ([]AdminRule, error) {
	one := func(a netip.Addr, port uint16) []AdminRule {
		return []AdminRule{{netip.PrefixFrom(a.Unmap(), a.Unmap().BitLen()), port}}
	}
	if s == "loopback" {
		return []AdminRule{{net: netip.PrefixFrom(netip.AddrFrom4([4]byte{127}), 8)}, {net: netip.PrefixFrom(netip.IPv6Loopback(), 128)}}, nil
	}
	if n, err := netip.ParsePrefix(s); err == nil {
		return []AdminRule{{net: n.Masked()}}, nil
	}
	if a, err := netip.ParseAddrPort(s); err == nil && a.Port() != 0 && a.Addr().Zone() == "" {
		return one(a.Addr(), a.Port()), nil
	}
	if a, err := netip.ParseAddr(s); err == nil && a.Zone() == "" {
		return one(a, 0), nil
	}
	return nil, fmt.Errorf("%q: want a network (10.1.0.0/16), an address, an address with a port (10.1.2.3:15000), or loopback", s)
}

// adminAddress returns the address of a request's Envoy, if the console may ask it.
func (s *Server) adminAddress(r *http.Request, text string) (netip.AddrPort, error) {
	a, err := netip.ParseAddrPort(text)
	if err != nil || a.Port() == 0 || a.Addr().Zone() != "" {
		return a, command.Usage("Envoy's admin address %q: want IP:PORT, such as 127.0.0.1:15000; a name is not looked up", text)
	}
	a = netip.AddrPortFrom(a.Addr().Unmap(), a.Port())
	if (a.Addr().IsLoopback() || a.Addr().IsUnspecified()) && !process.IsLocal(r) {
		return a, refused("The loopback addresses of the console's machine are asked for requests of that machine only.")
	}
	if !slices.ContainsFunc(s.EnvoyAdmin, func(o AdminRule) bool { return o.net.Contains(a.Addr()) && (o.port == 0 || o.port == a.Port()) }) {
		return a, refused(fmt.Sprintf("The console does not ask %s: --console-envoy-admin lists the admin addresses of Envoys that it may ask.", a))
	}
	return a, nil
}

// dump asks an Envoy of a proxy for its configuration. It follows no redirect and uses no proxy,
// and its errors show nothing of an answer.
func dump(ctx context.Context, at netip.AddrPort, proxy string) (*inspect.ConfigDump, error) {
	ctx, cancel := context.WithTimeout(ctx, dumpTime)
	defer cancel()
	transport := &http.Transport{DialContext: (&net.Dialer{Timeout: dumpTime}).DialContext, DisableKeepAlives: true, MaxResponseHeaderBytes: 16 << 10}
	defer transport.CloseIdleConnections()
	client := &http.Client{Transport: transport, CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }}
	info, err := ask(ctx, client, at, "/server_info", maxInfo)
	if err != nil {
		return nil, err
	}
	if id, err := inspect.ReadNode(info); err != nil {
		return nil, err
	} else if id != proxy {
		return nil, errOtherNode
	}
	answer, err := ask(ctx, client, at, "/config_dump?include_eds", maxDump)
	if err != nil {
		return nil, err
	}
	return inspect.ReadConfigDump(answer)
}

var errOtherNode = errors.New("the Envoy at this address has another node id than the proxy")

// ask returns the answer of an admin address, of at most so many bytes.
func ask(ctx context.Context, client *http.Client, at netip.AddrPort, path string, most int64) ([]byte, error) {
	q, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+at.String()+path, nil)
	if err != nil {
		return nil, err
	}
	r, err := client.Do(q)
	if err != nil {
		return nil, fmt.Errorf("no Envoy answers at %s", at)
	}
	defer r.Body.Close()
	if r.StatusCode != http.StatusOK {
		return nil, fmt.Errorf("%s: %w", at, inspect.ErrNoEnvoy)
	}
	b, err := io.ReadAll(io.LimitReader(r.Body, most+1))
	switch {
	case err != nil:
		return nil, fmt.Errorf("the answer of %s does not end within %s", at, dumpTime)
	case int64(len(b)) > most:
		return nil, fmt.Errorf("the answer of %s has more than %d MiB", at, most>>20)
	}
	return b, nil
}

// envoyData compares the resources of a proxy with what its Envoy says.
type envoyData struct {
	Proxy, Address string
	Counts         []envoyCount
	Rows           Paged[inspect.DumpRow] // that are not the same
	Rejected       []string
}

type envoyCount struct {
	State string
	N     int
}

// envoyPage is the page of a proxy that compares it with its Envoy.
func (s *Server) envoyPage(w http.ResponseWriter, r *http.Request) {
	s.view(w, r, view{title: "Envoy", file: "envoy.html", make: func(ctx context.Context, p *page) (any, error) {
		v := envoyData{Proxy: p.Param("proxy"), Address: strings.TrimSpace(p.Param("admin"))}
		at, err := s.adminAddress(r, v.Address)
		if err != nil {
			return nil, err
		}
		q := command.ProxyQuery{ID: v.Proxy}
		of, err := q.Find(ctx, p.mesh.Target, p.mesh.Past)
		if err != nil {
			return nil, err
		}
		d, err := dump(ctx, at, of.ID)
		if errors.Is(err, errOtherNode) {
			return nil, statusError{err, http.StatusConflict}
		} else if err != nil {
			return nil, statusError{err, http.StatusBadGateway}
		}
		c, err := p.mesh.Content(ctx, p.moment)
		if err != nil {
			return nil, err
		}
		served, err := s.scene.Served(c.Rows(), of)
		if err != nil {
			return nil, err
		}
		rows, err := d.Compare(served)
		if err != nil {
			return nil, err
		}
		p.Title = "Envoy of " + v.Proxy
		v.Rejected = d.Rejected
		v.take(rows, p.Param("page"))
		return v, nil
	}})
}

// take counts the rows, and keeps those that are not the same.
func (v *envoyData) take(rows []inspect.DumpRow, number string) {
	counts := map[string]int{}
	for _, r := range rows {
		counts[r.State]++
	}
	for _, state := range []string{inspect.DumpSame, inspect.DumpDiffers, inspect.DumpOnlyHere, inspect.DumpOnlyThere} {
		v.Counts = append(v.Counts, envoyCount{state, counts[state]})
	}
	v.Rows = paged(slices.DeleteFunc(rows, func(r inspect.DumpRow) bool { return r.State == inspect.DumpSame }), number)
}
