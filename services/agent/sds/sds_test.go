package sds_test

import (
	"context"
	"io/fs"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	secretv3 "github.com/envoyproxy/go-control-plane/envoy/service/secret/v3"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/protobuf/types/known/anypb"

	"meshlog.dev/services/agent/sds"
)

// serve serves secrets to processes of these users.
func serve(t *testing.T, s *sds.Secrets, uids ...int) (secretv3.SecretDiscoveryServiceClient, string, *strings.Builder) {
	t.Helper()
	dir, err := os.MkdirTemp("", "sds") //nolint:usetesting // the path of a socket has 107 bytes at most
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	var log strings.Builder
	path := filepath.Join(dir, "s")
	l, err := sds.Listen(path, os.Geteuid(), uids, slog.New(slog.NewTextHandler(&log, nil)))
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan struct{})
	go func() { _ = sds.NewServer(s, slog.New(slog.DiscardHandler)).Run(ctx, l); close(ended) }()
	t.Cleanup(func() { cancel(); <-ended })
	conn, err := grpc.NewClient("unix:"+path, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close() })
	return secretv3.NewSecretDiscoveryServiceClient(conn), path, &log
}

// AGT-3: the socket is for its owner only, and a process of another user is refused even if
// it can open the file.
func TestPeer(t *testing.T) {
	_, path, _ := serve(t, sds.NewSecrets(), os.Geteuid())
	info, err := os.Stat(path)
	if err != nil || info.Mode().Perm() != 0o600 || info.Mode()&fs.ModeSocket == 0 {
		t.Errorf("%v, %v", info.Mode(), err)
	}
	_, path, log := serve(t, sds.NewSecrets(), os.Geteuid()+1)
	c, err := net.Dial("unix", path)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	if err := c.SetReadDeadline(time.Now().Add(10 * time.Second)); err != nil {
		t.Fatal(err)
	}
	if _, err := c.Read(make([]byte, 1)); err == nil || os.IsTimeout(err) {
		t.Errorf("a process of another user was let in: %v", err)
	}
	if !strings.Contains(log.String(), "it is of another user") {
		t.Errorf("log: %s", log)
	}
}

// S43: a stream hears nothing until the secret is there, then each new version once, in both
// protocols.
func TestStreams(t *testing.T) {
	s := sds.NewSecrets()
	client, _, _ := serve(t, s, os.Geteuid())
	sotw, err := client.StreamSecrets(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	delta, err := client.DeltaSecrets(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if err := sotw.Send(&discoveryv3.DiscoveryRequest{ResourceNames: []string{"default"}}); err != nil {
		t.Fatal(err)
	}
	if err := delta.Send(&discoveryv3.DeltaDiscoveryRequest{ResourceNamesSubscribe: []string{"default"}}); err != nil {
		t.Fatal(err)
	}
	s.Set("ROOTCA", "1", &anypb.Any{TypeUrl: "other"})
	for _, version := range []string{"a", "b"} {
		s.Set("default", version, &anypb.Any{TypeUrl: version})
		s.Set("default", version, &anypb.Any{TypeUrl: "not again"})
		r, err := sotw.Recv()
		if err != nil || len(r.GetResources()) != 1 || r.GetResources()[0].GetTypeUrl() != version {
			t.Errorf("version %s: %v, %v", version, r, err)
		}
		d, err := delta.Recv()
		if err != nil || len(d.GetResources()) != 1 || d.GetResources()[0].GetVersion() != version {
			t.Errorf("version %s: %v, %v", version, d, err)
		}
		_ = sotw.Send(&discoveryv3.DiscoveryRequest{ResourceNames: []string{"default"}, VersionInfo: r.GetVersionInfo(), ResponseNonce: r.GetNonce()})
	}
}

// A validation context without CAs would let every client pass (S16).
func TestNoRoots(t *testing.T) {
	s := sds.NewSecrets()
	if err := s.SetRoots(nil); err != nil || s.Has(sds.RootCA) {
		t.Errorf("%v, and the secret is there: %v", err, s.Has(sds.RootCA))
	}
}
