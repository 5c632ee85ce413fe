// Package kube runs the watcher of a Kubernetes cluster, for watcher-kube and for
// `meshlog up`.
package kube

import (
	"errors"
	"fmt"
	"log/slog"
	"os"
	"slices"
	"strings"

	"github.com/spf13/pflag"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"

	"meshlog.dev/services/internal/process"
	"meshlog.dev/services/roles/watcher"
	"meshlog.dev/services/watcher/kube"
	"meshlog.dev/services/watcher/kube/clusters"
)

// Settings name a cluster and select its objects. The flags' texts describe them.
type Settings struct {
	Cluster             string
	Kubeconfig, Context string
	DomainSuffix        string
	Namespaces          []string
	Selectors           string
	RemoteClusters      string
	QPS, Burst          int
	MeshConfigMap       string
	ConfigMaps          []string
	Secrets             watcher.Secrets
	SecretNamespaces    []string
	SecretSelector      string
	// Revision is that of the control plane. Its flag is bound apart, because other
	// watchers of a process have it too.
	Revision watcher.Revision
}

// DefaultSettings returns the defaults.
func DefaultSettings() Settings {
	return Settings{Cluster: "default", QPS: 50, Burst: 100, MeshConfigMap: "istio-system/istio", Secrets: watcher.DefaultSecrets()}
}

// Flags binds the settings.
func (s *Settings) Flags(fs *pflag.FlagSet) {
	fs.StringVar(&s.Cluster, "cluster", s.Cluster, "unique `name` of the cluster: watchers with the same name publish as one source. "+
		"Set it if several clusters are watched")
	fs.StringVar(&s.Kubeconfig, "kubeconfig", s.Kubeconfig, "kubeconfig `file` with the API server's address and credentials, read again if the API server does not answer. "+
		"Leave it empty inside the cluster, to use the pod's service account")
	fs.StringVar(&s.Context, "context", s.Context, "`name` of the context in --kubeconfig; the default is its current context")
	fs.StringVar(&s.DomainSuffix, "domain-suffix", s.DomainSuffix, "`domain` of the cluster's Services. "+
		"Set it if it differs from the MeshPolicy's domainSuffix, cluster.local")
	fs.StringSliceVar(&s.Namespaces, "namespaces", s.Namespaces, "`names` of the namespaces to watch, separated by commas; the default is all. "+
		"Set it if the watcher may read only these; a Role in each is then enough. Objects in other namespaces are not part of the mesh")
	fs.StringVar(&s.Selectors, "discovery-selectors", s.Selectors, "label `selectors` separated by \";\": only namespaces that match one of them are part of the mesh. The watcher follows changes of their labels. "+
		"Set it if only a few namespaces belong to the mesh: mesh=on;team in (a,b)")
	fs.StringVar(&s.RemoteClusters, "remote-clusters", s.RemoteClusters, "`namespace` of Secrets, labelled "+clusters.Label+", with kubeconfigs of other clusters. Each key of their data is a cluster's name. "+
		"Set it to watch these clusters too, each as its own source. The process follows changes of the Secrets")
	fs.IntVar(&s.QPS, "kube-qps", s.QPS, "maximum `requests` per second to the API server; a running watch does not count. Lower it to reduce the API server's load; starts then take longer")
	fs.IntVar(&s.Burst, "kube-burst", s.Burst, "maximum `requests` to the API server in a burst")
	fs.StringVar(&s.MeshConfigMap, "mesh-config-map", s.MeshConfigMap, "`NAMESPACE/NAME` of the ConfigMap with Istio's settings of the mesh, in its keys mesh and meshNetworks. Leave it empty if they come from another source")
	fs.StringSliceVar(&s.ConfigMaps, "config-maps", s.ConfigMaps, "`NAMESPACE/NAME` of other ConfigMaps to publish, separated by commas")
	s.Secrets.Flags(fs)
	fs.StringSliceVar(&s.SecretNamespaces, "secret-namespaces", s.SecretNamespaces, "`names` of the namespaces whose Secrets to read, separated by commas; the default is all that are watched. "+
		"Set it if the watcher may read Secrets only there; a Role in each is then enough. A credential elsewhere is unknown")
	fs.StringVar(&s.SecretSelector, "secret-selector", s.SecretSelector, "label `selector` of the Secrets to read. "+
		"Set it so that other Secrets do not leave the API server: credential=tls. A credential without these labels is unknown")
}

// Check returns all errors of the settings.
func (s *Settings) Check() error {
	var errs []error
	// The name must be valid as a key of a Secret, too.
	if len(validation.IsConfigMapKey(s.Cluster)) > 0 {
		errs = append(errs, process.Invalid("cluster", "is not a valid name: use letters, digits, '-', '_' and '.'"))
	}
	if s.Context != "" && s.Kubeconfig == "" {
		errs = append(errs, process.Invalid("context", "has no effect without --kubeconfig"))
	}
	for _, n := range s.Namespaces {
		if bad := validation.IsDNS1123Label(n); len(bad) > 0 {
			errs = append(errs, process.Invalid("namespaces", "%q is not the name of a namespace: %s", n, bad[0]))
		}
	}
	errs = append(errs, s.checkSecrets(), s.Revision.Check())
	_, err := s.parse()
	errs = append(errs, err)
	return errors.Join(append(errs, process.Positive("kube-qps", s.QPS), process.Positive("kube-burst", s.Burst))...)
}

// checkSecrets checks the namespaces and the settings that others need.
func (s *Settings) checkSecrets() error {
	var errs []error
	for _, n := range s.SecretNamespaces {
		if bad := validation.IsDNS1123Label(n); len(bad) > 0 {
			errs = append(errs, process.Invalid("secret-namespaces", "%q is not the name of a namespace: %s", n, bad[0]))
		} else if len(s.Namespaces) > 0 && !slices.Contains(s.Namespaces, n) {
			errs = append(errs, process.Invalid("secret-namespaces", "%q is not in --namespaces", n))
		}
	}
	if s.Secrets.KeyFile == "" {
		const why = "has no effect without --secret-key-file"
		if len(s.SecretNamespaces) > 0 {
			errs = append(errs, process.Invalid("secret-namespaces", why))
		}
		if s.SecretSelector != "" {
			errs = append(errs, process.Invalid("secret-selector", why))
		}
	}
	return errors.Join(errs...)
}

// Verify checks the files that the settings name. It does not contact the API
// server.
func (s *Settings) Verify() error {
	_, kubeconfig := s.rest()
	_, key := s.Secrets.Options()
	return errors.Join(kubeconfig, key)
}

// Config returns the configuration of the watcher of the cluster.
func (s *Settings) Config(log *slog.Logger) (kube.Config, error) {
	c, err := s.parse()
	if err != nil {
		return c, err
	}
	c.Cluster, c.Logger, c.Renew = s.Cluster, log, s.rest
	if c.Secrets, err = s.Secrets.Options(); err != nil {
		return c, err
	}
	c.REST, err = s.rest()
	return c, err
}

// parse returns the settings that need no file as a configuration, and all their
// errors.
func (s *Settings) parse() (kube.Config, error) {
	c := kube.Config{DomainSuffix: s.DomainSuffix, Revision: s.Revision.Name, Namespaces: s.Namespaces, SecretNamespaces: s.SecretNamespaces}
	var errs []error
	var err error
	if c.DiscoverySelectors, err = s.selectors(); err != nil {
		errs = append(errs, process.Invalid("discovery-selectors", "%w", err))
	}
	if s.SecretSelector != "" {
		if c.SecretSelector, err = labels.Parse(s.SecretSelector); err != nil {
			errs = append(errs, process.Invalid("secret-selector", "%w", err))
		}
	}
	if s.MeshConfigMap != "" {
		if c.MeshConfigMap, err = namespaced(s.MeshConfigMap); err != nil {
			errs = append(errs, process.Invalid("mesh-config-map", "%w", err))
		}
	}
	for _, n := range s.ConfigMaps {
		name, err := namespaced(n)
		if err != nil {
			errs = append(errs, process.Invalid("config-maps", "%w", err))
		}
		c.ConfigMaps = append(c.ConfigMaps, name)
	}
	return c, errors.Join(errs...)
}

func (s *Settings) selectors() (all []labels.Selector, err error) {
	for text := range strings.SplitSeq(s.Selectors, ";") {
		if text = strings.TrimSpace(text); text == "" {
			continue
		}
		selector, err := labels.Parse(text)
		if err != nil {
			return nil, fmt.Errorf("%q: %w", text, err)
		}
		all = append(all, selector)
	}
	return all, nil
}

func namespaced(s string) (types.NamespacedName, error) {
	namespace, name, ok := strings.Cut(s, "/")
	if !ok || namespace == "" || name == "" || strings.Contains(name, "/") {
		return types.NamespacedName{}, fmt.Errorf("%q: want NAMESPACE/NAME", s)
	}
	return types.NamespacedName{Namespace: namespace, Name: name}, nil
}

// rest reads the configuration of the API server from the current files.
func (s *Settings) rest() (*rest.Config, error) {
	c, err := s.access()
	if err == nil {
		c.QPS, c.Burst = float32(s.QPS), s.Burst
	}
	return c, err
}

func (s *Settings) access() (*rest.Config, error) {
	if s.Kubeconfig == "" {
		c, err := rest.InClusterConfig()
		switch {
		case errors.Is(err, rest.ErrNotInCluster):
			return nil, process.Invalid("kubeconfig", "is missing, and this process does not run in a pod: give the path of a kubeconfig file")
		case err != nil:
			return nil, process.Invalid("kubeconfig", "is missing, and this pod has no credentials for its API server: %w; give it a service account, or set automountServiceAccountToken", err)
		}
		return c, nil
	}
	c, err := clientcmd.NewNonInteractiveDeferredLoadingClientConfig(
		&clientcmd.ClientConfigLoadingRules{ExplicitPath: s.Kubeconfig},
		&clientcmd.ConfigOverrides{CurrentContext: s.Context},
	).ClientConfig()
	switch {
	case errors.Is(err, os.ErrNotExist):
		return nil, process.Invalid("kubeconfig", "%w: give the path of a kubeconfig file", err)
	case clientcmd.IsEmptyConfig(err):
		return nil, process.Invalid("kubeconfig", "does not name a cluster: give a file with a current-context, or --context")
	case err != nil:
		return nil, process.Invalid("kubeconfig", "%w", err)
	}
	return c, nil
}
