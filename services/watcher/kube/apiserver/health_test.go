package apiserver

import (
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"k8s.io/client-go/rest"
)

// TestWatchOver checks the meaning of answers to a probe.
func TestWatchOver(t *testing.T) {
	var code atomic.Int64
	const page = "[+]ping ok\n[-]etcd failed: reason withheld\nreadyz check failed\n"
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.WriteHeader(int(code.Load()))
		_, _ = w.Write([]byte(page))
	}))
	defer s.Close()
	c, err := New(&rest.Config{Host: s.URL})
	if err != nil {
		t.Fatal(err)
	}
	for _, test := range []struct {
		code         int
		unready, err string
	}{
		{http.StatusOK, "", ""},
		{http.StatusForbidden, "", ""}, // forbidden is an answer
		{http.StatusTooManyRequests, "", ""},
		{http.StatusInternalServerError, "not ready: etcd", ""},
		{http.StatusUnauthorized, "", "does not accept these credentials"},
	} {
		code.Store(int64(test.code))
		unready, err := c.ready(t.Context(), time.Minute)
		for _, got := range []struct {
			err  error
			want string
		}{{unready, test.unready}, {err, test.err}} {
			if (got.err != nil) != (got.want != "") || got.err != nil && !strings.Contains(got.err.Error(), got.want) {
				t.Errorf("%d: unready %v, error %v", test.code, unready, err)
			}
		}
	}
	// An API server that rejects our credentials for long is down.
	l := Limits{Probe: 500 * time.Millisecond, Down: 1}
	err = c.WatchOver(t.Context(), l, func(error) {})
	if err == nil || !strings.Contains(err.Error(), s.URL) {
		t.Errorf("refused: %v", err)
	}
	s.Close()
	if err = c.WatchOver(t.Context(), l, func(error) {}); err == nil || !strings.Contains(err.Error(), "has not answered for") {
		t.Errorf("gone: %v", err)
	}
}
