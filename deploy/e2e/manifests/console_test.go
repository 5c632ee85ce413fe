package manifests

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"strings"
	"testing"

	"meshlog.dev/deploy/testkit/program"
)

// shows demands that the console at a port shows the mesh to whoever has the token, and sends
// others to give it.
func (k *kubelet) shows(t *testing.T, port int, token string) {
	t.Helper()
	get := func(ctx context.Context, token string) (status int, body string, err error) {
		q, err := http.NewRequestWithContext(ctx, http.MethodGet, fmt.Sprintf("http://127.0.0.1:%d/sources", port), nil)
		if err != nil {
			return 0, "", err
		}
		q.Host = "console.meshlog.svc" // as through its Service
		if token != "" {
			q.Header.Set("Authorization", "Bearer "+token)
		}
		r, err := http.DefaultTransport.RoundTrip(q)
		if err != nil {
			return 0, "", err
		}
		defer r.Body.Close()
		b, err := io.ReadAll(r.Body)
		return r.StatusCode, string(b), err
	}
	must(t, program.Until(k.ctx, "the console to show the sources", func(ctx context.Context) error {
		status, body, err := get(ctx, token)
		if err == nil && (status != http.StatusOK || !strings.Contains(body, "kubernetes/default") || strings.Contains(body, "may be old")) {
			err = fmt.Errorf("status %d:\n%s", status, body)
		}
		return err
	}))
	for _, wrong := range []string{"", "another token"} {
		if status, body, err := get(k.ctx, wrong); err != nil || status != http.StatusSeeOther {
			t.Errorf("with the token %q: status %d, %v:\n%s", wrong, status, err, body)
		}
	}
}
