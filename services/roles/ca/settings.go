package ca

import (
	"errors"
	"net"
	"regexp"
	"slices"
	"strings"
	"time"

	"github.com/spf13/pflag"

	"meshlog.dev/services/ca/signer"
	"meshlog.dev/services/internal/process"
	"meshlog.dev/services/mesh/spiffe"
)

// Values of --signer.
const (
	self    = "self"
	plugged = "plugged"
	none    = "none"
)

// Settings of the authority. The flags' texts describe them.
type Settings struct {
	Listen          string
	TrustDomain     string
	Signer          string
	Dir             string // of a plugged CA
	TrustBundle     string // with the roots of an authority elsewhere
	KeyFile         string // of the CA's own root
	SealKeyFile     string
	InsecureKeyFile bool
	RootsFile       string
	UnannouncedRoot bool
	DNSNames        []string
	MaxTTL          time.Duration

	JoinTokens         bool
	CertificateRenewal bool
	OIDC               []string
	Kubernetes         bool
	Kubeconfig         string
	KubeContext        string
	UnknownPods        bool

	inUp bool // the flags are those of `meshlog up`
}

// DefaultSettings returns the defaults.
func DefaultSettings() Settings {
	return Settings{
		Listen: "127.0.0.1:15012", TrustDomain: "cluster.local", Signer: self, DNSNames: []string{"localhost"}, MaxTTL: signer.MaxTTL,
	}
}

// UpSettings returns the defaults in `meshlog up`: join tokens and renewal, and a port
// beside the one of xDS with TLS.
func UpSettings() Settings {
	s := DefaultSettings()
	s.inUp, s.Listen, s.JoinTokens, s.CertificateRenewal = true, "127.0.0.1:15013", true, true
	return s
}

// flag returns the name of a flag, which has a prefix in `meshlog up`.
func (s *Settings) flag(name string) string {
	if s.inUp && !strings.HasPrefix(name, "ca-") {
		return "ca-" + name
	}
	return name
}

// Flags binds the settings.
func (s *Settings) Flags(fs *pflag.FlagSet) {
	s.common(fs)
	fs.StringVar(&s.Signer, "signer", s.Signer, "`how` the CA signs: self, with a root of its own for ten years, which it makes at the first start; plugged, with the certificate and the key in --ca-dir; or none: certificates come from elsewhere, as from SPIRE, and this process has no key and no port; it publishes the roots in --trust-bundle. "+
		"Change it if your company has a root already, or SPIRE")
	fs.StringVar(&s.Dir, "ca-dir", s.Dir, "`directory` of a plugged CA: ca-cert.pem, ca-key.pem, cert-chain.pem and root-cert.pem, as in Istio's Secret cacerts; read again every five seconds. "+
		"For a new root, first add it to root-cert.pem; when meshlog ca status says that it is ready, replace the other files; remove the old root when status says that its last certificate has ended")
	fs.StringVar(&s.TrustBundle, "trust-bundle", s.TrustBundle, "`path` of the roots of an authority elsewhere: a PEM file, or a directory with such files; read again every five seconds. All of them are trusted. "+
		"Set it with --signer none, to the output of `spire-server bundle show`; write it again, by a rename, whenever SPIRE has a new root")
	fs.StringVar(&s.RootsFile, "roots-file", s.RootsFile, "`file` with the state of each root; sealed if --seal-key-file is given. The default is beside the key: CA-DIR/roots.state, or CA-KEY-FILE.roots. "+
		"Set it if that directory cannot be written, as with a mounted Secret; keep the file over restarts")
	fs.BoolVar(&s.JoinTokens, "join-tokens", s.JoinTokens, "take join tokens, which `meshlog ca token` makes: each is good for one certificate of one workload. "+
		"Set it for workloads on machines without another identity")
	fs.BoolVar(&s.CertificateRenewal, "certificate-renewal", s.CertificateRenewal, "take certificates of this CA, for a new one of the same identity. "+
		"Set it with --join-tokens, so that a workload joins once")
	fs.StringSliceVar(&s.OIDC, "oidc", s.OIDC, "`issuers` of OIDC tokens, separated by commas; each has words NAME=VALUE separated by spaces: issuer=URL, audience=NAME, namespace and service-account (a name, or one claim as in {sub}), "+
		"and maybe algorithms=RS256+ES256 and claim:NAME=VALUE, a claim that a token must have. Example: issuer=https://ci.example audience=mesh namespace=ci service-account={project} claim:branch=main. "+
		"Set it for workloads with tokens of a cloud or of CI")
	fs.BoolVar(&s.Kubernetes, "kubernetes", s.Kubernetes, "take tokens of service accounts for the audience istio-ca, bound to a pod; the API server reviews each (TokenReview). "+
		"Set it for pods. The CA needs the right to create tokenreviews (ClusterRole system:auth-delegator)")
	fs.BoolVar(&s.UnknownPods, "unknown-pods", s.UnknownPods, "give certificates to pods that the mesh does not know too. Without it the CA asks the leading builder, and refuses while none answers. "+
		"Set it if no watcher-kube of this mesh reads the cluster's pods")
	fs.StringVar(&s.Kubeconfig, "kubeconfig", s.Kubeconfig, "kubeconfig `file` with the API server for --kubernetes. Leave it empty inside the cluster, to use the pod's service account")
	fs.StringVar(&s.KubeContext, "context", s.KubeContext, "`name` of the context in --kubeconfig; the default is its current context")
}

// common binds the flags that a CA has also in `meshlog up`.
func (s *Settings) common(fs *pflag.FlagSet) {
	fs.StringVar(&s.Listen, s.flag("listen"), s.Listen, "`address` for certificate requests, over gRPC with TLS: istio.v1.auth.IstioCertificateService. Istio's agents have it as CA_ADDR. "+
		"Set it to 0.0.0.0:15012 to let in workloads of other machines")
	fs.StringSliceVar(&s.DNSNames, s.flag("dns-names"), s.DNSNames, "`names` by which clients reach the CA, separated by commas: those in the certificate of its port, which the CA issues itself and renews. "+
		"Set it if clients use another name than localhost")
	fs.StringVar(&s.TrustDomain, "trust-domain", s.TrustDomain, "trust `domain` of all identities. It must be the one in MeshConfig.trustDomain. Change it before the first certificate is issued: identities begin with it")
	fs.StringVar(&s.KeyFile, "ca-key-file", s.KeyFile, "`file` with the key and the root of the mesh, made if it is missing. Keep it over restarts, and a copy with its seal key elsewhere: the mesh's identities depend on it. "+s.keyDefault())
	if !s.inUp { // there all roles have one
		fs.StringVar(&s.SealKeyFile, "seal-key-file", s.SealKeyFile, "`file` with 32 random bytes or more that seal the CA's key on the disk. Keep it elsewhere: a systemd credential, a TPM, a mounted Secret. "+
			"Make it with: head -c 32 /dev/urandom")
	}
	fs.DurationVar(&s.MaxTTL, s.flag("max-ttl"), s.MaxTTL, "longest `time` for which a certificate is issued, 168h at most; one that asks for none gets 24h, or this if it is less. "+
		"Lower it to end certificates sooner: a root that is replaced is trusted for as long as the longest one, and up to an hour more")
	fs.BoolVar(&s.InsecureKeyFile, "insecure-ca-key-file", s.InsecureKeyFile, "allow the CA's key in clear on a disk. A process that reads it can be any workload: set it for trials only")
	fs.BoolVar(&s.UnannouncedRoot, "unannounced-root", s.UnannouncedRoot, "sign under a root that was not announced. "+
		"Set it for one start, in an emergency: if the key before is lost or known to others. Proxies refuse each other until all of them have the new root")
}

func (s *Settings) keyDefault() string {
	if s.inUp {
		return "The default is DATA/ca/ca.key"
	}
	return "For --signer self"
}

// UpFlags binds the settings in `meshlog up`.
func (s *Settings) UpFlags(fs *pflag.FlagSet) { s.common(fs) }

var dnsName = regexp.MustCompile(`^(\*\.)?[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*$`)

// Check returns an error for each setting that makes no sense.
func (s *Settings) Check() error {
	var errs []error
	bad := func(setting, format string, args ...any) {
		errs = append(errs, process.Invalid(setting, format, args...))
	}
	if s.Signer == none {
		return errors.Join(s.checkElsewhere()...)
	}
	if _, _, err := net.SplitHostPort(s.Listen); err != nil {
		bad(s.flag("listen"), "want HOST:PORT")
	}
	if err := spiffe.CheckTrustDomain(s.TrustDomain); err != nil {
		bad("trust-domain", "%w", err)
	}
	if len(s.DNSNames) == 0 {
		bad(s.flag("dns-names"), "is empty: give the names by which clients reach the CA")
	}
	for _, n := range s.DNSNames {
		if !dnsName.MatchString(n) || net.ParseIP(n) != nil {
			bad(s.flag("dns-names"), "%q is not a DNS name in lower case; clients reach the CA by a name, not by an address", n)
		}
	}
	switch {
	case s.Signer != self && s.Signer != plugged:
		bad("signer", "want self, plugged or none")
	case s.Signer == self && s.KeyFile == "":
		bad("ca-key-file", "is missing: give the file for the root's key; the CA makes it")
	case s.Signer == self && s.Dir != "":
		bad("ca-dir", "has no effect with --signer self")
	case s.Signer == plugged && s.Dir == "":
		bad("ca-dir", "is missing: give the directory with the certificate and the key of --signer plugged")
	case s.Signer == plugged && s.KeyFile != "":
		bad("ca-key-file", "has no effect with --signer plugged: the key is CA-DIR/ca-key.pem")
	}
	if s.TrustBundle != "" {
		bad("trust-bundle", "has no effect without --signer none")
	}
	if s.Signer == self && s.SealKeyFile == "" && !s.InsecureKeyFile {
		bad("seal-key-file", "is missing: the CA's key would be in clear on the disk. Give the file of a seal key, or allow that with --insecure-ca-key-file")
	}
	if s.MaxTTL < time.Minute || s.MaxTTL > signer.MaxTTL {
		bad(s.flag("max-ttl"), "want 1m to %s", signer.MaxTTL)
	}
	if !s.JoinTokens && !s.CertificateRenewal && !s.Kubernetes && len(s.OIDC) == 0 {
		bad("join-tokens", "is not set, and neither is --certificate-renewal, --oidc or --kubernetes: every request would be refused")
	}
	if !s.Kubernetes && s.UnknownPods {
		bad("unknown-pods", "has no effect without --kubernetes")
	}
	if !s.Kubernetes && (s.Kubeconfig != "" || s.KubeContext != "") {
		bad("kubeconfig", "has no effect without --kubernetes")
	}
	_, issuers := s.issuers()
	return errors.Join(append(errs, issuers)...)
}

// checkElsewhere checks the settings of --signer none: those of a key, a port and
// authenticators have no effect.
func (s *Settings) checkElsewhere() (errs []error) {
	if err := spiffe.CheckTrustDomain(s.TrustDomain); err != nil {
		errs = append(errs, process.Invalid("trust-domain", "%w", err))
	}
	if s.TrustBundle == "" {
		errs = append(errs, process.Invalid("trust-bundle", "is missing: give the file or the directory with the roots for --signer none"))
	}
	d := DefaultSettings()
	for _, of := range []struct {
		flag string
		set  bool
	}{
		{"listen", s.Listen != d.Listen},
		{"dns-names", !slices.Equal(s.DNSNames, d.DNSNames)},
		{"ca-dir", s.Dir != ""},
		{"ca-key-file", s.KeyFile != ""},
		{"seal-key-file", s.SealKeyFile != ""},
		{"roots-file", s.RootsFile != ""},
		{"max-ttl", s.MaxTTL != d.MaxTTL},
		{"insecure-ca-key-file", s.InsecureKeyFile},
		{"unannounced-root", s.UnannouncedRoot},
		{"join-tokens", s.JoinTokens},
		{"certificate-renewal", s.CertificateRenewal},
		{"oidc", len(s.OIDC) > 0},
		{"kubernetes", s.Kubernetes},
		{"unknown-pods", s.UnknownPods},
		{"kubeconfig", s.Kubeconfig != ""},
		{"context", s.KubeContext != ""},
	} {
		if of.set {
			errs = append(errs, process.Invalid(of.flag, "has no effect with --signer none"))
		}
	}
	return errs
}
