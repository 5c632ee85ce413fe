package kubetest

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"path/filepath"

	"meshlog.dev/deploy/testkit/program"
	"meshlog.dev/deploy/testkit/testport"
)

func (s *Server) startEtcd(ctx context.Context, dir string) error {
	bin, err := program.Tool(ctx, "etcd")
	if err != nil {
		return err
	}
	port, err := testport.TCP()
	if err != nil {
		return err
	}
	s.etcdURL = "http://" + loopback(port)
	// There are no peers, so any free port will do.
	const peers = "http://127.0.0.1:0"
	s.Etcd = &Process{
		Name: "etcd", Dir: dir,
		Argv: []string{
			bin, "--name=kubetest", "--data-dir=" + filepath.Join(dir, "etcd"),
			"--listen-client-urls=" + s.etcdURL, "--advertise-client-urls=" + s.etcdURL,
			"--listen-peer-urls=" + peers, "--initial-advertise-peer-urls=" + peers, "--initial-cluster=kubetest=" + peers,
			// The data survives a crash of etcd but not a crash of the machine.
			"--unsafe-no-fsync", "--log-level=warn",
		},
		Ready: func(ctx context.Context) error { return getOK(ctx, http.DefaultClient, s.etcdURL+"/readyz") },
	}
	return s.Etcd.Start(ctx)
}

// Compact makes etcd drop all revisions before the current one. A list or watch
// at an older revision, or a continue token from before, then fails with 410
// Gone. The API server caches the latest changes of each kind: a watch within
// that cache continues until the API server restarts.
func (s *Server) Compact(ctx context.Context) error {
	var now struct {
		Header struct{ Revision string }
	}
	// The key does not matter: only the header of the response is used.
	if err := s.etcd(ctx, "range", map[string]any{"key": []byte("/"), "keys_only": true}, &now); err != nil {
		return err
	}
	return s.etcd(ctx, "compaction", map[string]any{"revision": now.Header.Revision, "physical": true}, nil)
}

// etcd calls a method of etcd's KV service through its JSON gateway.
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
