package kubetest

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"path/filepath"

	"meshlog.dev/deploy/testkit/testport"
)

func (s *Server) startEtcd(ctx context.Context, dir string) error {
	bin, err := tool(ctx, "etcd")
	if err != nil {
		return err
	}
	port, err := testport.TCP()
	if err != nil {
		return err
	}
	s.etcdURL = "http://" + loopback(port)
	// It has no peers: nobody comes to the port that the system chooses.
	const peers = "http://127.0.0.1:0"
	s.Etcd = &Process{
		name: "etcd", LogPath: filepath.Join(dir, "etcd.log"),
		argv: []string{
			bin, "--name=kubetest", "--data-dir=" + filepath.Join(dir, "etcd"),
			"--listen-client-urls=" + s.etcdURL, "--advertise-client-urls=" + s.etcdURL,
			"--listen-peer-urls=" + peers, "--initial-advertise-peer-urls=" + peers, "--initial-cluster=kubetest=" + peers,
			// It outlives its own end, not the machine's.
			"--unsafe-no-fsync", "--log-level=warn",
		},
		ready: s.etcdReady,
	}
	return s.Etcd.Start(ctx)
}

func (s *Server) etcdReady(ctx context.Context) error {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, s.etcdURL+"/readyz", nil)
	if err != nil {
		return err
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		return fmt.Errorf("/readyz: %s", resp.Status)
	}
	return nil
}

// Compact makes etcd forget all revisions before the present one: a list or a
// watch that names one of them, or a list that goes on from a token of then, is
// answered with 410 Gone. The API server knows the latest changes of each kind
// by heart: a watch from among those goes on until it is restarted too.
func (s *Server) Compact(ctx context.Context) error {
	var now struct {
		Header struct{ Revision string }
	}
	// Any key: the header counts.
	if err := s.etcd(ctx, "range", map[string]any{"key": []byte("/"), "keys_only": true}, &now); err != nil {
		return err
	}
	return s.etcd(ctx, "compaction", map[string]any{"revision": now.Header.Revision, "physical": true}, nil)
}

// etcd calls a method of etcd's KV service by its JSON gateway.
func (s *Server) etcd(ctx context.Context, method string, in, out any) error {
	body, err := json.Marshal(in)
	if err != nil {
		return err
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, s.etcdURL+"/v3/kv/"+method, bytes.NewReader(body))
	if err != nil {
		return err
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return fmt.Errorf("etcd %s: %w", method, err)
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		return fmt.Errorf("etcd %s: %s", method, resp.Status)
	}
	if out == nil {
		return nil
	}
	return json.NewDecoder(resp.Body).Decode(out)
}
