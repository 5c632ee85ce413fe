package main

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"time"

	"meshlog.dev/deploy/e2e/rig"
	"meshlog.dev/deploy/testkit/certtest"
	"meshlog.dev/deploy/testkit/program"
)

const (
	// called is the answer at the gateway: cart has called stock in mutual TLS.
	called = "stock, called by spiffe://cluster.local/ns/store/sa/cart"
	// replacements is how often the gateway's certificate is replaced.
	replacements = 3
)

// agents are the services that run one.
var agents = []string{gateway, "cart-agent", "stock-agent"}

// shopper is a client of the gateway.
type shopper struct {
	url    string
	roots  *x509.CertPool
	client *http.Client
	shown  atomic.Pointer[string] // the name in the certificate that the gateway showed last
}

// newShopper returns a client that trusts the certificate of the deployment, and those of ca.
// Fresh: it makes a connection for each request.
func (t *trial) newShopper(ca *certtest.CA, fresh bool) (*shopper, error) {
	s := &shopper{url: "https://" + t.addr(gateway) + "/", roots: ca.Pool()}
	first, err := os.ReadFile(filepath.Join(t.keys, "certificates", "store", "edge", "tls.crt"))
	if err != nil {
		return nil, err
	}
	if !s.roots.AppendCertsFromPEM(first) {
		return nil, errors.New("the certificate of the gateway is no PEM")
	}
	s.client = &http.Client{Timeout: rig.RequestTimeout, Transport: &http.Transport{
		DisableKeepAlives: fresh, TLSClientConfig: &tls.Config{RootCAs: s.roots, ServerName: "localhost", MinVersion: tls.VersionTLS12},
	}}
	return s, nil
}

// ask sends a request.
func (s *shopper) ask(ctx context.Context) (string, int, error) {
	r, err := http.NewRequestWithContext(ctx, http.MethodGet, s.url, nil)
	if err != nil {
		return "", 0, err
	}
	resp, err := s.client.Do(r)
	if err != nil {
		return "", 0, err
	}
	defer resp.Body.Close()
	b, err := io.ReadAll(io.LimitReader(resp.Body, 1<<16))
	s.shown.Store(&resp.TLS.PeerCertificates[0].Subject.CommonName)
	return strings.TrimSpace(string(b)), resp.StatusCode, err
}

// answers waits until a request is answered by stock.
func (s *shopper) answers(ctx context.Context) error {
	ctx, cancel := context.WithTimeoutCause(ctx, arrival, fmt.Errorf("not within %s", arrival))
	defer cancel()
	return program.Until(ctx, "an answer over HTTPS", func(ctx context.Context) error {
		if body, status, err := s.ask(ctx); err != nil || body != called {
			return fmt.Errorf("%d %q: %w", status, body, err)
		}
		return nil
	})
}

// https sends requests to the gateway from now on, besides those to the Envoys. The pair that
// replaces the first one is of a CA of the test.
func (t *trial) https(ctx context.Context) (string, error) {
	t.edgeCA = certtest.NewCA("edge")
	var err error
	if t.shopper, err = t.newShopper(t.edgeCA, false); err != nil {
		return "", err
	}
	if err := t.shopper.answers(ctx); err != nil {
		return "", err
	}
	return called, t.shop(ctx)
}

// shop sends requests to the gateway.
func (t *trial) shop(ctx context.Context) (err error) {
	t.loads[gateway], err = rig.StartCalls(ctx, t.shopper.url, 1, t.shopper.ask, t.shopper.client.CloseIdleConnections)
	return err
}

// replaced replaces the certificate and the key of the gateway while each request makes a
// new connection.
func (t *trial) replaced(ctx context.Context) (string, error) {
	s, err := t.newShopper(t.edgeCA, true)
	if err != nil {
		return "", err
	}
	load, err := rig.StartCalls(ctx, s.url, 1, s.ask, s.client.CloseIdleConnections)
	if err != nil {
		return "", err
	}
	defer load.Stop()
	dir := filepath.Join(t.keys, "..")
	var longest time.Duration
	for i := range replacements {
		name := fmt.Sprintf("edge %d", i+1)
		pair, cert, key := t.edgeCA.Server(name, time.Now().Add(time.Hour)), filepath.Join(dir, "edge.crt"), filepath.Join(dir, "edge.key")
		if err := errors.Join(os.WriteFile(cert, pair.Cert, 0o600), os.WriteFile(key, pair.Key, 0o600)); err != nil {
			return "", err
		}
		if _, err := command(ctx, nil, filepath.Join(t.tools, "write-certificate"), "store/edge", t.keys, cert, key); err != nil {
			return "", err
		}
		began := time.Now()
		if err := await(ctx, "the certificate of "+name, func(context.Context) error {
			if shown := s.shown.Load(); shown == nil || *shown != name {
				return errors.New("the gateway shows another one")
			}
			return nil
		}); err != nil {
			return "", err
		}
		longest = max(longest, time.Since(began))
	}
	tally := load.Stop()
	if err := tally.Err(); err != nil {
		return "", err
	}
	figure, err := t.noneFailed()
	return fmt.Sprintf("%d times, shown within %s; %d handshakes, none failed; %s", replacements, longest.Round(time.Millisecond), tally.Sent, figure), err
}

// stranger calls stock from a container without an identity.
func (t *trial) stranger(ctx context.Context) (string, error) {
	_, err := command(ctx, nil, "docker", "run", "--rm", "--network", t.name+"_mesh", "meshlog-demo:dev", "backend", "get", "http://stock:8080/")
	if err == nil {
		return "", errors.New("stock answers it")
	}
	if text := err.Error(); !strings.Contains(text, "EOF") && !strings.Contains(text, "reset by peer") {
		return "", fmt.Errorf("it is not the sidecar that closes its connection: %w", err)
	}
	figure, err := t.noneFailed()
	return "stock closes its connection; " + figure, err
}

// rejoined kills the agents with their Envoys, one after the other. They come back without a
// join token.
func (t *trial) rejoined(ctx context.Context) (string, error) {
	for _, account := range []string{"gateway", "cart", "stock"} {
		if err := os.Truncate(filepath.Join(t.keys, account+".token"), 0); err != nil {
			return "", err
		}
	}
	if err := t.loads[gateway].Stop().Err(); err != nil {
		return "", err
	}
	var longest time.Duration
	for _, service := range agents {
		began := time.Now()
		if err := t.restart(ctx, service); err != nil {
			return "", err
		}
		if err := t.shopper.answers(ctx); err != nil {
			return "", fmt.Errorf("after %s was killed: %w", service, err)
		}
		longest = max(longest, time.Since(began))
	}
	delete(t.loads, gateway)
	figure, err := t.noneFailed()
	return fmt.Sprintf("each is back within %s, without a token; %s", longest.Round(time.Millisecond), figure), errors.Join(err, t.shop(ctx))
}

// restart kills the containers of a service and starts them again.
func (t *trial) restart(ctx context.Context, service string) error {
	ids, err := t.containers(ctx, service)
	if err != nil {
		return err
	}
	for _, id := range ids {
		if _, err := command(ctx, nil, "docker", "kill", id); err != nil {
			return err
		}
		if _, err := command(ctx, nil, "docker", "start", id); err != nil {
			return err
		}
		if err := healthy(ctx, id); err != nil {
			return err
		}
	}
	return nil
}

// alone kills everything but the Envoys and what they lead to; then a frontend comes back
// without the rest, and a gateway that has nothing gets its key from there. At the end it
// starts the rest.
func (t *trial) alone(ctx context.Context) (string, error) {
	for _, service := range []string{"nats-1", "nats-2", "nats-3", "builder-1", "builder-2", "watcher", "ca", "edge", "frontend"} {
		ids, err := t.containers(ctx, service)
		if err != nil {
			return "", err
		}
		for _, id := range ids {
			if state, err := inspect(ctx, id, "{{.State.Running}}"); err != nil || state != "true" {
				continue // a frontend that was scaled away
			}
			if _, err := command(ctx, nil, "docker", "kill", id); err != nil {
				return "", err
			}
		}
	}
	if err := t.flows(ctx, append([]string{gateway}, envoys...)); err != nil {
		return "", err
	}
	figure, err := t.noneFailed()
	if err != nil {
		return "", err
	}
	for _, service := range []string{"frontend", "edge"} {
		ids, err := t.containers(ctx, service)
		if err != nil {
			return "", err
		}
		if _, err := command(ctx, nil, "docker", "start", ids[0]); err != nil {
			return "", err
		}
		if err := healthy(ctx, ids[0]); err != nil {
			return "", err
		}
	}
	if err := t.loads[gateway].Stop().Err(); err != nil {
		return "", err
	}
	delete(t.loads, gateway)
	began := time.Now()
	if err := t.restart(ctx, gateway); err != nil {
		return "", err
	}
	s, err := t.newShopper(t.edgeCA, true)
	if err != nil {
		return "", err
	}
	if err := s.answers(ctx); err != nil {
		return "", err
	}
	if want := fmt.Sprintf("edge %d", replacements); *s.shown.Load() != want {
		return "", fmt.Errorf("the gateway shows the certificate of %s, not of %s", *s.shown.Load(), want)
	}
	took := time.Since(began).Round(time.Millisecond)
	return fmt.Sprintf("%s; a new gateway serves HTTPS after %s, with the key from a frontend alone", figure, took), t.up(ctx, 1)
}
