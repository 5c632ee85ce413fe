package kube

import (
	"bufio"
	"io"
	"net/http"
	"regexp"
	"strings"
	"testing"
	"time"

	"k8s.io/client-go/rest"

	"meshlog.dev/deploy/testkit/kubetest"
)

// testClocks checks that the results are the same if the API server's clock is a day
// ahead of ours, or behind.
func testClocks(t *testing.T, s *kubetest.Server) {
	for name, ahead := range map[string]time.Duration{"ahead": 26 * time.Hour, "behind": -26 * time.Hour} {
		t.Run(name, func(t *testing.T) {
			ctx := t.Context()
			w, stop := observe(t, skewed(s.Config(), ahead))
			defer stop()
			w.lists("Service", "EndpointSlice", "Pod", "ServiceEntry", "VirtualService")
			must(t, s.Apply(ctx, serviceEntry("k")))
			w.has("ServiceEntry shop/k", "Pod shop/cart-1")
			o, _ := w.get("ServiceEntry shop/k")
			if d := time.Until(o.Value.Created) - ahead; d.Abs() > time.Hour {
				t.Fatalf("made %s from now: the clock is not shifted", time.Until(o.Value.Created))
			}
			if since := time.Since(o.Observed).Abs(); since > time.Minute {
				t.Errorf("seen %s ago: not by our clock", since)
			}
			must(t, s.ApplyAs(ctx, "zoe", strings.ReplaceAll(serviceEntry("k"), "DNS", "NONE")))
			w.until("the change of zoe", func() bool { return w.objects["ServiceEntry shop/k"].Actor == "zoe" })
			w.neverDeleted()
			must(t, s.Delete(ctx, serviceEntry("k")))
			w.lacks("ServiceEntry shop/k")
			w.ran(1)
		})
	}
	t.Run("a definition goes", func(t *testing.T) { definitionGoes(t, s, skewed(s.Config(), 26*time.Hour)) })
	must(t, s.Apply(t.Context(), route))
}

// skewed returns a configuration for an API server whose clock is ahead.
func skewed(c *rest.Config, ahead time.Duration) *rest.Config {
	c.Wrap(func(next http.RoundTripper) http.RoundTripper { return &skew{next, ahead} })
	return c
}

// skew shifts all times in the API server's JSON answers.
type skew struct {
	next  http.RoundTripper
	ahead time.Duration
}

func (s *skew) RoundTrip(r *http.Request) (*http.Response, error) {
	var accept []string
	for _, a := range strings.Split(r.Header.Get("Accept"), ",") {
		if strings.HasPrefix(strings.TrimSpace(a), "application/json") {
			accept = append(accept, a)
		}
	}
	r = r.Clone(r.Context())
	r.Header.Set("Accept", strings.Join(accept, ","))
	resp, err := s.next.RoundTrip(r)
	if err != nil {
		return nil, err
	}
	if date, err := http.ParseTime(resp.Header.Get("Date")); err == nil {
		resp.Header.Set("Date", date.Add(s.ahead).Format(http.TimeFormat))
	}
	resp.Header.Del("Content-Length")
	resp.ContentLength = -1
	resp.Body = &skewedBody{Closer: resp.Body, lines: bufio.NewReader(resp.Body), ahead: s.ahead}
	return resp, nil
}

// WrappedRoundTripper lets the client close idle connections.
func (s *skew) WrappedRoundTripper() http.RoundTripper { return s.next }

// skewedBody reads the body line by line, because each event of a watch is a line.
type skewedBody struct {
	io.Closer
	lines *bufio.Reader
	ahead time.Duration
	rest  []byte // the unread rest of a line
}

var timeInJSON = regexp.MustCompile(`"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ"`)

func (b *skewedBody) Read(p []byte) (int, error) {
	for len(b.rest) == 0 {
		line, err := b.lines.ReadBytes('\n')
		if len(line) == 0 {
			return 0, err
		}
		b.rest = timeInJSON.ReplaceAllFunc(line, func(text []byte) []byte {
			at, err := time.Parse(`"`+time.RFC3339+`"`, string(text))
			if err != nil {
				return text
			}
			return []byte(at.Add(b.ahead).Format(`"` + time.RFC3339 + `"`))
		})
	}
	n := copy(p, b.rest)
	b.rest = b.rest[n:]
	return n, nil
}
