package kubetest

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strings"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/yaml"
	"k8s.io/client-go/dynamic"
)

// manager is the field manager of what Apply writes.
const manager = "kubetest"

// Apply writes objects by server-side apply, as `kubectl apply --server-side
// --force-conflicts` would, in the order given; each string may have several
// documents. Objects without a namespace go to "default". A status that is
// given is written too.
func (s *Server) Apply(ctx context.Context, yaml ...string) error {
	return s.ApplyAs(ctx, manager, yaml...)
}

// ApplyAs is Apply by another field manager.
func (s *Server) ApplyAs(ctx context.Context, manager string, yaml ...string) error {
	return s.each(yaml, func(u *unstructured.Unstructured) error { return s.apply(ctx, manager, u) })
}

// Delete deletes the objects that the documents name, at once: no pod stays to
// end gracefully. A namespace is gone afterwards; what is in it should be
// deleted before, since nobody else does. Objects that are not there are
// deleted.
func (s *Server) Delete(ctx context.Context, yaml ...string) error {
	return s.each(yaml, func(u *unstructured.Unstructured) error {
		r, err := s.resource(u)
		if err != nil {
			return err
		}
		now := int64(0)
		if err := r.Delete(ctx, u.GetName(), metav1.DeleteOptions{GracePeriodSeconds: &now}); err != nil {
			return ignoreNotFound(err)
		}
		if u.GetKind() == "Namespace" && u.GetAPIVersion() == "v1" {
			return s.finalize(ctx, r, u.GetName())
		}
		return nil
	})
}

// finalize lets go of a namespace that is deleted.
func (s *Server) finalize(ctx context.Context, namespaces dynamic.ResourceInterface, name string) error {
	u, err := namespaces.Get(ctx, name, metav1.GetOptions{})
	if err != nil {
		return ignoreNotFound(err)
	}
	unstructured.RemoveNestedField(u.Object, "spec", "finalizers")
	_, err = namespaces.Update(ctx, u, metav1.UpdateOptions{}, "finalize")
	return ignoreNotFound(err)
}

func ignoreNotFound(err error) error {
	if apierrors.IsNotFound(err) {
		return nil
	}
	return err
}

// each calls f with each document and says of which one an error is.
func (s *Server) each(documents []string, f func(*unstructured.Unstructured) error) error {
	for _, text := range documents {
		d := yaml.NewYAMLOrJSONDecoder(strings.NewReader(text), 4096)
		for {
			u := &unstructured.Unstructured{}
			if err := d.Decode(&u.Object); errors.Is(err, io.EOF) {
				break
			} else if err != nil {
				return err
			}
			if len(u.Object) == 0 { // nothing between two ---
				continue
			}
			if err := f(u); err != nil {
				return fmt.Errorf("%s %s/%s: %w", u.GetKind(), u.GetNamespace(), u.GetName(), err)
			}
		}
	}
	return nil
}

func (s *Server) apply(ctx context.Context, manager string, u *unstructured.Unstructured) error {
	r, err := s.resource(u)
	if err != nil {
		return err
	}
	options := metav1.ApplyOptions{FieldManager: manager, Force: true}
	if _, err := r.Apply(ctx, u.GetName(), u, options); err != nil {
		return err
	}
	if status, _, _ := unstructured.NestedMap(u.Object, "status"); len(status) == 0 || u.GetKind() == "CustomResourceDefinition" {
		return nil
	}
	_, err = r.ApplyStatus(ctx, u.GetName(), u, options)
	return err
}

func (s *Server) applyTyped(ctx context.Context, objects ...runtime.Object) error {
	for _, o := range objects {
		content, err := runtime.DefaultUnstructuredConverter.ToUnstructured(o)
		if err != nil {
			return err
		}
		u := &unstructured.Unstructured{Object: content}
		if err := s.apply(ctx, manager, u); err != nil {
			return fmt.Errorf("%s %s: %w", u.GetKind(), u.GetName(), err)
		}
	}
	return nil
}

// resource is where an object of that kind and namespace is written.
func (s *Server) resource(u *unstructured.Unstructured) (dynamic.ResourceInterface, error) {
	m, err := s.mapping(u.GroupVersionKind())
	if err != nil {
		return nil, err
	}
	r := s.objects.Resource(m.Resource)
	if m.Scope.Name() != meta.RESTScopeNameNamespace {
		return r, nil
	}
	namespace := u.GetNamespace()
	if namespace == "" {
		namespace = metav1.NamespaceDefault
	}
	return r.Namespace(namespace), nil
}

// mapping says where objects of a kind are, and asks the API server once more
// for one that it did not have before.
func (s *Server) mapping(kind schema.GroupVersionKind) (*meta.RESTMapping, error) {
	m, err := s.mapper.RESTMapping(kind.GroupKind(), kind.Version)
	if meta.IsNoMatchError(err) {
		s.mapper.Reset()
		m, err = s.mapper.RESTMapping(kind.GroupKind(), kind.Version)
	}
	return m, err
}
