package process

import (
	"crypto/sha256"
	"crypto/subtle"
	"errors"
	"net"
	"net/http"
	"net/url"
	"os"
	"strings"
)

// guarded restricts a debug page to requests from this machine and to requests
// with the token.
func (a *Admin) guarded(h http.HandlerFunc) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		switch {
		case HasToken(r, a.TokenFile):
			h(w, r)
		case IsLocal(r) && IsCrossSite(r):
			http.Error(w, "debug pages are not open to web pages of other sites; open this address itself, or send the token of --admin-token-file", http.StatusForbidden)
		case IsLocal(r):
			h(w, r)
		case a.TokenFile == "":
			http.Error(w, "debug pages are open to this machine only; --admin-token-file opens them to other machines", http.StatusForbidden)
		default:
			w.Header().Set("WWW-Authenticate", "Bearer")
			http.Error(w, "debug pages require the token of --admin-token-file: Authorization: Bearer TOKEN", http.StatusUnauthorized)
		}
	}
}

// IsLocal reports whether a request comes from this machine. A request that a
// proxy on this machine forwarded does not count as local, nor does one for
// another host name, which a web page can make a local browser send (DNS
// rebinding).
func IsLocal(r *http.Request) bool {
	if r.Header.Get("X-Forwarded-For") != "" || r.Header.Get("Forwarded") != "" {
		return false
	}
	host := r.Host
	if h, _, err := net.SplitHostPort(host); err == nil {
		host = h
	}
	if ip := net.ParseIP(strings.Trim(host, "[]")); host != "localhost" && (ip == nil || !ip.IsLoopback()) {
		return false
	}
	from, _, err := net.SplitHostPort(r.RemoteAddr)
	return err == nil && net.ParseIP(from).IsLoopback()
}

// IsCrossSite reports whether a web page of another site made a browser send the
// request: such a page may send simple requests to every address that the
// browser reaches, and so change the log levels of a process. A browser names the
// site in headers that a page cannot set. Other clients send none of them.
func IsCrossSite(r *http.Request) bool {
	switch r.Header.Get("Sec-Fetch-Site") {
	case "", "same-origin", "none": // none: the user typed the address
	default:
		return true
	}
	// Browsers without Sec-Fetch-Site send Origin with all that may change
	// something.
	origin := r.Header.Get("Origin")
	if origin == "" {
		return false
	}
	u, err := url.Parse(origin)
	return err != nil || u.Scheme != "http" || u.Host != r.Host
}

// HasToken reports whether a request has the token in a file. If the file cannot be read or
// its name is empty, no request has.
func HasToken(r *http.Request, file string) bool {
	sent, ok := strings.CutPrefix(r.Header.Get("Authorization"), "Bearer ")
	if !ok || file == "" {
		return false
	}
	token, err := readToken(file)
	// Hashes have equal lengths, so the time of the comparison reveals nothing.
	x, y := sha256.Sum256([]byte(strings.TrimSpace(sent))), sha256.Sum256([]byte(token))
	return err == nil && subtle.ConstantTimeCompare(x[:], y[:]) == 1
}

func readToken(path string) (string, error) {
	b, err := os.ReadFile(path)
	if err != nil {
		return "", reason(err)
	}
	token := strings.TrimSpace(string(b))
	if token == "" {
		return "", errors.New("the file is empty")
	}
	return token, nil
}
