package index

import (
	"regexp"
	"strings"
)

// Labels of services whose clients stay with one endpoint (SVC-15).
const (
	SessionLabel       = "istio.io/persistent-session"
	SessionHeaderLabel = "istio.io/persistent-session-header"
)

// Session says by what the clients of a service stay with one endpoint.
type Session struct {
	Cookie, Path string // of the cookie
	Header       string // if there is no cookie
}

var token = regexp.MustCompile(`^[A-Za-z0-9._-]+$`)

// Session returns how clients stay with an endpoint; zero: they do not, also if a label
// names no cookie and no header. The cookie wins over the header, as in Istio.
func (s *Service) Session() Session {
	if s == nil {
		return Session{}
	}
	if label := s.Labels[SessionLabel]; label != "" {
		name, path, ok := strings.Cut(label, ":")
		if !ok {
			path = "/"
		}
		if !token.MatchString(name) || !strings.HasPrefix(path, "/") || strings.ContainsAny(path, "\r\n\x00;") {
			return Session{}
		}
		return Session{Cookie: name, Path: path}
	}
	if name := s.Labels[SessionHeaderLabel]; token.MatchString(name) {
		return Session{Header: name}
	}
	return Session{}
}

// Sticky reports whether clients stay with an endpoint.
func (s *Service) Sticky() bool { return s.Session() != Session{} }
