package ca

import (
	"context"
	"time"

	"google.golang.org/protobuf/proto"

	"meshlog.dev/proto/ident"
	registryv1 "meshlog.dev/proto/meshlog/registry/v1"
	"meshlog.dev/services/mesh/kind"
	"meshlog.dev/services/watcher"
)

// source publishes the roots of a trust domain as its TrustBundle (CA-9).
type source struct {
	trustDomain string
	roots       *roots
}

// Run implements watcher.Watcher.
func (s *source) Run(ctx context.Context, sink watcher.Sink) error {
	bundle, news := s.roots.bundle()
	object, err := s.object(bundle)
	if err != nil {
		return err
	}
	if err := sink.List(ctx, watcher.Listing{Objects: []watcher.Object{object}}); err != nil {
		return err
	}
	for {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-news:
		}
		var next *registryv1.TrustBundle
		if next, news = s.roots.bundle(); proto.Equal(next, bundle) {
			continue
		}
		bundle = next
		if object, err = s.object(bundle); err != nil {
			return err
		}
		if err := sink.Change(ctx, []watcher.Object{object}); err != nil {
			return err
		}
	}
}

func (s *source) object(b *registryv1.TrustBundle) (watcher.Object, error) {
	k, _ := kind.ByName("TrustBundle")
	encoded, err := k.Encode(b)
	if err != nil {
		return watcher.Object{}, err
	}
	return watcher.Object{
		Kind: k.Name, Name: s.trustDomain, Value: ident.Value{Type: k.TypeURL, Bytes: encoded}, Origin: "the certificate authority", Observed: time.Now(),
	}, nil
}
