// Package kube puts the watcher of a Kubernetes cluster together, for the
// process of its own and for `meshlog up`.
package kube

import (
	"bytes"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"strings"

	"github.com/spf13/pflag"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"

	"meshlog.dev/services/internal/process"
	"meshlog.dev/services/watcher/kube"
	"meshlog.dev/services/watcher/kube/clusters"
)

// Settings say which cluster is watched, and what of it.
type Settings struct {
	// Cluster is the name of the cluster: its objects are those of one source.
	Cluster string
	// Kubeconfig is the path of a kubeconfig file, empty: the service account
	// of the pod; Context is one of its contexts, empty: the current one.
	Kubeconfig, Context string
	// DomainSuffix is that of the cluster's Services; empty: the MeshPolicy's.
	DomainSuffix string
	// Namespaces are those that are watched; none: all.
	Namespaces []string
	// Selectors select namespaces by label, separated by ";"; empty: all.
	Selectors string
	// RemoteClusters is the namespace of the Secrets that name other clusters;
	// empty: there are none.
	RemoteClusters string
	// QPS and Burst limit the requests to an API server.
	QPS, Burst int
	// MeshConfigMap is the ConfigMap with Istio's settings of the mesh,
	// NAMESPACE/NAME; ConfigMaps are others that are carried.
	MeshConfigMap string
	ConfigMaps    []string
	// SecretKeyFile has the key of the HMACs over Secrets; empty: Secrets are
	// not watched.
	SecretKeyFile string
}

// DefaultSettings are those of who was told nothing.
func DefaultSettings() Settings {
	return Settings{Cluster: "default", QPS: kube.DefaultQPS, Burst: kube.DefaultBurst, MeshConfigMap: "istio-system/istio"}
}

// Flags binds the settings.
func (s *Settings) Flags(fs *pflag.FlagSet) {
	fs.StringVar(&s.Cluster, "cluster", s.Cluster, "`name` that tells this cluster from others: what two say under one name is taken for one source. "+
		"Give one where several clusters are watched")
	fs.StringVar(&s.Kubeconfig, "kubeconfig", s.Kubeconfig, "kubeconfig `file` that says where the API server is and who asks it, read anew when that does not answer. "+
		"Leave it out inside the cluster: the service account of the pod counts there")
	fs.StringVar(&s.Context, "context", s.Context, "`name` of a context in --kubeconfig, where its current one is not meant")
	fs.StringVar(&s.DomainSuffix, "domain-suffix", s.DomainSuffix, "`domain` under which the cluster knows its Services. "+
		"Give it where that is not the MeshPolicy's domainSuffix, cluster.local")
	fs.StringSliceVar(&s.Namespaces, "namespaces", s.Namespaces, "`names` of the namespaces to watch, separated by commas; without any, all are. "+
		"Give them where the watcher may read these only: a Role in each is enough then. What the others hold is not part of the mesh")
	fs.StringVar(&s.Selectors, "discovery-selectors", s.Selectors, "label `selectors` separated by \";\": only namespaces that one of them matches are part of the mesh, as they are labelled at any time. "+
		"Give it where most of a cluster is not meant to be: mesh=on;team in (a,b)")
	fs.StringVar(&s.RemoteClusters, "remote-clusters", s.RemoteClusters, "`namespace` of the Secrets, labelled "+clusters.Label+", that say how other clusters are reached: each of their data is a kubeconfig, under the cluster's name. "+
		"Give it to have this process watch those too, each as a source of its own, as Secrets come and go")
	fs.IntVar(&s.QPS, "kube-qps", s.QPS, "`requests` a second to the API server. Watches, once begun, are none. Lower it to spare the API server; a start takes longer then")
	fs.IntVar(&s.Burst, "kube-burst", s.Burst, "`requests` to the API server that may come at once")
	fs.StringVar(&s.MeshConfigMap, "mesh-config-map", s.MeshConfigMap, "`NAMESPACE/NAME` of the ConfigMap with Istio's settings of the mesh, in its keys mesh and meshNetworks. Empty: they come from elsewhere")
	fs.StringSliceVar(&s.ConfigMaps, "config-maps", s.ConfigMaps, "`NAMESPACE/NAME` of other ConfigMaps to carry on the log, separated by commas")
	fs.StringVar(&s.SecretKeyFile, "secret-key-file", s.SecretKeyFile, "`file` with a key, the same for all watchers: with it Secrets that are TLS credentials are put on the log as references, with an HMAC in the place of their content. "+
		"Give it to have proxies learn of a rotation; without it Secrets are not read")
}

// Check says what makes no sense.
func (s *Settings) Check() error {
	var errs []error
	// Other clusters are named by keys of Secrets.
	if len(validation.IsConfigMapKey(s.Cluster)) > 0 {
		errs = append(errs, process.Invalid("cluster", "is no name: give one of letters, digits, '-', '_' and '.'"))
	}
	if s.Context != "" && s.Kubeconfig == "" {
		errs = append(errs, process.Invalid("context", "is of no use without --kubeconfig"))
	}
	for _, n := range s.Namespaces {
		if bad := validation.IsDNS1123Label(n); len(bad) > 0 {
			errs = append(errs, process.Invalid("namespaces", "%q is no name of a namespace: %s", n, bad[0]))
		}
	}
	if _, err := s.selectors(); err != nil {
		errs = append(errs, process.Invalid("discovery-selectors", "%w", err))
	}
	if s.MeshConfigMap != "" {
		if _, err := namespaced(s.MeshConfigMap); err != nil {
			errs = append(errs, process.Invalid("mesh-config-map", "%w", err))
		}
	}
	for _, n := range s.ConfigMaps {
		if _, err := namespaced(n); err != nil {
			errs = append(errs, process.Invalid("config-maps", "%w", err))
		}
	}
	return errors.Join(append(errs, process.Positive("kube-qps", s.QPS), process.Positive("kube-burst", s.Burst))...)
}

// Verify says what is wrong with the files that the settings name. It reaches
// no API server.
func (s *Settings) Verify() error {
	_, kubeconfig := s.rest()
	_, key := s.secretKey()
	return errors.Join(kubeconfig, key)
}

// Config is what the settings say, for a cluster that is reached as they say.
func (s *Settings) Config(log *slog.Logger) (kube.Config, error) {
	c, err := s.common(log)
	if err != nil {
		return kube.Config{}, err
	}
	c.Cluster = s.Cluster
	c.REST, err = s.rest()
	c.Renew = s.rest
	return c, err
}

// common is what all clusters have in common.
func (s *Settings) common(log *slog.Logger) (c kube.Config, err error) {
	c = kube.Config{DomainSuffix: s.DomainSuffix, Namespaces: s.Namespaces, QPS: float32(s.QPS), Burst: s.Burst, Logger: log}
	if c.DiscoverySelectors, err = s.selectors(); err != nil {
		return c, err
	}
	if s.MeshConfigMap != "" {
		if c.MeshConfigMap, err = namespaced(s.MeshConfigMap); err != nil {
			return c, err
		}
	}
	for _, n := range s.ConfigMaps {
		name, err := namespaced(n)
		if err != nil {
			return c, err
		}
		c.ConfigMaps = append(c.ConfigMaps, name)
	}
	c.SecretKey, err = s.secretKey()
	return c, err
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

// rest is how the API server is reached, as of now: the file may change.
func (s *Settings) rest() (*rest.Config, error) {
	if s.Kubeconfig == "" {
		c, err := rest.InClusterConfig()
		switch {
		case errors.Is(err, rest.ErrNotInCluster):
			return nil, process.Invalid("kubeconfig", "is missing, and this is no pod of a cluster: give the path of a kubeconfig file")
		case err != nil:
			return nil, process.Invalid("kubeconfig", "is missing, and this pod may not talk to its API server: %w; give it a service account, or set automountServiceAccountToken", err)
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
		return nil, process.Invalid("kubeconfig", "names no cluster: give a file in which a context does, current-context or --context")
	case err != nil:
		return nil, process.Invalid("kubeconfig", "%w", err)
	}
	return c, nil
}

// minSecretKey is how many bytes a key has at least.
const minSecretKey = 16

func (s *Settings) secretKey() ([]byte, error) {
	if s.SecretKeyFile == "" {
		return nil, nil
	}
	b, err := os.ReadFile(s.SecretKeyFile)
	if err != nil {
		return nil, process.Invalid("secret-key-file", "%w", err)
	}
	if b = bytes.TrimSpace(b); len(b) < minSecretKey {
		return nil, process.Invalid("secret-key-file", "has %d bytes, want %d at least; write one with: openssl rand -base64 32", len(b), minSecretKey)
	}
	return b, nil
}
