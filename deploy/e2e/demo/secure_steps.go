package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"time"

	"meshlog.dev/deploy/e2e/rig"
	"meshlog.dev/deploy/testkit/program"
)

// rotations is how often the certificate of the edge is replaced under load.
const rotations = 5

// https replaces the certificate of the edge while requests come on new connections.
func (s *secureStage) https(ctx context.Context) error {
	s.chapter("HTTPS at the edge, from the edge through web to shop")
	if err := s.until(ctx, "/", answers("shop, called by spiffe://cluster.local/ns/web/sa/web")); err != nil {
		return err
	}
	got := s.ask(ctx, "/")
	s.holds("%s answers: %s", edgeAddress, got.body)
	load := s.load(ctx)
	defer load.stop()
	for range rotations {
		if err := s.rotate(); err != nil {
			return err
		}
		want := fmt.Sprintf("edge %d", len(s.keys))
		if err := s.until(ctx, "/", func(a answer) error {
			if a.certificate != want {
				return fmt.Errorf("the certificate is that of %s, not of %s", a.certificate, want)
			}
			return a.err
		}); err != nil {
			return err
		}
	}
	return s.answered(load, "its certificate and key were replaced %d times", rotations)
}

// strict lets shop and web take mutual TLS only, while requests flow.
func (s *secureStage) strict(ctx context.Context) error {
	s.chapter("Mutual TLS between the services: from permissive to strict while requests flow")
	if got := s.plain(ctx); got.err != nil || got.status != http.StatusOK {
		return fmt.Errorf("a plain request to shop: %s", got)
	}
	s.holds("a caller without an identity reaches shop: the mode is PERMISSIVE")
	load := s.load(ctx)
	defer load.stop()
	if err := s.save("strict.yaml"); err != nil {
		return err
	}
	if err := program.Until(ctx, "plain requests to shop to be refused", func(ctx context.Context) error {
		if got := s.plain(ctx); got.err == nil {
			return fmt.Errorf("it says %s", got)
		}
		return nil
	}); err != nil {
		return err
	}
	s.holds("strict.yaml: shop refuses connections without mutual TLS")
	return s.answered(load, "the mode changed")
}

// token requires a token at the edge.
func (s *secureStage) token(ctx context.Context) error {
	s.chapter("A token is required")
	if err := s.save("tokens.yaml", "JWKS", s.keySet()); err != nil {
		return err
	}
	for _, c := range []struct {
		what, bearer string
		status       int
	}{
		{"without a token", "", http.StatusForbidden},
		{"with a token that somebody else signed", s.bearerBy(newKey()), http.StatusUnauthorized},
		{"with a good one", s.bearer(), http.StatusOK},
	} {
		if err := program.Until(ctx, c.what, func(ctx context.Context) error {
			if got := s.askWith(ctx, s.client(), "/", c.bearer); got.status != c.status {
				return fmt.Errorf("it says %s, want %d", got, c.status)
			}
			return nil
		}); err != nil {
			return err
		}
		s.holds("%s: %d", c.what, c.status)
	}
	return nil
}

// deny forbids a path at shop. The next request on a connection that stands is refused.
func (s *secureStage) deny(ctx context.Context) error {
	s.chapter("A policy forbids a path, at once on connections that stand")
	client := s.client()
	client.Transport.(*http.Transport).DisableKeepAlives = false
	defer client.CloseIdleConnections()
	before := s.askWith(ctx, client, "/admin", s.bearer())
	if before.err != nil || before.status != http.StatusOK {
		return fmt.Errorf("/admin says %s", before)
	}
	if err := s.save("deny.yaml"); err != nil {
		return err
	}
	saved, sent := time.Now(), 0
	var after answer
	if err := program.Until(ctx, "/admin to be forbidden", func(ctx context.Context) error {
		sent++
		if after = s.askWith(ctx, client, "/admin", s.bearer()); after.status != http.StatusForbidden {
			return fmt.Errorf("it says %s", after)
		}
		return nil
	}); err != nil {
		return err
	}
	if !after.reused {
		return errors.New("the connection to the edge did not stand")
	}
	s.holds("/admin: 403 at shop %s after the save of deny.yaml, on the connection on which it was 200", tenths(time.Since(saved)))
	if got := s.askWith(ctx, client, "/", s.bearer()); got.status != http.StatusOK {
		return fmt.Errorf("/ says %s", got)
	}
	s.holds("/: 200, as before")
	return nil
}

// root rotates the root of the mesh.
func (s *secureStage) root(ctx context.Context) error {
	s.chapter("The root of the CA is rotated while requests flow")
	load := s.load(ctx)
	defer load.stop()
	before, err := s.issuers()
	if err != nil {
		return err
	}
	if out, err := s.meshlog(ctx, "ca", "rotate"); err != nil {
		return err
	} else {
		s.command("meshlog ca rotate")
		s.output(out)
	}
	if err := program.Until(ctx, "certificates of all workloads under the new root", func(context.Context) error {
		now, err := s.issuers()
		if err != nil {
			return err
		}
		for name, issuer := range now {
			if bytes.Equal(issuer, before[name]) {
				return fmt.Errorf("that of %s is under the old one", name)
			}
		}
		return nil
	}); err != nil {
		return err
	}
	out, err := s.meshlog(ctx, "ca", "status")
	if err != nil {
		return err
	}
	s.command("meshlog ca status")
	s.output(out)
	return s.answered(load, "shop, web and edge got certificates under a new root")
}

// alone kills every process but the agents with their Envoys, and the services.
func (s *secureStage) alone(ctx context.Context) error {
	s.chapter("Everything dies except the Envoys with their agents, and the services")
	if _, err := s.meshlog(ctx, "export", s.archive()); err != nil { // to be searched
		return err
	}
	load := s.load(ctx)
	defer load.stop()
	for _, name := range []string{"frontend", "ca", "watcher", "builder"} {
		s.servers[name].Kill()
	}
	s.nats.Kill()
	s.holds("frontend, ca, watcher, builder and nats-server are killed")
	if err := load.more(ctx, 200); err != nil {
		return err
	}
	return s.answered(load, "nobody was there")
}

// fromDisk starts the frontend alone, and a gateway that has nothing.
func (s *secureStage) fromDisk(ctx context.Context) error {
	s.chapter("A frontend comes back alone, and serves the keys from its disk")
	if err := errors.Join(s.servers["frontend"].Restart(), s.servers["frontend"].Ready(ctx)); err != nil {
		return err
	}
	s.holds("frontend runs again (pid %d); no bus, no watcher, no CA", s.servers["frontend"].PID())
	s.servers["edge"].Kill()
	if err := errors.Join(s.servers["edge"].Restart(), s.servers["edge"].Ready(ctx)); err != nil {
		return err
	}
	if err := s.until(ctx, "/", answers("shop, called by")); err != nil {
		return err
	}
	got := s.ask(ctx, "/")
	s.holds("a new edge (pid %d) has its key from the frontend, and answers with the certificate of %s", s.servers["edge"].PID(), got.certificate)
	return nil
}

// search looks for the private keys in everything that the processes wrote or sent.
func (s *secureStage) search(context.Context) error {
	s.chapter("Where are the private keys?")
	secrets, err := s.secrets()
	if err != nil {
		return err
	}
	var files, sum int
	look := func(what string, b []byte) error {
		files, sum = files+1, sum+len(b)
		for _, secret := range secrets {
			if bytes.Contains(b, secret) {
				return fmt.Errorf("%s has a private key", what)
			}
		}
		return nil
	}
	if err := filepath.WalkDir(s.dir, func(path string, d fs.DirEntry, err error) error {
		switch {
		case err != nil:
			return err
		case path == s.inputs || path == s.nats.Auth: // what users give to processes
			return fs.SkipDir
		case !d.Type().IsRegular():
			return nil
		}
		b, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		return look(strings.TrimPrefix(path, s.dir), b)
	}); err != nil {
		return err
	}
	s.holds("%d files, %d KB: none has one", files, sum>>10)
	recorded := s.recorder.Recorded()
	if err := look("the recorded bus", recorded); err != nil {
		return err
	}
	if !bytes.Contains(recorded, []byte("meshlog.key.mesh.file.default")) {
		return errors.New("the recorded bus has no request for a key, so the search proves nothing")
	}
	s.holds("%d KB recorded on the bus, with the requests for the keys: none has one", len(recorded)>>10)
	packed, err := os.ReadFile(s.archive())
	if err != nil {
		return err
	}
	archive, err := rig.Unpacked(packed)
	if err != nil {
		return err
	}
	if err := look("the archive", archive); err != nil {
		return err
	}
	if !bytes.Contains(archive, []byte("SecretReference")) {
		return errors.New("the archive has no reference to a key, so the search proves nothing")
	}
	s.holds("the archive of the log and all versions: none")
	return nil
}
