package sources

import (
	"errors"
	"fmt"
	"net/url"
	"os"
	"path"
	"slices"
	"strings"

	"google.golang.org/protobuf/reflect/protoreflect"

	meshconfig "istio.io/api/mesh/v1alpha1"
	networking "istio.io/api/networking/v1alpha3"

	"meshlog.dev/services/roles/mcpxds"
	"meshlog.dev/services/roles/watcher"
)

// addresses says what configSources may name.
const addresses = "want fs:///DIR, xds://HOST:PORT or k8s://"

// configSource returns the watcher that an entry of configSources names (MC-18). The error
// begins with the field. What Istio ignores there, or what has no effect, is an error.
func (s *Settings) configSource(c *meshconfig.ConfigSource) (runnable, error) {
	if len(c.GetSubscribedResources()) > 0 {
		return nil, errors.New("subscribedResources: has no effect: a source sends all of its objects; remove it")
	}
	address := c.GetAddress()
	u, err := url.Parse(address)
	if err != nil || u.Scheme == "" {
		return nil, fmt.Errorf("address: %q is no URL: %s", address, addresses)
	}
	if u.RawQuery != "" || u.Fragment != "" || u.User != nil || u.Opaque != "" {
		return nil, fmt.Errorf("address: %q: %s, without anything else", address, addresses)
	}
	if u.Scheme != "xds" && c.GetTlsSettings() != nil {
		return nil, fmt.Errorf("tlsSettings: has no effect with %s://; remove it", u.Scheme)
	}
	switch u.Scheme {
	case "fs":
		return s.directory(address, u)
	case "xds":
		return s.xds(u, c.GetTlsSettings())
	case "k8s":
		if u.Host != "" || u.Path != "" {
			return nil, fmt.Errorf("address: %q: want k8s:// alone, which is the cluster of this process; other clusters need a watcher of their own", address)
		}
		k := &kubeSource{s.Cluster}
		if err := k.Check(); err != nil {
			return nil, fmt.Errorf("address: %q: %w", address, err)
		}
		return k, nil
	}
	return nil, fmt.Errorf("address: %q: there is no scheme %q: %s", address, u.Scheme, addresses)
}

// directory returns the source of a directory. Its instance is fs-etc-mesh for /etc/mesh.
func (s *Settings) directory(address string, u *url.URL) (runnable, error) {
	dir := path.Clean(u.Path)
	if u.Host != "" || !strings.HasPrefix(u.Path, "/") || dir == "/" {
		return nil, fmt.Errorf("address: %q has no absolute path of a directory: want fs:///DIR", address)
	}
	switch info, err := os.Stat(dir); {
	case err != nil:
		return nil, fmt.Errorf("address: %q: %w", address, err)
	case !info.IsDir():
		return nil, fmt.Errorf("address: %q is not a directory", address)
	}
	return &fileSource{
		Directories: watcher.Directories{Config: dir, Revision: s.Cluster.Revision}, Secrets: watcher.DefaultSecrets(),
		Instance: "fs" + strings.ReplaceAll(dir, "/", "-"),
	}, nil
}

// xds returns a source of MCP-over-xDS.
func (s *Settings) xds(u *url.URL, t *networking.ClientTLSSettings) (runnable, error) {
	if u.Hostname() == "" || u.Port() == "" || u.Path != "" {
		return nil, fmt.Errorf("address: %q: want xds://HOST:PORT", u)
	}
	if err := checkTLS(t); err != nil {
		return nil, fmt.Errorf("tlsSettings.%w", err)
	}
	m := mcpxds.DefaultSettings()
	m.Source, m.Revision, m.TLS = u.String(), s.Cluster.Revision, t.GetMode().String()
	m.Files.CA, m.Files.Certificate, m.Files.Key, m.Files.ServerName = t.GetCaCertificates(), t.GetClientCertificate(), t.GetPrivateKey(), t.GetSni()
	if err := m.Check(); err != nil {
		return nil, fmt.Errorf("address: %q: %w", u, err)
	}
	return &m, nil
}

// tlsFields are the fields of tlsSettings that have an effect, by mode.
var tlsFields = map[networking.ClientTLSSettings_TLSmode][]string{
	networking.ClientTLSSettings_DISABLE: {},
	networking.ClientTLSSettings_SIMPLE:  {"caCertificates", "sni"},
	networking.ClientTLSSettings_MUTUAL:  {"caCertificates", "sni", "clientCertificate", "privateKey"},
}

// unsupportedTLS says of the other fields what to write instead.
var unsupportedTLS = map[string]string{
	"subjectAltNames":    "is not supported: write the name in the source's certificate into sni",
	"credentialName":     "is not supported: name files, such as those of a mounted Secret",
	"insecureSkipVerify": "is not supported: the watcher checks the certificate of the source; name its CAs in caCertificates",
	"caCrl":              "is not supported: the watcher reads no list of revoked certificates",
}

// checkTLS returns an error for settings that the watcher cannot follow. The connection
// would be less safe than its author wants if it ignored one.
func checkTLS(t *networking.ClientTLSSettings) error {
	effective, known := tlsFields[t.GetMode()]
	if !known { // the CA certifies workloads, which prove who they are; configSources name no identity that the source must have
		return fmt.Errorf("mode: %s is not supported, because the process has no identity of the mesh; write MUTUAL with the files clientCertificate, privateKey and caCertificates", t.GetMode())
	}
	var errs []error
	t.ProtoReflect().Range(func(fd protoreflect.FieldDescriptor, _ protoreflect.Value) bool {
		switch name := fd.JSONName(); {
		case name == "mode" || slices.Contains(effective, name):
		case unsupportedTLS[name] != "":
			errs = append(errs, fmt.Errorf("%s: %s", name, unsupportedTLS[name]))
		default:
			errs = append(errs, fmt.Errorf("%s: has no effect with mode %s", name, t.GetMode()))
		}
		return true
	})
	if t.GetMode() == networking.ClientTLSSettings_MUTUAL && (t.GetClientCertificate() == "" || t.GetPrivateKey() == "") {
		errs = append(errs, errors.New("mode: MUTUAL needs the files clientCertificate and privateKey"))
	}
	if len(errs) == 0 {
		return nil
	}
	return errors.Join(errs...)
}
