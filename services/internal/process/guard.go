package process

import (
	"crypto/sha256"
	"crypto/subtle"
	"errors"
	"net"
	"net/http"
	"os"
	"strings"
)

// guarded lets those to a debug page who may see everything: whoever is on this
// machine, and whoever has the token.
func (a *Admin) guarded(h http.HandlerFunc) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		if isLocal(r) {
			h(w, r)
			return
		}
		switch {
		case a.hasToken(r):
			h(w, r)
		case a.TokenFile == "":
			http.Error(w, "debug pages are for this machine alone; --admin-token-file opens them to who has the token", http.StatusForbidden)
		default:
			w.Header().Set("WWW-Authenticate", "Bearer")
			http.Error(w, "debug pages want the token of --admin-token-file: Authorization: Bearer TOKEN", http.StatusUnauthorized)
		}
	}
}

// isLocal says whether a request is from this machine. One that a proxy here
// passed on is not, nor is one that a web page made a browser here send, which
// has another name for this machine.
func isLocal(r *http.Request) bool {
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

// hasToken says whether a request has the token. A file that cannot be read
// opens nothing.
func (a *Admin) hasToken(r *http.Request) bool {
	said, ok := strings.CutPrefix(r.Header.Get("Authorization"), "Bearer ")
	if !ok || a.TokenFile == "" {
		return false
	}
	token, err := readToken(a.TokenFile)
	// Of equal length, so that the comparison tells nothing of the token.
	x, y := sha256.Sum256([]byte(strings.TrimSpace(said))), sha256.Sum256([]byte(token))
	return err == nil && subtle.ConstantTimeCompare(x[:], y[:]) == 1
}

// readToken reads the token of the admin server.
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
