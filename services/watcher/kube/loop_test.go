package kube

import (
	"log/slog"
	"testing"
	"testing/synctest"
	"time"

	"k8s.io/client-go/rest"

	"meshlog.dev/services/watcher/kube/apiserver"
)

// TestNothingDueIsMissed: the watcher also does work that becomes due between a step and the
// following wait.
func TestNothingDueIsMissed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		access := &rest.Config{Host: "127.0.0.1:1"}
		w, err := New(Config{REST: access, Cluster: "east", Logger: slog.New(slog.DiscardHandler)})
		must(t, err)
		client, err := apiserver.New(access)
		must(t, err)
		r := newRun(w, client, nil)
		r.definitions = r.newFeed(t.Context(), nil, apiserver.Scope{Resource: apiserver.Definitions}, apiserver.DefinitionObject)
		begun := time.Now()
		<-time.After(w.limits.again) // this run may end now
		_, err = r.gather(t.Context())
		must(t, err)
		if late := time.Since(begun) - w.limits.again; late != 0 {
			t.Errorf("it is seen %s late", late)
		}
	})
}
