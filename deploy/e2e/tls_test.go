package e2e

import (
	"context"
	"fmt"
	"testing"
	"time"

	"meshlog.dev/deploy/e2e/rig"
	"meshlog.dev/deploy/e2e/shop"
)

// TestTLS serves an Envoy over mutual TLS only. Certificates are replaced while
// requests flow. A proxy whose node differs from its certificate gets nothing.
func TestTLS(t *testing.T) {
	ca, err := rig.NewCA(t.TempDir(), "mesh")
	if err != nil {
		t.Fatal(err)
	}
	sign := func(name, identity string) rig.TLS {
		files, err := ca.Sign(name, identity)
		if err != nil {
			t.Fatal(err)
		}
		return files
	}
	serves := sign("frontend", "")
	edge := sign("edge", "spiffe://cluster.local/ns/default/sa/edge")
	f := startWith(t, func(ctx context.Context, dir, config string) (*rig.Mesh, error) {
		return rig.UpTLS(ctx, dir, config, &serves)
	}, rig.EnvoyConfig{Node: node, Cluster: "demo", TLS: &edge})
	f.shift(100, 0)
	f.share(shop.V1, 100)

	server := f.mesh.Frontends[0]
	before := loaded(f, server)
	f.during("the frontend's certificate is replaced", func() {
		sign("frontend", "")
		f.must(server.UntilAlive(f.ctx, "the new certificate to be in use", func(context.Context) error {
			if now := loaded(f, server); !now.After(before) {
				return fmt.Errorf("the certificate in use was loaded at %s", now)
			}
			return nil
		}))
		f.shift(0, 100)
	})
	f.share(shop.V2, 100)
	if n, err := f.envoy.Stat(f.ctx, "control_plane.connected_state"); err != nil || n != 1 {
		t.Errorf("the stream that was open before: connected_state %d, %v", n, err)
	}
	if n, err := f.envoy.Stat(f.ctx, "cluster.meshlog.upstream_cx_total"); err != nil || n != 1 {
		t.Errorf("Envoy made %d connections, %v, want only the first one", n, err)
	}

	// New connections use the new certificate.
	f.must(join(f, "second", edge).Ready(f.ctx))

	// A certificate for another namespace, and one that another CA signed, are
	// refused.
	impostor := sign("impostor", "spiffe://cluster.local/ns/bank/sa/edge")
	refused(f, "impostor", impostor, "meshlog_frontend_identity_mismatches_total")
	others, err := rig.NewCA(t.TempDir(), "others")
	f.must(err)
	stranger, err := others.Sign("stranger", "")
	f.must(err)
	stranger.CA = serves.CA
	refused(f, "stranger", stranger, "meshlog_frontend_tls_handshake_failures_total")
}

// loaded returns when the frontend loaded its certificate.
func loaded(f *fixture, s *rig.Server) time.Time {
	f.Helper()
	var r struct{ Loaded time.Time }
	f.must(s.Debug(f.ctx, "certificates", &r))
	return r.Loaded
}

// join starts another Envoy, which may be refused.
func join(f *fixture, name string, files rig.TLS) *rig.Envoy {
	f.Helper()
	e, err := rig.StartEnvoy(f.ctx, rig.EnvoyConfig{
		Node: name, Cluster: "demo", TLS: &files, XDS: []int{f.mesh.Frontends[0].XDS}, Dir: f.TempDir(),
	})
	f.must(err)
	f.Cleanup(e.Kill)
	return e
}

// refused demands that a metric counts an Envoy with these files, and that the
// Envoy gets nothing.
func refused(f *fixture, name string, files rig.TLS, metric string) {
	f.Helper()
	e := join(f, name, files)
	server := f.mesh.Frontends[0]
	f.must(e.UntilAlive(f.ctx, name+" to be refused twice", func(ctx context.Context) error {
		m, err := server.Metrics(ctx)
		if err == nil && m[metric].Sum < 2 {
			err = fmt.Errorf("%s is %v", metric, m[metric].Sum)
		}
		return err
	}))
	if n, err := e.Stat(f.ctx, "cluster_manager.cds.update_success"); err != nil || n != 0 {
		f.Errorf("%s was sent clusters: update_success %d, %v", name, n, err)
	}
}
