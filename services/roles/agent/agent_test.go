package agent_test

import (
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"meshlog.dev/deploy/testkit/certtest"
	"meshlog.dev/services/internal/process"
)

// load sends requests over new connections until stop, which returns how many failed.
func (r *running) load(client *http.Client) (sent func() int64, stop func()) {
	var n atomic.Int64
	end := make(chan struct{})
	var all sync.WaitGroup
	for range 2 {
		all.Go(func() {
			for {
				select {
				case <-end:
					return
				default:
				}
				resp, err := client.Get("https://" + loopback(r.port) + "/")
				if err == nil {
					_ = resp.Body.Close()
					if resp.StatusCode != 200 {
						err = errors.New(resp.Status)
					}
				}
				if err != nil {
					r.Errorf("request %d: %v", n.Load(), err)
					return
				}
				n.Add(1)
			}
		})
	}
	return n.Load, sync.OnceFunc(func() { close(end); all.Wait() })
}

func (m *mesh) acked(id string) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	if !m.acks[id] {
		return fmt.Errorf("ACKs of ROOTCA: %v", m.acks)
	}
	return nil
}

// AGT-1 to AGT-5, AGT-7, CA-8, S43, T-4: an agent joins with a token that is good once, and
// Envoy serves mutual TLS with its certificate. Under load, the certificate is renewed while
// the CA is away for some time, and Envoy is replaced by a hot restart: no request fails.
// Envoy comes back after SIGKILL. At the end clients are drained.
func TestAgent(t *testing.T) {
	m := newMesh(t)
	s := m.settings()
	s.CertificatesOut = filepath.Join(m.dir, "out")
	s.LabelsFile = certtest.WriteFile(t, m.dir, "labels", []byte("app=\"cart\"\n"))
	r := m.agent(s)
	m.until("ready", r.ready)
	m.until("the agent's report", func() error { return m.acked(nodeID(s.IPs) + "~agent") })

	serials := map[string]bool{}
	var mu sync.Mutex
	client := m.client(peer(t, s.CertificatesOut), false, func(c *x509.Certificate) {
		mu.Lock()
		defer mu.Unlock()
		serials[c.SerialNumber.String()] = true
	})
	if resp, err := m.client(certtest.NewCA("strangers").Client("x", "spiffe://cluster.local/ns/shop/sa/cart").TLS(), false, nil).Get("https://" + loopback(m.port) + "/"); err == nil {
		resp.Body.Close()
		t.Error("a client of another CA was let in")
	}

	sent, stop := r.load(client)
	m.caDown.Store(true)
	first := r.pid(0)
	certtest.WriteFile(t, m.dir, "labels", []byte("app=\"cart\"\nversion=\"v2\"\n"))
	m.until("a hot restart", func() error {
		if r.pid(1) == 0 {
			return errors.New("no second epoch")
		}
		return nil
	})
	m.until("the end of the old epoch", func() error {
		if err := syscall.Kill(first, 0); err == nil {
			return errors.New("it runs")
		}
		return nil
	})
	r.lines.Wait(t, "cannot get a certificate from the CA; retrying", "error")
	m.caDown.Store(false)
	m.until("a renewed certificate", func() error {
		mu.Lock()
		defer mu.Unlock()
		if len(serials) < 2 {
			return fmt.Errorf("%d certificates were seen", len(serials))
		}
		return nil
	})
	stop()
	t.Logf("%d requests, none failed; %d certificates were seen and %d issued", sent(), len(serials), m.issued.Load())

	killed := r.pid(1)
	must(t, syscall.Kill(killed, syscall.SIGKILL))
	m.until("Envoy after a crash", func() error {
		if now := r.pid(0); now == 0 || now == first {
			return errors.New("no new Envoy")
		}
		return r.ready()
	})

	r.drains(client)
}

// drains ends the agent while a client is connected: it is told to leave.
func (r *running) drains(client *http.Client) {
	keep := r.client(client.Transport.(*http.Transport).TLSClientConfig.Certificates[0], true, nil)
	get := func() error {
		resp, err := keep.Get("https://" + loopback(r.port) + "/")
		if err == nil {
			_ = resp.Body.Close()
		}
		return err
	}
	must(r.T, get())
	began := time.Now()
	ended := make(chan struct{})
	go func() { r.stop(); close(ended) }()
	r.until("not ready", func() error {
		if err := r.ready(); err == nil || !strings.Contains(err.Error(), "drained") {
			return fmt.Errorf("readiness: %w", err)
		}
		return nil
	})
	keep.CloseIdleConnections()
	<-ended
	if took := time.Since(began); took > r.settings.TerminationDrain+4*time.Second {
		r.Errorf("the agent took %s to end", took)
	}
	if _, err := os.Stat(filepath.Join(r.settings.Dir, "sds.sock")); err == nil {
		if c, err := dial(r.settings.Dir); err == nil {
			_ = c.Close()
			r.Error("the socket is open")
		}
	}
}

// A join token that was used gives no second agent a certificate (AGT-3, CA-6).
func TestTokenReplayed(t *testing.T) {
	m := newMesh(t)
	s := m.settings()
	r := m.agent(s)
	m.until("ready", r.ready)
	r.stop()
	again := *s
	r = m.agent(&again)
	reason := r.lines.Wait(t, "cannot get a certificate from the CA; retrying", "error")
	if !strings.Contains(reason, "is unknown, spent or has ended") {
		t.Errorf("the agent says %q", reason)
	}
	if err := r.ready(); err == nil {
		t.Error("an agent without a certificate is ready")
	}
	if r.pid(0) != 0 {
		t.Error("Envoy was started without a certificate")
	}
}

// With a state directory an agent that starts again needs no other join token: it has its
// certificate and the roots of the mesh, and Envoy serves with them while the CA is away. A
// directory that other users may read is refused, and so is the certificate of another
// workload.
func TestRestart(t *testing.T) {
	m := newMesh(t)
	s := m.settings()
	s.StateDir, s.CertificatesOut = filepath.Join(m.dir, "state"), filepath.Join(m.dir, "out")
	r := m.agent(s)
	m.until("ready", r.ready)
	m.until("the agent's report", func() error { return m.acked(nodeID(s.IPs) + "~agent") })
	r.stop()
	for _, name := range []string{"", "identity.pem", "roots.pem"} {
		info, err := os.Stat(filepath.Join(s.StateDir, name))
		must(t, err)
		if mode := info.Mode().Perm(); mode&0o077 != 0 {
			t.Errorf("the mode of %s is %04o", info.Name(), mode)
		}
	}

	m.caDown.Store(true)
	again := *s
	r = m.agent(&again)
	m.until("ready again", r.ready)
	client := m.client(peer(t, s.CertificatesOut), false, nil)
	resp, err := client.Get("https://" + loopback(m.port) + "/")
	must(t, err)
	_ = resp.Body.Close()
	if n := m.issued.Load(); n != 1 {
		t.Errorf("%d certificates were issued", n)
	}
	r.stop()

	other := *s
	other.Environment = []string{"POD_NAME=till-1", "POD_NAMESPACE=bank"}
	r = m.agent(&other)
	if reason := r.lines.Wait(t, "cannot use the certificate of the state directory; the agent asks for one with its token", "error"); !strings.Contains(reason, "ns/shop/sa/cart") {
		t.Errorf("the agent says %q", reason)
	}
	r.stop()

	must(t, os.Chmod(s.StateDir, 0o755))
	admin, err := process.NewAdmin("127.0.0.1:0")
	must(t, err)
	if err := s.Run(t.Context(), &process.Process{Log: slog.New(slog.DiscardHandler), Admin: admin}, io.Discard); err == nil || !strings.Contains(err.Error(), "chmod 700") {
		t.Errorf("a directory that others may read: %v", err)
	}
}
