package agent

import (
	"cmp"
	"errors"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/spf13/pflag"

	"meshlog.dev/services/agent/bootstrap"
	"meshlog.dev/services/internal/process"
	"meshlog.dev/services/mesh/proxy"
)

// Settings of an agent. The flags' texts describe them.
type Settings struct {
	Envoy       string
	EnvoyArgs   []string
	EnvoyAdmin  string
	EnvoyUID    int
	EnvoyGID    int
	Concurrency int
	Dir         string
	StateDir    string

	Type       string
	Name       string
	Namespace  string
	Account    string
	IPs        []string
	Domain     string
	Cluster    string
	Labels     []string
	LabelsFile string
	Locality   string

	XDS           []string
	XDSServerName string
	XDSCA         string
	XDSPlaintext  bool

	CA            string
	CAServerName  string
	CARoots       string
	TokenFile     string
	JoinTokenFile string
	ClusterID     string
	TTL           time.Duration

	CertificatesOut   string
	CertificatesGroup int

	Ready            string
	DNS              string
	ResolvConf       string
	Drain            time.Duration
	TerminationDrain time.Duration

	// Environment is that of the process, NAME=VALUE.
	Environment []string
}

// DefaultSettings returns the defaults.
func DefaultSettings() *Settings {
	return &Settings{
		Envoy: "envoy", EnvoyAdmin: "127.0.0.1:15000", EnvoyUID: -1, EnvoyGID: -1, Dir: "/var/run/meshlog-agent",
		Type: string(proxy.Sidecar), TTL: 24 * time.Hour, CertificatesGroup: -1,
		Ready: "0.0.0.0:15021", ResolvConf: "/etc/resolv.conf", Drain: 45 * time.Second, TerminationDrain: 5 * time.Second,
		Environment: os.Environ(),
	}
}

// Flags binds the settings.
func (s *Settings) Flags(fs *pflag.FlagSet) {
	s.identityFlags(fs)
	s.meshFlags(fs)
	s.envoyFlags(fs)
}

func (s *Settings) identityFlags(fs *pflag.FlagSet) {
	fs.StringVar(&s.Type, "type", s.Type, "`kind` of proxy: sidecar, beside one workload; or router, a gateway")
	fs.StringVar(&s.Name, "name", s.Name, "`name` of the workload, as frontends show it. The default is the variable POD_NAME, else the machine's name")
	fs.StringVar(&s.Namespace, "namespace", s.Namespace, "`namespace` of the workload; its certificate must be for that one. The default is the variable POD_NAMESPACE, else default")
	fs.StringVar(&s.Account, "service-account", s.Account, "`name` of the workload's service account; its certificate must be for that one. The default is the variable SERVICE_ACCOUNT; without it the certificate alone decides")
	fs.StringSliceVar(&s.IPs, "ip", s.IPs, "`addresses` of the workload, separated by commas, by which the mesh knows its ports. The default is the variable INSTANCE_IP, else the addresses of this machine")
	fs.StringVar(&s.Domain, "dns-domain", s.Domain, "DNS `domain` that completes short names. The default is NAMESPACE.svc.cluster.local")
	fs.StringVar(&s.Cluster, "service-cluster", s.Cluster, "`name` of the group of proxies that this one belongs to. The default is the label app with the namespace")
	fs.StringSliceVar(&s.Labels, "labels", s.Labels, "`labels` of the workload, NAME=VALUE separated by commas, by which policies and Gateways select it")
	fs.StringVar(&s.LabelsFile, "labels-file", s.LabelsFile, "`file` with labels as Kubernetes writes them (downward API). When it changes, Envoy is replaced without a lost request. Set it in pods")
	fs.StringVar(&s.Locality, "locality", s.Locality, "`place` of the workload, REGION/ZONE/SUBZONE, for routes to near endpoints")
}

func (s *Settings) meshFlags(fs *pflag.FlagSet) {
	fs.StringSliceVar(&s.XDS, "xds", s.XDS, "`addresses` of the frontends, HOST:PORT separated by commas. The default is discoveryAddress in PROXY_CONFIG")
	fs.StringVar(&s.XDSServerName, "xds-server-name", s.XDSServerName, "`name` that the frontends' certificate must be for. The default is the host of the first address")
	fs.StringVar(&s.XDSCA, "xds-ca", s.XDSCA, "PEM `file` with the CAs of the frontends' certificate, read again when it changes. The default are the roots of the mesh. Set it if frontends have a certificate of another CA")
	fs.BoolVar(&s.XDSPlaintext, "xds-plaintext", s.XDSPlaintext, "connect to the frontends without TLS. They then know no identity of this proxy and give it no secrets, and the agent learns of no new root: set it for trials only")
	fs.StringVar(&s.CA, "ca", s.CA, "`address` of the mesh's CA, HOST:PORT. The default is the variable CA_ADDR")
	fs.StringVar(&s.CAServerName, "ca-server-name", s.CAServerName, "`name` that the CA's certificate must be for. The default is the host of --ca")
	fs.StringVar(&s.CARoots, "ca-roots", s.CARoots, "PEM `file` with the roots by which the agent trusts the CA, read for each request. The agent also trusts the roots that the mesh tells it later")
	fs.StringVar(&s.JoinTokenFile, "join-token-file", s.JoinTokenFile, "`file` with a join token, as `meshlog ca token` makes it. It is good for one certificate; then the certificate proves the identity of the workload. "+
		"An agent that starts again needs another one, unless it has --state-dir")
	fs.StringVar(&s.StateDir, "state-dir", s.StateDir, "`directory` for what the agent needs to go on after a restart, made if it is missing: the certificate with its key, in clear, the roots and the names of the mesh. "+
		"Set it so that an agent with a join token needs no other one when it starts again, on a disk that only its user reads; without it the key is in memory only")
	fs.StringVar(&s.TokenFile, "token-file", s.TokenFile, "`file` with a token that its owner replaces, of a Kubernetes service account for the audience istio-ca, or of an OIDC issuer; read for each request")
	fs.StringVar(&s.ClusterID, "cluster-id", s.ClusterID, "`name` of the Kubernetes cluster that the token is of. The default is the variable ISTIO_META_CLUSTER_ID")
	fs.DurationVar(&s.TTL, "certificate-ttl", s.TTL, "`time` for which a certificate is asked for, from 1m to 168h. It is renewed at half of it, so the CA may be away for nearly as long")
	fs.StringVar(&s.CertificatesOut, "certificates-out", s.CertificatesOut, "`directory` for the certificate (tls.crt), its key (tls.key) and the roots of the mesh (ca.crt), replaced together when one changes. "+
		"Set it for applications and gRPC clients that speak mutual TLS themselves; the key is then on the disk, so give a tmpfs")
	fs.IntVar(&s.CertificatesGroup, "certificates-group", s.CertificatesGroup, "`id` of a group that may read --certificates-out; -1: only the agent's user")
}

func (s *Settings) envoyFlags(fs *pflag.FlagSet) {
	fs.StringVar(&s.Envoy, "envoy", s.Envoy, "`path` of Envoy, 1.34 or later, or its name on PATH")
	fs.StringArrayVar(&s.EnvoyArgs, "envoy-arg", s.EnvoyArgs, "further `argument` of Envoy; may be repeated. Example: --envoy-arg=--component-log-level=upstream:debug")
	fs.IntVar(&s.Concurrency, "concurrency", s.Concurrency, "`number` of Envoy's worker threads; 0: one for each processor. The default is concurrency in PROXY_CONFIG")
	fs.StringVar(&s.EnvoyAdmin, "envoy-admin", s.EnvoyAdmin, "`address` of Envoy's admin interface. It can stop the proxy and shows everything: keep it on loopback")
	fs.IntVar(&s.EnvoyUID, "envoy-uid", s.EnvoyUID, "`id` of the user that Envoy runs as; -1: the agent's. Set it to 1337 if redirected traffic is told apart by it; the agent must be root then")
	fs.IntVar(&s.EnvoyGID, "envoy-gid", s.EnvoyGID, "`id` of the group that Envoy runs as; -1: that of --envoy-uid")
	fs.StringVar(&s.Dir, "dir", s.Dir, "`directory` for Envoy's bootstrap and the socket by which Envoy gets its certificate; made if it is missing")
	fs.StringVar(&s.Ready, "ready-listen", s.Ready, "`address` for readiness probes, GET /healthz/ready: 200 when Envoy is live with listeners and a valid certificate")
	fs.StringVar(&s.DNS, "dns-listen", s.DNS, "`address` for DNS over UDP and TCP, such as 127.0.0.1:15053. Names of the mesh are answered with the addresses that frontends tell, the rest is forwarded to the servers in --resolv-conf; empty: no DNS")
	fs.StringVar(&s.ResolvConf, "resolv-conf", s.ResolvConf, "`file` with the DNS servers that queries are forwarded to, read again when it changes")
	fs.DurationVar(&s.Drain, "drain-time", s.Drain, "`time` in which connections end whose listener was changed or removed, and those of the old Envoy after a hot restart. "+
		"Until then they keep what held when they were made: raise it for long requests. The default is drainDuration in PROXY_CONFIG, else 45s")
	fs.DurationVar(&s.TerminationDrain, "termination-drain", s.TerminationDrain, "longest `time` for which the agent waits for clients to leave after SIGTERM. "+
		"Keep it below what stops the agent by force. The default is terminationDrainDuration in PROXY_CONFIG, else 5s")
}

// variable returns a variable of the environment.
func (s *Settings) variable(name string) string {
	for _, v := range s.Environment {
		if n, value, ok := strings.Cut(v, "="); ok && n == name {
			return value
		}
	}
	return ""
}

// complete returns the settings with the variables of Istio in place of what is not set.
func (s *Settings) complete() (*Settings, bootstrap.ProxyConfig, error) {
	c, d := *s, DefaultSettings()
	conf, err := bootstrap.ReadProxyConfig(s.variable("PROXY_CONFIG"))
	if err != nil {
		return &c, conf, err
	}
	host, _ := os.Hostname()
	c.Name = cmp.Or(c.Name, s.variable("POD_NAME"), host)
	c.Namespace = cmp.Or(c.Namespace, s.variable("POD_NAMESPACE"), "default")
	c.Account = cmp.Or(c.Account, s.variable("SERVICE_ACCOUNT"))
	if ips := s.variable("INSTANCE_IP"); len(c.IPs) == 0 && ips != "" {
		c.IPs = strings.Split(ips, ",")
	}
	if len(c.IPs) == 0 {
		c.IPs = ownAddresses()
	}
	if len(c.XDS) == 0 && conf.Discovery != "" {
		c.XDS = []string{conf.Discovery}
	}
	c.CA = cmp.Or(c.CA, s.variable("CA_ADDR"))
	c.ClusterID = cmp.Or(c.ClusterID, s.variable("ISTIO_META_CLUSTER_ID"))
	c.Cluster = cmp.Or(c.Cluster, conf.Cluster)
	c.Concurrency = cmp.Or(c.Concurrency, conf.Concurrency)
	if c.Drain == d.Drain && conf.Drain > 0 {
		c.Drain = conf.Drain
	}
	if c.TerminationDrain == d.TerminationDrain && conf.Termination > 0 {
		c.TerminationDrain = conf.Termination
	}
	if c.EnvoyAdmin == d.EnvoyAdmin && conf.AdminPort > 0 {
		c.EnvoyAdmin = (&net.TCPAddr{IP: net.IPv4(127, 0, 0, 1), Port: conf.AdminPort}).String()
	}
	if c.XDSServerName == "" && len(c.XDS) > 0 {
		c.XDSServerName, _, _ = net.SplitHostPort(c.XDS[0]) // Check reports it
	}
	return &c, conf, nil
}

// ownAddresses returns the addresses of this machine that others may reach.
func ownAddresses() (ips []string) {
	all, _ := net.InterfaceAddrs() // none is as good as unknown
	for _, a := range all {
		if p, err := netip.ParsePrefix(a.String()); err == nil && p.Addr().IsGlobalUnicast() {
			ips = append(ips, p.Addr().String())
		}
	}
	return ips
}

// Check returns an error for each setting that makes no sense.
func (s *Settings) Check() error {
	c, _, err := s.complete()
	errs := []error{err}
	bad := func(setting, format string, args ...any) {
		errs = append(errs, process.Invalid(setting, format, args...))
	}
	addresses := func(setting string, all ...string) {
		for _, a := range all {
			if _, _, err := net.SplitHostPort(a); err != nil {
				bad(setting, "want HOST:PORT")
			}
		}
	}
	if t := proxy.Type(c.Type); t != proxy.Sidecar && t != proxy.Router {
		bad("type", "want sidecar or router")
	}
	if len(c.XDS) == 0 {
		bad("xds", "is missing: give the addresses of the frontends, HOST:PORT")
	}
	addresses("xds", c.XDS...)
	addresses("envoy-admin", c.EnvoyAdmin)
	addresses("ready-listen", c.Ready)
	if c.DNS != "" {
		addresses("dns-listen", c.DNS)
	}
	for _, ip := range c.IPs {
		if _, err := netip.ParseAddr(strings.TrimSpace(ip)); err != nil {
			bad("ip", "%q is no address", ip)
		}
	}
	if _, err := bootstrap.ParseLabels(c.Labels); err != nil {
		bad("labels", "%w", err)
	}
	if c.XDSPlaintext && c.XDSCA != "" {
		bad("xds-ca", "has no effect with --xds-plaintext")
	}
	if c.CA == "" {
		bad("ca", "is missing: give the address of the mesh's CA, HOST:PORT")
	} else {
		addresses("ca", c.CA)
	}
	if c.CARoots == "" {
		bad("ca-roots", "is missing: give the file with the roots by which the agent trusts the CA")
	}
	if (c.TokenFile == "") == (c.JoinTokenFile == "") {
		bad("join-token-file", "or --token-file is needed, and not both: the CA issues a certificate only to a workload that proves its identity")
	}
	if c.TTL < time.Minute || c.TTL > 7*24*time.Hour {
		bad("certificate-ttl", "want 1m to 168h")
	}
	if c.Drain < time.Second {
		bad("drain-time", "want at least 1s")
	}
	if c.TerminationDrain < 0 {
		bad("termination-drain", "want a time, or 0")
	}
	if c.Concurrency < 0 {
		bad("concurrency", "want a number, or 0")
	}
	if c.EnvoyGID >= 0 && c.EnvoyUID < 0 {
		bad("envoy-gid", "has no effect without --envoy-uid")
	}
	if len(filepath.Join(c.Dir, socketName)) > 90 {
		bad("dir", "is too long for the name of a socket: at most %d bytes", 90-len(socketName)-1)
	}
	return errors.Join(errs...)
}
