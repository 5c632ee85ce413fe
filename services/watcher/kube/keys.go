package kube

import (
	"context"
	"errors"
	"fmt"
	"slices"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/util/validation"

	"meshlog.dev/services/mesh/credential"
	"meshlog.dev/services/mesh/kubeconv"
	"meshlog.dev/services/watcher/keeper"
	"meshlog.dev/services/watcher/kube/apiserver"
)

// Credential implements keeper.Source: it reads a Secret from the API server now, with the
// current access. The watcher keeps no Secret, so it has none in memory to give.
func (w *Watcher) Credential(ctx context.Context, namespace, name string) (credential.Source, error) {
	if len(validation.IsDNS1123Label(namespace)) > 0 || len(validation.IsDNS1123Subdomain(name)) > 0 {
		return credential.Source{}, keeper.ErrGone // it could be a path to another resource
	}
	if in := w.cfg.secretNamespaces(); len(in) > 0 && !slices.Contains(in, namespace) {
		return credential.Source{}, fmt.Errorf("%w: the watcher of cluster %s does not read Secrets of namespace %s, so it is unknown", keeper.ErrRefused, w.cfg.Cluster, namespace)
	}
	client, err := w.client()
	if err != nil {
		return credential.Source{}, err
	}
	defer client.Close()
	s, err := w.secret(apiserver.Quietly(ctx, w.cfg.Logger), client, namespace, name)
	if err != nil {
		return credential.Source{}, err
	}
	c, ok := kubeconv.Credential(s)
	if !ok {
		kubeconv.Wipe(s)
		return credential.Source{}, keeper.ErrGone
	}
	return c, nil
}

// secret reads a Secret, which the caller wipes. If labels select the Secrets, it reads
// the labels first: the content of other Secrets does not leave the API server.
func (w *Watcher) secret(ctx context.Context, client *apiserver.Client, namespace, name string) (*corev1.Secret, error) {
	selector := w.cfg.SecretSelector
	if selector != nil {
		has, err := client.SecretLabels(ctx, namespace, name)
		if err != nil {
			return nil, w.unread(err)
		}
		if !selector.Matches(labels.Set(has)) {
			return nil, w.unselected()
		}
	}
	s, err := client.Secret(ctx, namespace, name)
	if err != nil {
		return nil, w.unread(err)
	}
	if selector != nil && !selector.Matches(labels.Set(s.Labels)) { // they have changed
		kubeconv.Wipe(s)
		return nil, w.unselected()
	}
	return s, nil
}

func (w *Watcher) unselected() error {
	return fmt.Errorf("%w: the watcher of cluster %s reads Secrets with the labels %s only, so it is unknown", keeper.ErrRefused, w.cfg.Cluster, w.cfg.SecretSelector)
}

// unread returns the error for a request that failed. After any but ErrGone, the frontend
// asks again.
func (w *Watcher) unread(err error) error {
	switch status := apierrors.APIStatus(nil); {
	case apierrors.IsUnexpectedServerError(err) && errors.As(err, &status): // maybe of a proxy; err repeats the answer
		return fmt.Errorf("API server of cluster %s: an unexpected answer with status %d", w.cfg.Cluster, status.Status().Code)
	case apierrors.IsNotFound(err):
		return keeper.ErrGone
	case apierrors.IsForbidden(err):
		return fmt.Errorf("the watcher of cluster %s needs the right to get secrets: %w", w.cfg.Cluster, err)
	}
	return fmt.Errorf("API server of cluster %s: %w", w.cfg.Cluster, err)
}

// secretNamespaces returns the namespaces whose Secrets are read; none means all.
func (c *Config) secretNamespaces() []string {
	if len(c.SecretNamespaces) > 0 {
		return c.SecretNamespaces
	}
	return c.Namespaces
}
