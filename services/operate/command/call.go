package command

import (
	"cmp"
	"net/url"
	"strconv"
	"strings"

	"meshlog.dev/services/mesh/simulate"
)

// ReadURL reads the method and the URL of a call, http:// or https://.
func ReadURL(c *simulate.Call, method, target string) error {
	u, err := url.Parse(target)
	if err != nil {
		return Usage("URL: %w", err)
	}
	if u.Scheme != "http" && u.Scheme != "https" || u.Host == "" {
		return Usage("URL %q: want http://HOST[:PORT]/PATH or https://", target)
	}
	c.Method, c.Host, c.Path, c.Port = strings.ToUpper(method), u.Host, u.RequestURI(), 80
	if u.Scheme == "https" {
		c.TLS, c.Port = true, 443
	}
	if c.TLS {
		c.ServerName = cmp.Or(c.ServerName, u.Hostname())
	}
	if u.Port() != "" {
		n, err := strconv.ParseUint(u.Port(), 10, 16)
		if err != nil {
			return Usage("URL: port %s: %w", u.Port(), err)
		}
		c.Port = uint32(n)
	}
	return nil
}
