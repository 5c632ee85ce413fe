package web

import (
	"crypto/rand"
	"net/http"
	"net/url"
	"slices"
	"sync"
	"time"

	"meshlog.dev/services/internal/process"
)

// Limits of what a client may send, and of the work that all clients cause at once.
const (
	maxURL      = 8 << 10
	maxWork     = 8 // pages that are made at once
	maxWait     = 5 * time.Second
	sessionTime = 12 * time.Hour
	maxSessions = 1000
	maxForm     = 4 << 10
	cookieName  = "meshlog-console"
)

// policy is the Content-Security-Policy of every answer: scripts, styles and connections are
// the console's own, nothing is inline, and no other page frames it.
const policy = "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; form-action 'self'; base-uri 'none'; frame-ancestors 'none'"

// sessions are the browsers that gave the token. The oldest ends if there are too many.
type sessions struct {
	mu  sync.Mutex
	all []session
}

type session struct {
	id   string
	ends time.Time
}

// begin returns the id of a new session.
func (s *sessions) begin(now time.Time) string {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.all = slices.DeleteFunc(s.all, func(o session) bool { return o.ends.Before(now) })
	if len(s.all) == maxSessions {
		s.all = slices.Delete(s.all, 0, 1)
	}
	id := rand.Text() + rand.Text()
	s.all = append(s.all, session{id, now.Add(sessionTime)})
	return id
}

// has reports whether a request belongs to a session. Ids are random and long: the time of the
// comparison reveals nothing of use.
func (s *sessions) has(r *http.Request, now time.Time) bool {
	c, err := r.Cookie(cookieName)
	if err != nil {
		return false
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.ContainsFunc(s.all, func(o session) bool { return o.id == c.Value && now.Before(o.ends) })
}

// guarded adds the headers of all answers, and refuses requests that may not read.
func (s *Server) guarded(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		h := w.Header()
		h.Set("Content-Security-Policy", policy)
		h.Set("X-Content-Type-Options", "nosniff")
		h.Set("Referrer-Policy", "same-origin")
		h.Set("Cross-Origin-Resource-Policy", "same-origin")
		h.Set("Cross-Origin-Opener-Policy", "same-origin")
		h.Set("Cache-Control", "no-store")
		switch {
		case len(r.URL.RequestURI()) > maxURL:
			http.Error(w, "the address is too long", http.StatusRequestURITooLong)
		case process.IsCrossSite(r) && (r.Method != http.MethodGet || r.Header.Get("Sec-Fetch-Mode") != "navigate"):
			// A link on another site may lead here; anything else of another site may not.
			http.Error(w, "the console is not open to web pages of other sites", http.StatusForbidden)
		case r.URL.Path == "/login" || isAsset(r.URL.Path) || s.mayRead(r):
			next.ServeHTTP(w, r)
		case s.TokenFile == "":
			http.Error(w, "the console is open to this machine only, under 127.0.0.1 or localhost; --console-token-file opens it to others", http.StatusForbidden)
		case r.Method == http.MethodGet && r.URL.Path != "/events":
			http.Redirect(w, r, "/login?"+url.Values{"to": {r.URL.RequestURI()}}.Encode(), http.StatusSeeOther)
		default:
			w.Header().Set("WWW-Authenticate", "Bearer")
			http.Error(w, "the console requires the token of --console-token-file", http.StatusUnauthorized)
		}
	})
}

// mayRead reports whether a request may read: from this machine, or with the token.
func (s *Server) mayRead(r *http.Request) bool {
	return process.IsLocal(r) || process.HasToken(r, s.TokenFile) || s.sessions.has(r, time.Now())
}

// login takes the token, and begins a session.
func (s *Server) login(w http.ResponseWriter, r *http.Request) {
	to := ownPath(r.FormValue("to"))
	if r.Method == http.MethodPost {
		r.Header.Set("Authorization", "Bearer "+r.PostFormValue("token"))
		if process.HasToken(r, s.TokenFile) {
			http.SetCookie(w, &http.Cookie{
				Name: cookieName, Value: s.sessions.begin(time.Now()), Path: "/", HttpOnly: true, SameSite: http.SameSiteLaxMode,
				Secure: r.TLS != nil, MaxAge: int(sessionTime.Seconds()),
			})
			http.Redirect(w, r, to, http.StatusSeeOther)
			return
		}
		w.WriteHeader(http.StatusUnauthorized)
	}
	s.render(w, "login.html", &page{Title: "Token", Now: time.Now(), Data: map[string]any{"To": to, "Wrong": r.Method == http.MethodPost}})
}

// ownPath returns a path of the console: what a link names may be the address of another site.
func ownPath(to string) string {
	u, err := url.Parse(to)
	if err != nil || u.Scheme != "" || u.Host != "" || u.User != nil || len(u.Path) < 1 || u.Path[0] != '/' || len(u.Path) > 1 && (u.Path[1] == '/' || u.Path[1] == '\\') {
		return "/"
	}
	return (&url.URL{Path: u.Path, RawQuery: u.RawQuery}).RequestURI()
}

// limited makes pages wait while many others are made.
func (s *Server) limited(next http.HandlerFunc) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		wait := time.NewTimer(maxWait)
		defer wait.Stop()
		select {
		case s.work <- struct{}{}:
			defer func() { <-s.work }()
			next(w, r)
		case <-wait.C:
			w.Header().Set("Retry-After", "2")
			http.Error(w, "too many pages are being made; try again", http.StatusServiceUnavailable)
		case <-r.Context().Done():
		}
	}
}
