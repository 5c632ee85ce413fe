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

// manager is the field manager that Apply uses.
const manager = "kubetest"

// Apply applies objects in the given order, as `kubectl apply --server-side
// --force-conflicts` would; each string may have several documents. Objects
// without a namespace go to "default". Apply also writes an object's status.
func (s *Server) Apply(ctx context.Context, yaml ...string) error {
	return s.ApplyAs(ctx, manager, yaml...)
}

// ApplyAs is like Apply, with another field manager.
func (s *Server) ApplyAs(ctx context.Context, manager string, yaml ...string) error {
	return s.each(yaml, func(u *unstructured.Unstructured) error { return s.apply(ctx, manager, u) })
}

// Delete deletes the objects that the documents name, without a grace period.
// It finalizes a namespace but does not delete the namespace's objects, which no
// controller does either. Delete skips objects that do not exist.
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

// finalize removes the finalizers of a deleted namespace.
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

// each calls f with the object of each document and adds the object's name to
// an error.
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
			if len(u.Object) == 0 { // an empty document
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

// resource returns the client for an object's kind and namespace.
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

// mapping returns the resource of a kind. If the cached discovery data does not
// have the kind, mapping reads it again.
func (s *Server) mapping(kind schema.GroupVersionKind) (*meta.RESTMapping, error) {
	m, err := s.mapper.RESTMapping(kind.GroupKind(), kind.Version)
	if meta.IsNoMatchError(err) {
		s.mapper.Reset()
		m, err = s.mapper.RESTMapping(kind.GroupKind(), kind.Version)
	}
	return m, err
}
