package serve

import (
	"context"
	"fmt"
	"log/slog"
	"net"
	"time"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/timestamppb"

	"meshlog.dev/proto/ident"
	"meshlog.dev/services/frontend"
	"meshlog.dev/store"
	"meshlog.dev/store/memstore"
)

// Mark begins all versions and the control plane's identifier of a frontend on the past
// (SRV-1).
const Mark = "past:"

// drain is how long a frontend on the past takes to end its streams.
const drain = 100 * time.Millisecond

// Frontend serves one content until it is closed. Its methods are safe for concurrent use.
type Frontend struct {
	Version ident.Position
	// Address is where it listens, HOST:PORT.
	Address string
	server  *frontend.Server
	stop    context.CancelFunc
	done    chan error
}

// Name returns the identifier of a frontend that serves a version of the past.
func Name(v ident.Position) string { return Mark + v.String() }

// Start serves a content as version v at an address. The caller closes the Frontend.
func Start(ctx context.Context, v ident.Position, content store.Stored, listen string) (*Frontend, error) {
	one, err := only(ctx, v, content)
	if err != nil {
		return nil, err
	}
	l, err := (&net.ListenConfig{}).Listen(ctx, "tcp", listen)
	if err != nil {
		return nil, fmt.Errorf("--listen %s: %w", listen, err)
	}
	limits := frontend.DefaultLimits()
	limits.Drain, limits.MaxAge = drain, 0
	manifest, err := one.Latest(ctx)
	if err != nil {
		return nil, err
	}
	server, err := frontend.New(frontend.Config{
		ID: Name(v), Build: "past", Label: Name(v) + "-", Store: one, Logger: slog.New(slog.DiscardHandler),
		// What is served is the head: a client that names other versions need not wait for them.
		Head:      func(context.Context) (store.Head, error) { return store.Head{Manifest: manifest.Manifest}, nil },
		Listeners: []net.Listener{l}, Limits: limits,
	})
	if err != nil {
		return nil, err
	}
	run, stop := context.WithCancel(context.WithoutCancel(ctx))
	f := &Frontend{Version: v, Address: l.Addr().String(), server: server, stop: stop, done: make(chan error, 1)}
	go func() { f.done <- server.Run(run) }()
	return f, nil
}

// only returns a store with one version.
func only(ctx context.Context, v ident.Position, content store.Stored) (store.Store, error) {
	m := content.Manifest
	if m == nil { // it was never published
		m = &store.Manifest{Build: "past", PublishTime: timestamppb.Now()}
	}
	m = proto.CloneOf(m)
	root := content.Snapshot.Root()
	m.Version, m.Root, m.Previous, m.PreviousRoot = store.VersionProto(v), root[:], nil, nil
	s := memstore.Open(&memstore.File{}, store.Retention{})
	return s, s.Commit(ctx, ident.Position{}, store.Commit{Manifest: m, Snapshot: content.Snapshot, Delta: store.Diff(nil, content.Snapshot)})
}

// Wait returns when the frontend has ended.
func (f *Frontend) Wait(ctx context.Context) error {
	select {
	case err := <-f.done:
		f.done <- nil
		return err
	case <-ctx.Done():
		return nil
	}
}

// Close ends the streams and waits for the frontend.
func (f *Frontend) Close() error {
	f.stop()
	err := <-f.done
	f.done <- nil
	return err
}
