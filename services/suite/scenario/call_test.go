package scenario

import (
	"fmt"
	"net/netip"
	"net/url"
	"strconv"
	"strings"

	"meshlog.dev/services/mesh/simulate"
)

// call simulates the call of a line, which comes without its ">".
func (s *stage) call(line string) (string, error) {
	words := strings.Fields(line)
	if len(words) < 3 {
		return "", fmt.Errorf("want PROXY METHOD URL")
	}
	p, err := s.served(words[0])
	if err != nil {
		return "", err
	}
	c, err := parseCall(words[1], words[2], words[3:])
	if err != nil {
		return "", err
	}
	return render(p.Call(c)), nil
}

func parseCall(method, target string, more []string) (simulate.Call, error) {
	c := simulate.Call{Headers: map[string]string{}}
	if method == "tcp" {
		c.TCP = true
		a, err := netip.ParseAddrPort(target)
		if err != nil {
			return c, err
		}
		c.Address, c.Port = a.Addr(), uint32(a.Port())
		return c, nil
	}
	u, err := url.Parse(target)
	if err != nil {
		return c, err
	}
	c.Method, c.Host, c.Path, c.Port = method, u.Host, u.RequestURI(), 80
	if u.Port() != "" {
		n, err := strconv.ParseUint(u.Port(), 10, 16)
		if err != nil {
			return c, err
		}
		c.Port = uint32(n)
	}
	for _, w := range more {
		name, value, ok := strings.Cut(w, "=")
		if !ok {
			return c, fmt.Errorf("%q: want header=value", w)
		}
		if name == "to" {
			if c.Address, err = netip.ParseAddr(value); err != nil {
				return c, err
			}
			continue
		}
		c.Headers[strings.ToLower(name)] = value
	}
	return c, nil
}

// render describes an outcome: the way of the call, its destinations, its status.
func render(o simulate.Outcome) string {
	var b strings.Builder
	say := func(format string, args ...any) { fmt.Fprintf(&b, "    "+format+"\n", args...) }
	var way []string
	for _, w := range []string{o.Listener, o.FilterChain, o.RouteConfiguration, o.VirtualHost, o.Route} {
		if w != "" {
			way = append(way, w)
		}
	}
	if len(way) > 0 {
		say("by %s", strings.Join(way, " / "))
	}
	total := uint32(0)
	for _, d := range o.To {
		total += d.Weight
	}
	for _, d := range o.To {
		share := ""
		if len(o.To) > 1 {
			share = fmt.Sprintf("%d%% ", 100*d.Weight/max(total, 1))
		}
		end := strings.Join(d.Endpoints, ", ")
		switch {
		case d.Missing:
			end = "no such cluster: 503"
		case end == "":
			end = "no endpoints: 503"
		}
		say("%s%s -> %s", share, d.Cluster, end)
	}
	if o.Status != 0 {
		say("%s", strings.TrimSpace(fmt.Sprintf("%d %s %s", o.Status, o.Location, o.Body)))
	}
	for _, n := range o.Notes {
		say("%s", n)
	}
	return b.String()
}
