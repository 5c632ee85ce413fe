package busauth

import (
	"bytes"
	"crypto/rand"
	"crypto/sha256"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"
)

// The files of WriteRoutes.
const (
	// RoutesName is the name of the file that the servers include in their cluster
	// block.
	RoutesName    = "routes.conf"
	routesCAName  = "routes-ca"
	routeCertName = "route"
)

const (
	routeUser = "route"
	routePort = "6222"
	// passwordMark begins the line with the password, so that a later run keeps it.
	passwordMark = "  password: "
)

// WriteRoutes writes the secrets of a cluster of servers with these addresses into a
// directory: NAME, or NAME:PORT. A server that joins needs the password in
// RoutesName and a certificate of the authority routes-ca, which signs nothing else;
// the certificate of clients is no use (BUS-5). RoutesName also pins the key of the
// certificate: should the authority's key leak, its other certificates are refused.
// WriteRoutes keeps the password and existing keys, and renews certificates as
// WriteCertificates does.
func WriteRoutes(dir string, servers []string, now time.Time) ([]File, error) {
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return nil, err
	}
	var names []string
	for _, s := range servers {
		name, _, err := net.SplitHostPort(s)
		if err != nil {
			name = s
		}
		if !slices.Contains(names, name) {
			names = append(names, name)
		}
	}
	a, files, err := ensureAuthority(dir, routesCAName, "meshlog routes", now)
	if err != nil {
		return nil, err
	}
	more, err := a.ensure(filepath.Join(dir, routeCertName), named(&x509.Certificate{
		Subject: pkix.Name{CommonName: "meshlog route"}, ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth},
	}, names), now)
	if err != nil {
		return nil, err
	}
	cert, err := readCertificate(filepath.Join(dir, routeCertName+certSuffix))
	if err != nil {
		return nil, err
	}
	path := filepath.Join(dir, RoutesName)
	old, err := os.ReadFile(path)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, err
	}
	pin := sha256.Sum256(cert.RawSubjectPublicKeyInfo)
	state, err := writeConfig(path, routesConfig(servers, password(string(old)), hex.EncodeToString(pin[:])), 0o600)
	if err != nil {
		return nil, err
	}
	return append([]File{{path, state}}, append(files, more...)...), nil
}

// password returns the password in an earlier file, or a new one.
func password(old string) string {
	for line := range strings.Lines(old) {
		if quoted, ok := strings.CutPrefix(strings.TrimSpace(line), strings.TrimSpace(passwordMark)); ok {
			if p := strings.Trim(strings.TrimSpace(quoted), `"`); p != "" {
				return p
			}
		}
	}
	return rand.Text()
}

func routesConfig(servers []string, password, pin string) []byte {
	var b bytes.Buffer
	fmt.Fprintf(&b, "authorization {\n  user: %q\n%s%q\n}\nroutes: [\n", routeUser, passwordMark, password)
	for _, s := range servers {
		if _, _, err := net.SplitHostPort(s); err != nil {
			s = net.JoinHostPort(s, routePort)
		}
		u := url.URL{Scheme: "tls", User: url.UserPassword(routeUser, password), Host: s}
		fmt.Fprintf(&b, "  %q\n", u.String())
	}
	fmt.Fprintf(&b, "]\n# Of the key of route.pem; in the tls block: pinned_certs: $ROUTE_KEYS\nROUTE_KEYS: [%q]\n", pin)
	sum := sha256.Sum256(b.Bytes())
	head := fmt.Sprintf("# Routes between the servers, with their password. `meshlog bus-auth` writes this\n"+
		"# file: do not change it. In the cluster block of nats-server: include %q\n%s%s\n", RoutesName, sumMark, hex.EncodeToString(sum[:]))
	return append([]byte(head), b.Bytes()...)
}

// named adds names and IP addresses to a certificate.
func named(c *x509.Certificate, names []string) *x509.Certificate {
	for _, n := range names {
		if ip := net.ParseIP(n); ip != nil {
			c.IPAddresses = append(c.IPAddresses, ip)
		} else {
			c.DNSNames = append(c.DNSNames, n)
		}
	}
	return c
}
