// Package kubeaccess has the settings of processes and commands that write to the API
// server of a Kubernetes cluster.
package kubeaccess

import (
	"errors"

	"github.com/spf13/pflag"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"

	"meshlog.dev/services/internal/process"
)

// Settings name an API server, and the account to use. The flags' texts describe them.
type Settings struct{ Kubeconfig, Context string }

// Flags binds the settings.
func (s *Settings) Flags(fs *pflag.FlagSet) {
	fs.StringVar(&s.Kubeconfig, "kubeconfig", s.Kubeconfig, "kubeconfig `file` with the API server's address and credentials. Leave it empty inside the cluster, to use the pod's service account")
	fs.StringVar(&s.Context, "context", s.Context, "`name` of the context in --kubeconfig; the default is its current context")
}

// Check returns all errors of the settings.
func (s *Settings) Check() error {
	if s.Context != "" && s.Kubeconfig == "" {
		return process.Invalid("context", "has no effect without --kubeconfig")
	}
	return nil
}

// REST returns the configuration of a client. It sends no request.
func (s *Settings) REST() (*rest.Config, error) {
	if s.Kubeconfig == "" {
		c, err := rest.InClusterConfig()
		switch {
		case errors.Is(err, rest.ErrNotInCluster):
			return nil, process.Invalid("kubeconfig", "is missing, and this process does not run in a pod: give the path of a kubeconfig file")
		case err != nil:
			return nil, process.Invalid("kubeconfig", "is missing, and this pod has no credentials for its API server: %w; give it a service account", err)
		}
		return c, nil
	}
	c, err := clientcmd.NewNonInteractiveDeferredLoadingClientConfig(
		&clientcmd.ClientConfigLoadingRules{ExplicitPath: s.Kubeconfig}, &clientcmd.ConfigOverrides{CurrentContext: s.Context},
	).ClientConfig()
	if err != nil {
		return nil, process.Invalid("kubeconfig", "%w", err)
	}
	return c, nil
}

// Operator returns the configuration of a client for a command: without a setting it is
// that of kubectl.
func (s *Settings) Operator() (*rest.Config, error) {
	rules := clientcmd.NewDefaultClientConfigLoadingRules()
	rules.ExplicitPath = s.Kubeconfig
	c, err := clientcmd.NewNonInteractiveDeferredLoadingClientConfig(rules, &clientcmd.ConfigOverrides{CurrentContext: s.Context}).ClientConfig()
	if err != nil {
		return nil, process.Invalid("kubeconfig", "%w", err)
	}
	return c, nil
}
