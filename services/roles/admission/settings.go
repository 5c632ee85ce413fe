package admission

import (
	"cmp"
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
	"net/url"
	"os"
	"strings"

	"github.com/spf13/pflag"
	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	"k8s.io/apimachinery/pkg/util/validation"

	"meshlog.dev/services/admission"
	"meshlog.dev/services/internal/kubeaccess"
	"meshlog.dev/services/internal/process"
	"meshlog.dev/services/mesh/kind"
	"meshlog.dev/services/mesh/kind/validate"
)

// Settings of the webhook. The flags' texts describe them.
type Settings struct {
	ID        string
	Listen    string
	Cert, Key string
	Roots     string
	Namespace string
	Service   string
	URL       string
	Cluster   kubeaccess.Settings
	Revision  string
}

// DefaultSettings returns the defaults. ID is empty if the machine has no name.
func DefaultSettings() Settings {
	host, _ := os.Hostname()
	return Settings{ID: host, Listen: ":9443", Namespace: "meshlog", Service: "admission"}
}

// Flags binds the settings.
func (s *Settings) Flags(fs *pflag.FlagSet) {
	fs.StringVar(&s.ID, "id", s.ID, "`name` of this process, unique among the replicas. The default is the machine's name. Set it if several replicas run on a machine")
	fs.Lookup("id").DefValue = "" // the same text on every machine
	fs.StringVar(&s.Listen, "listen", s.Listen, "`address` for the requests of the API server, with TLS")
	fs.StringVar(&s.Cert, "tls-cert", s.Cert, "PEM `file` with the webhook's certificate and its chain, read again when it changes. It must be for the host of the Service, SERVICE.NAMESPACE.svc, or of --url")
	fs.StringVar(&s.Key, "tls-key", s.Key, "PEM `file` with the key of --tls-cert")
	fs.StringVar(&s.Roots, "tls-roots", s.Roots, "PEM `file` with the roots of --tls-cert, which the API server gets; read again when it changes. A new certificate is used once the API server has its root; an old root stays there until no replica uses it")
	fs.StringVar(&s.Namespace, "namespace", s.Namespace, "`namespace` of this process: of its Service, and of the Lease by which one replica leads. Its objects are not checked")
	fs.StringVar(&s.Service, "service", s.Service, "`name` of the Service by which the API server reaches the replicas, on port 443")
	fs.StringVar(&s.URL, "url", s.URL, "`URL` by which the API server reaches the webhook, https://HOST:PORT, in place of --service. Set it if the webhook runs outside of the cluster")
	s.Cluster.Flags(fs)
	fs.StringVar(&s.Revision, "revision", s.Revision, "`name` of the revision of this control plane, as its watchers have it: objects whose label "+kind.RevisionLabel+" has another value are not checked")
}

// Check returns all errors of the settings.
func (s *Settings) Check() error {
	var errs []error
	for _, f := range []struct{ name, value string }{{"tls-cert", s.Cert}, {"tls-key", s.Key}, {"tls-roots", s.Roots}, {"id", s.ID}, {"listen", s.Listen}} {
		if f.value == "" {
			errs = append(errs, process.Invalid(f.name, "is missing: an API server calls webhooks with TLS only, and one replica leads"))
		}
	}
	if len(validation.IsDNS1123Label(s.Namespace)) > 0 {
		errs = append(errs, process.Invalid("namespace", "%q is not the name of a namespace", s.Namespace))
	}
	if len(validation.IsDNS1035Label(s.Service)) > 0 {
		errs = append(errs, process.Invalid("service", "%q is not the name of a Service", s.Service))
	}
	if u, err := url.Parse(s.URL); s.URL != "" && (err != nil || u.Scheme != "https" || u.Host == "" || u.Port() == "" || strings.Trim(u.Path, "/") != "") {
		errs = append(errs, process.Invalid("url", "want https://HOST:PORT"))
	}
	if !validate.IsLabel(kind.RevisionLabel, s.Revision) {
		errs = append(errs, process.Invalid("revision", "%q is not a value of a label: use at most 63 letters, digits, '-', '_' and '.'", s.Revision))
	}
	return errors.Join(append(errs, s.Cluster.Check())...)
}

// Verify checks the files that the settings name. It does not contact the API server.
func (s *Settings) Verify() error {
	_, cluster := s.Cluster.REST()
	_, pair := s.pair()
	_, roots := readRoots(s.Roots)
	return errors.Join(cluster, pair, roots)
}

// name returns the name of the webhook's configuration, and of the Lease.
func (s *Settings) name() string { return admission.ConfigurationName(s.Revision) }

// host returns the name that the API server expects in the certificate.
func (s *Settings) host() string {
	if s.URL == "" {
		return s.Service + "." + s.Namespace + ".svc"
	}
	u, _ := url.Parse(s.URL)
	return u.Hostname()
}

// client says how the API server reaches the webhook.
func (s *Settings) client(bundle []byte) admissionregistrationv1.WebhookClientConfig {
	if s.URL != "" {
		to := strings.TrimSuffix(s.URL, "/") + admission.Path
		return admissionregistrationv1.WebhookClientConfig{URL: &to, CABundle: bundle}
	}
	path, port := admission.Path, int32(443)
	return admissionregistrationv1.WebhookClientConfig{
		Service:  &admissionregistrationv1.ServiceReference{Namespace: s.Namespace, Name: s.Service, Path: &path, Port: &port},
		CABundle: bundle,
	}
}

// pair reads the certificate of the webhook.
func (s *Settings) pair() (*tls.Certificate, error) {
	cert, err := os.ReadFile(s.Cert)
	if err != nil {
		return nil, process.Invalid("tls-cert", "%w", err)
	}
	key, err := os.ReadFile(s.Key)
	defer clear(key)
	if err != nil {
		return nil, process.Invalid("tls-key", "%w", err)
	}
	pair, err := tls.X509KeyPair(cert, key)
	if err != nil {
		return nil, process.Invalid("tls-cert", "%s with key %s: %w", s.Cert, s.Key, err)
	}
	if err := pair.Leaf.VerifyHostname(s.host()); err != nil {
		return nil, process.Invalid("tls-cert", "%s: %w; the API server refuses it", s.Cert, err)
	}
	return &pair, nil
}

// maxRoots is the largest file of roots.
const maxRoots = 256 << 10

// readRoots reads the roots in a file.
func readRoots(path string) ([]*x509.Certificate, error) {
	text, err := os.ReadFile(path)
	if err != nil {
		return nil, process.Invalid("tls-roots", "%w", err)
	}
	if len(text) > maxRoots {
		return nil, process.Invalid("tls-roots", "%s: has more than %d bytes", path, maxRoots)
	}
	roots, err := parseRoots(text)
	if err = cmp.Or(err, none(roots)); err != nil {
		return nil, process.Invalid("tls-roots", "%s: %w", path, err)
	}
	return roots, nil
}

func none(roots []*x509.Certificate) error {
	if len(roots) > 0 {
		return nil
	}
	return errors.New("holds no PEM certificate")
}

// parseRoots returns the certificates in PEM.
func parseRoots(text []byte) (all []*x509.Certificate, err error) {
	for {
		var block *pem.Block
		if block, text = pem.Decode(text); block == nil {
			return all, nil
		}
		if block.Type != "CERTIFICATE" {
			return nil, fmt.Errorf("holds a %s: want certificates only", block.Type)
		}
		c, err := x509.ParseCertificate(block.Bytes)
		if err != nil {
			return nil, err
		}
		all = append(all, c)
	}
}
