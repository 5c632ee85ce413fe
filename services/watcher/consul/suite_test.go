//go:build registries

package consul_test

import (
	"net/http"
	"testing"

	"meshlog.dev/deploy/testkit/consultest"
	"meshlog.dev/deploy/testkit/program"
	"meshlog.dev/services/watcher"
	"meshlog.dev/services/watcher/consul"
	"meshlog.dev/services/watcher/watchertest"
)

// TST-2: the acceptance suite, with a server that is paused and one that is killed. A
// service at a host name is one object.
func TestTST2Acceptance(t *testing.T) {
	for name, kill := range map[string]bool{"paused": false, "killed": true} {
		t.Run(name, func(t *testing.T) {
			watchertest.Run(t, func(t *testing.T) watchertest.Source { return source(t, kill) })
		})
	}
}

func source(t *testing.T, kill bool) watchertest.Source {
	s := consultest.Start(t, consultest.Options{})
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Error(err)
		}
	}
	do := func(path string, body any) { must(s.Put(t.Context(), path, body, nil)) }
	service := func(name, value string) map[string]any {
		return map[string]any{"ID": name, "Service": name, "Port": 80, "Meta": map[string]string{"value": value}}
	}
	do("/v1/catalog/register", map[string]any{"Node": "far", "Address": "far.example.com"})
	return watchertest.Source{
		Watcher: func() watcher.Watcher { return consul.New(settings(s.Addr), newStatus()) },
		Put: func(name, value string) {
			do("/v1/catalog/register", map[string]any{"Node": "far", "Address": "far.example.com", "Service": service(name, value)})
		},
		Delete: func(name string) {
			do("/v1/catalog/deregister", map[string]any{"Node": "far", "ServiceID": name})
		},
		PutAll: func(values map[string]string) {
			var all []any
			for name, value := range values {
				all = append(all, map[string]any{"Service": map[string]any{"Verb": "set", "Node": "far", "Service": service(name, value)}})
			}
			req, err := s.Request(t.Context(), http.MethodPut, "/v1/txn", all)
			must(err)
			resp, err := s.HTTP.Do(req)
			must(err)
			if err == nil {
				resp.Body.Close()
				if resp.StatusCode != http.StatusOK {
					t.Errorf("the transaction: %s", resp.Status)
				}
			}
		},
		Down: func() {
			if kill {
				s.Kill()
			} else {
				must(s.Pause())
			}
		},
		Up: func() {
			if kill {
				must(s.Start(t.Context()))
				return
			}
			must(s.Resume())
			must(program.Until(t.Context(), "a leader", s.Ready))
		},
	}
}
