package scenario

import (
	"encoding/json"
	"fmt"
	"net/netip"
	"net/url"
	"strconv"
	"strings"

	"meshlog.dev/services/mesh/simulate"
	"meshlog.dev/services/mesh/simulate/rbac"
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
	o := p.Call(c)
	if s.explains {
		if err := s.explainCall(s.proxies[words[0]], c, o); err != nil {
			return "", err
		}
	}
	return render(o), nil
}

func parseCall(method, target string, more []string) (simulate.Call, error) {
	c := simulate.Call{Headers: map[string][]string{}}
	if method == "tcp" {
		c.TCP = true
		a, err := netip.ParseAddrPort(target)
		if err != nil {
			return c, err
		}
		c.Address, c.Port = a.Addr(), uint32(a.Port())
		return c, parseWords(&c, more)
	}
	u, err := url.Parse(target)
	if err != nil {
		return c, err
	}
	c.Method, c.Host, c.Path, c.Port = method, u.Host, u.RequestURI(), 80
	if c.TLS = u.Scheme == "https"; c.TLS {
		c.Port, c.ServerName = 443, u.Hostname()
	}
	if u.Port() != "" {
		n, err := strconv.ParseUint(u.Port(), 10, 16)
		if err != nil {
			return c, err
		}
		c.Port = uint32(n)
	}
	return c, parseWords(&c, more)
}

// parseWords reads what follows the URL of a call.
func parseWords(c *simulate.Call, more []string) (err error) {
	for _, w := range more {
		name, value, ok := strings.Cut(w, "=")
		switch {
		case w == "inbound":
			c.Inbound = true
		case w == "tls":
			c.TLS = true
		case !ok:
			err = fmt.Errorf("%q: want header=value", w)
		case name == "to":
			c.Address, err = netip.ParseAddr(value)
		case name == "from":
			c.From, err = netip.ParseAddr(value)
		case name == "as":
			c.TLS, c.Certificate = true, rbac.CertificateOf(value)
		case name == "sni":
			c.TLS, c.ServerName = true, value
		case name == "alpn":
			c.ALPN = strings.Split(value, ",")
		case name == "token", name == "forged-token":
			c.Token = &simulate.Token{Invalid: name == "forged-token"}
			err = json.Unmarshal([]byte(value), &c.Token.Claims)
		default:
			name = strings.ToLower(name)
			c.Headers[name] = append(c.Headers[name], value)
		}
		if err != nil {
			return fmt.Errorf("%q: %w", w, err)
		}
	}
	return nil
}

// render describes an outcome, indented.
func render(o simulate.Outcome) string {
	var b strings.Builder
	for _, line := range o.Lines() {
		fmt.Fprintf(&b, "    %s\n", line)
	}
	return b.String()
}
