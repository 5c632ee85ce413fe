package main

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/sha256"
	"crypto/tls"
	"crypto/x509"
	"encoding/base64"
	"encoding/pem"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptrace"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"meshlog.dev/deploy/testkit/program"
)

// save puts a file of deploy/e2e/demo/mesh into the watched directory, with one text
// replaced by another.
func (s *secureStage) save(name string, replace ...string) error {
	text, err := ours("mesh", name)
	if err != nil {
		return err
	}
	return replaceFile(filepath.Join(s.config, name), []byte(strings.NewReplacer(replace...).Replace(text)))
}

// ours returns a file of a folder of deploy/e2e/demo.
func ours(folder, name string) (string, error) {
	root, err := program.Root()
	if err != nil {
		return "", err
	}
	b, err := os.ReadFile(filepath.Join(root, "deploy", "e2e", "demo", folder, name))
	return string(b), err
}

// replaceFile replaces a file in one step.
func replaceFile(path string, content []byte) error {
	if err := os.WriteFile(path+".new", content, 0o600); err != nil {
		return err
	}
	return os.Rename(path+".new", path)
}

// rotate gives the edge a new certificate with a new key.
func (s *secureStage) rotate() error {
	pair := s.edgeCA.Server(fmt.Sprintf("edge %d", len(s.keys)+1), time.Now().Add(time.Hour))
	s.keys = append(s.keys, pair)
	dir := filepath.Join(s.inputs, "certificates", "edge", "cert")
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return err
	}
	return errors.Join(replaceFile(filepath.Join(dir, "tls.key"), pair.Key), replaceFile(filepath.Join(dir, "tls.crt"), pair.Cert))
}

// archive is where the archive is exported to.
func (s *secureStage) archive() string { return filepath.Join(s.dir, "mesh.archive") }

// secrets returns the private parts of all keys of the edge and of the workloads, as they
// would look in clear: in PEM, and as numbers.
func (s *secureStage) secrets() ([][]byte, error) {
	var texts [][]byte
	for _, pair := range s.keys {
		texts = append(texts, pair.Key)
	}
	for _, name := range []string{"shop", "web", "edge"} {
		b, err := os.ReadFile(filepath.Join(s.inputs, name+".certificate", "tls.key"))
		if err != nil {
			return nil, err
		}
		texts = append(texts, b)
	}
	all := [][]byte{[]byte("PRIVATE KEY-----")}
	for _, text := range texts {
		block, _ := pem.Decode(text)
		if block == nil {
			return nil, errors.New("a key is no PEM")
		}
		key, err := x509.ParsePKCS8PrivateKey(block.Bytes)
		if err != nil {
			return nil, err
		}
		number, err := key.(*ecdsa.PrivateKey).Bytes()
		if err != nil {
			return nil, err
		}
		all = append(all, number, []byte(strings.Split(string(text), "\n")[2]))
	}
	return all, nil
}

// issuers returns the issuer's key id of each workload's certificate.
func (s *secureStage) issuers() (map[string][]byte, error) {
	all := map[string][]byte{}
	for _, name := range []string{"shop", "web", "edge"} {
		b, err := os.ReadFile(filepath.Join(s.inputs, name+".certificate", "tls.crt"))
		if err != nil {
			return nil, err
		}
		block, _ := pem.Decode(b)
		if block == nil {
			return nil, errors.New("a certificate is no PEM")
		}
		c, err := x509.ParseCertificate(block.Bytes)
		if err != nil {
			return nil, err
		}
		all[name] = c.AuthorityKeyId
	}
	return all, nil
}

// answer is what came of a request to the edge.
type answer struct {
	status      int
	body        string
	certificate string // the name in the edge's
	reused      bool   // the connection stood before
	err         error
}

func (a answer) String() string {
	if a.err != nil {
		return a.err.Error()
	}
	return fmt.Sprintf("%d %s", a.status, a.body)
}

// client returns a client of the edge with a new connection for each request.
func (s *secureStage) client() *http.Client {
	return &http.Client{Timeout: 10 * time.Second, Transport: &http.Transport{
		DisableKeepAlives: true, TLSClientConfig: &tls.Config{RootCAs: s.edgeCA.Pool(), ServerName: "localhost", MinVersion: tls.VersionTLS12},
	}}
}

// ask sends a request with a token.
func (s *secureStage) ask(ctx context.Context, path string) answer {
	return s.askWith(ctx, s.client(), path, s.bearer())
}

func (s *secureStage) askWith(ctx context.Context, client *http.Client, path, bearer string) (a answer) {
	ctx = httptrace.WithClientTrace(ctx, &httptrace.ClientTrace{GotConn: func(info httptrace.GotConnInfo) { a.reused = info.Reused }})
	r, err := http.NewRequestWithContext(ctx, http.MethodGet, "https://"+edgeAddress+path, nil)
	if err != nil {
		return answer{err: err}
	}
	if bearer != "" {
		r.Header.Set("Authorization", "Bearer "+bearer)
	}
	resp, err := client.Do(r)
	if err != nil {
		return answer{err: err}
	}
	defer resp.Body.Close()
	b, err := io.ReadAll(resp.Body)
	a.status, a.body, a.err = resp.StatusCode, strings.TrimSpace(string(b)), err
	a.certificate = resp.TLS.PeerCertificates[0].Subject.CommonName
	return a
}

// plain sends a request to shop's sidecar without TLS.
func (s *secureStage) plain(ctx context.Context) answer {
	r, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+shopDirect+"/", nil)
	if err != nil {
		return answer{err: err}
	}
	r.Close = true
	resp, err := http.DefaultClient.Do(r)
	if err != nil {
		return answer{err: err}
	}
	defer resp.Body.Close()
	return answer{status: resp.StatusCode}
}

// until waits until the edge's answer is as wanted.
func (s *secureStage) until(ctx context.Context, path string, is func(answer) error) error {
	return program.Until(ctx, "the answer at the edge", func(ctx context.Context) error { return is(s.ask(ctx, path)) })
}

// answers demands status 200 and a text.
func answers(text string) func(answer) error {
	return func(a answer) error {
		if a.err != nil || a.status != http.StatusOK || !strings.Contains(a.body, text) {
			return fmt.Errorf("it says %s", a)
		}
		return nil
	}
}

// load sends requests to the edge, each on a new connection.
type load struct {
	sent  atomic.Int64
	wrong atomic.Pointer[answer]
	stop  func()
}

func (s *secureStage) load(ctx context.Context) *load {
	ctx, cancel := context.WithCancel(ctx)
	l := &load{}
	var all sync.WaitGroup
	l.stop = func() { cancel(); all.Wait() }
	for range conns {
		all.Go(func() {
			for ctx.Err() == nil {
				a := s.ask(ctx, "/")
				if ctx.Err() != nil {
					return
				}
				if l.sent.Add(1); answers("shop, called by spiffe://cluster.local/ns/web/sa/web")(a) != nil {
					l.wrong.CompareAndSwap(nil, &a)
				}
			}
		})
	}
	return l
}

// more waits for further requests.
func (l *load) more(ctx context.Context, n int64) error {
	until := l.sent.Load() + n
	return program.Until(ctx, "requests", func(context.Context) error {
		if got := l.sent.Load(); got < until {
			return fmt.Errorf("%d of %d were sent", got, until)
		}
		return nil
	})
}

// answered ends a load, and demands that every request was answered while something
// happened.
func (s *secureStage) answered(l *load, while string, args ...any) error {
	l.stop()
	if a := l.wrong.Load(); a != nil {
		return fmt.Errorf("a request failed while %s: %s", fmt.Sprintf(while, args...), a)
	}
	s.holds("all %d requests, each on a new connection, were answered while %s", l.sent.Load(), fmt.Sprintf(while, args...))
	return nil
}

func newKey() *ecdsa.PrivateKey {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		panic(err) // the system has no randomness
	}
	return key
}

// keySet returns the public keys of the issuer as JSON.
func (s *secureStage) keySet() string {
	point, err := s.issuer.PublicKey.Bytes() // 4, X, Y
	if err != nil {
		panic(err) // it is of P-256
	}
	b := base64.RawURLEncoding
	return fmt.Sprintf(`{"keys":[{"kty":"EC","crv":"P-256","alg":"ES256","kid":"demo","x":%q,"y":%q}]}`, b.EncodeToString(point[1:33]), b.EncodeToString(point[33:]))
}

// bearer returns a token of the issuer.
func (s *secureStage) bearer() string { return s.bearerBy(s.issuer) }

func (s *secureStage) bearerBy(key *ecdsa.PrivateKey) string {
	b := base64.RawURLEncoding
	text := b.EncodeToString([]byte(`{"alg":"ES256","kid":"demo","typ":"JWT"}`)) + "." +
		b.EncodeToString(fmt.Appendf(nil, `{"iss":"https://issuer.demo","sub":"alice","exp":%d}`, time.Now().Add(time.Hour).Unix()))
	sum := sha256.Sum256([]byte(text))
	r, sig, err := ecdsa.Sign(rand.Reader, key, sum[:])
	if err != nil {
		panic(err) // the system has no randomness
	}
	return text + "." + b.EncodeToString(append(r.FillBytes(make([]byte, 32)), sig.FillBytes(make([]byte, 32))...))
}
