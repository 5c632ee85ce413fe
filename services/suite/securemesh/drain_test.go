package securemesh_test

import (
	"crypto/tls"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// standing returns a client with the certificate of a workload, which keeps one connection
// and counts how often it made one.
func standing(w *workload, made *int) *http.Client {
	w.Helper()
	return &http.Client{Transport: &http.Transport{MaxConnsPerHost: 1, TLSClientConfig: &tls.Config{
		MinVersion: tls.VersionTLS12, InsecureSkipVerify: true, // the server's name is an identity
		GetClientCertificate: func(*tls.CertificateRequestInfo) (*tls.Certificate, error) {
			*made++
			c, err := tls.LoadX509KeyPair(filepath.Join(w.settings.CertificatesOut, "tls.crt"), filepath.Join(w.settings.CertificatesOut, "tls.key"))
			return &c, err
		},
	}}}
}

// KEY-12: a connection stands while the certificates of both sides are replaced. After
// `meshlog drain` it ends with a response, before the time that the command prints, and no
// request fails, neither on it nor on new connections. The audit has it. A proxy without
// an agent is an error.
func TestDrain(t *testing.T) {
	t.Parallel()
	service, backend := port(t), port(t)
	m := start(t, fmt.Sprintf(documents, service, backend), nil)
	serveCart(t, backend)
	cart, web := m.workload("cart", "127.0.0.3", m.xds, nil), m.workload("web", "127.0.0.2", m.xds, nil)
	for _, w := range []*workload{cart, web} {
		m.until(w.name+" is ready", time.Minute, w.ready)
	}
	m.until("a request", time.Minute, func() error { return get("http://"+at("127.0.0.1", service), "cart.mesh") })
	made, url := 0, "https://"+at("127.0.0.3", backend)
	client := standing(web, &made)
	before, err := cart.certificate()
	must(t, err)
	m.until("another certificate of cart", time.Minute, func() error {
		if err := getBy(client, url, "cart.mesh"); err != nil {
			return err
		}
		now, err := cart.certificate()
		if err == nil && now.SerialNumber.Cmp(before.SerialNumber) == 0 {
			err = errors.New("it has the same")
		}
		return err
	})
	if made != 1 {
		t.Fatalf("%d connections before the drain, want the one that stands", made)
	}

	sent := m.load("http://"+at("127.0.0.1", service), "cart.mesh")
	const id = "sidecar~127.0.0.3~cart-1.cart~cart.svc.cluster.local"
	var drained []struct {
		Proxy, Identity, Frontend, Refused string
		Until                              time.Time
	}
	must(t, json.Unmarshal([]byte(m.meshlog("drain", id, "-o", "json")), &drained))
	if len(drained) != 1 || drained[0].Proxy != id || drained[0].Identity != "spiffe://cluster.local/ns/cart/sa/cart" || drained[0].Frontend != "up" || drained[0].Refused != "" {
		t.Fatalf("it printed %+v", drained)
	}
	if left, want := time.Until(drained[0].Until), cart.settings.Drain+15*time.Second; left > want || left < want-5*time.Second {
		t.Errorf("connections end in %s, want %s", left, want)
	}
	m.until("the end of the connection that stood", time.Until(drained[0].Until), func() error {
		if err := getBy(client, url, "cart.mesh"); err != nil {
			t.Fatal(err)
		}
		if made < 2 {
			return errors.New("it goes on")
		}
		return nil
	})
	if n := sent(); n < 10 {
		t.Errorf("%d requests on new connections", n)
	}
	if said := m.meshlog("audit"); !strings.Contains(said, "PROXY DRAINED") || !strings.Contains(said, id) {
		t.Errorf("`meshlog audit` does not say that the proxy was drained:\n%s", said)
	}

	for proxy, want := range map[string]string{
		"edge-1":      "no agent of proxy",
		id + "~agent": "no agent of proxy",
	} {
		_, err := m.try("drain", proxy)
		var coded interface{ ExitCode() int }
		if err == nil || !strings.Contains(err.Error(), want) || !errors.As(err, &coded) || coded.ExitCode() != 3 {
			t.Errorf("drain %s: %v, want an error with %q and exit code 3", proxy, err, want)
		}
	}
}
