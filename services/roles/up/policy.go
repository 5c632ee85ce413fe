package up

import (
	"context"
	"time"

	"meshlog.dev/proto/ident"
	configv1 "meshlog.dev/proto/meshlog/config/v1"
	"meshlog.dev/services/mesh/kind"
	"meshlog.dev/services/watcher"
)

// policySource publishes the default policy: each source that `up` starts is
// required. A MeshPolicy of any other source overrides it, because no policy gives
// this source a priority.
type policySource struct{ policy watcher.Object }

func newPolicySource(required ...*configv1.RequiredSource) (*policySource, error) {
	k, _ := kind.ByName("MeshPolicy")
	b, err := k.Encode(&configv1.MeshPolicy{RequiredSources: required})
	if err != nil {
		return nil, err
	}
	return &policySource{watcher.Object{
		Kind: k.Name, Name: k.Only, Value: ident.Value{Type: k.TypeURL, Bytes: b}, Origin: "meshlog up",
	}}, nil
}

// Run implements watcher.Watcher.
func (s *policySource) Run(ctx context.Context, sink watcher.Sink) error {
	policy := s.policy
	policy.Observed = time.Now()
	if err := sink.List(ctx, watcher.Listing{Objects: []watcher.Object{policy}}); err != nil {
		return err
	}
	<-ctx.Done()
	return ctx.Err()
}
