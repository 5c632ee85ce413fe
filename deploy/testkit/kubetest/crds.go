package kubetest

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"slices"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"meshlog.dev/deploy/testkit/program"
)

var crds = schema.GroupVersionResource{Group: "apiextensions.k8s.io", Version: "v1", Resource: "customresourcedefinitions"}

// InstallIstioCRDs installs the Istio definitions with these names, such as
// "virtualservices.networking.istio.io", or all of them if no name is given, and
// waits until their objects can be written. They come from the version of
// istio.io/api that the services use.
func (s *Server) InstallIstioCRDs(ctx context.Context, names ...string) error {
	file, err := program.Tool(ctx, "istio-crds")
	if err != nil {
		return err
	}
	return s.installCRDs(ctx, file, names)
}

// InstallGatewayCRDs installs definitions of the Gateway API's experimental
// channel, which has all kinds, as InstallIstioCRDs does.
func (s *Server) InstallGatewayCRDs(ctx context.Context, names ...string) error {
	dir, err := program.Tool(ctx, "gateway-crds")
	if err != nil {
		return err
	}
	return s.installCRDs(ctx, filepath.Join(dir, "experimental", "*.yaml"), names)
}

// InstallMeshlogCRDs installs definitions of deploy/kubernetes/crds, as
// InstallIstioCRDs does.
func (s *Server) InstallMeshlogCRDs(ctx context.Context, names ...string) error {
	root, err := program.Root()
	if err != nil {
		return err
	}
	return s.installCRDs(ctx, filepath.Join(root, "deploy", "kubernetes", "crds", "*.yaml"), names)
}

// installCRDs installs the definitions in files that have one of the names, or
// all if there are no names. It skips other objects in the files.
func (s *Server) installCRDs(ctx context.Context, pattern string, names []string) error {
	files, err := filepath.Glob(pattern)
	if err != nil {
		return err
	}
	var documents []string
	for _, f := range files {
		b, err := os.ReadFile(f)
		if err != nil {
			return err
		}
		documents = append(documents, string(b))
	}
	var installed []*unstructured.Unstructured
	err = s.each(documents, func(u *unstructured.Unstructured) error {
		if u.GetKind() != "CustomResourceDefinition" || len(names) > 0 && !slices.Contains(names, u.GetName()) {
			return nil
		}
		installed = append(installed, u)
		return s.apply(ctx, manager, u)
	})
	if err != nil {
		return err
	}
	if len(names) > 0 && len(installed) != len(names) {
		return fmt.Errorf("install %v: only %d of them are in %s", names, len(installed), pattern)
	}
	for _, u := range installed {
		if err := until(ctx, u.GetName(), func(ctx context.Context) error { return s.served(ctx, u) }); err != nil {
			return err
		}
	}
	return nil
}

// served returns nil when the API server serves each version of a definition and
// discovery lists it, which may be later.
func (s *Server) served(ctx context.Context, crd *unstructured.Unstructured) error {
	return eachVersion(crd, func(resource schema.GroupVersionResource, kind schema.GroupVersionKind) error {
		if _, err := s.objects.Resource(resource).List(ctx, metav1.ListOptions{Limit: 1}); err != nil {
			return err
		}
		_, err := s.mapping(kind)
		return err
	})
}

// gone returns nil when the API server serves no version of a definition and
// discovery lists none, which may be some time after the definition is deleted.
func (s *Server) gone(ctx context.Context, crd *unstructured.Unstructured) error {
	s.mapper.Reset()
	return eachVersion(crd, func(resource schema.GroupVersionResource, kind schema.GroupVersionKind) error {
		if _, err := s.objects.Resource(resource).List(ctx, metav1.ListOptions{Limit: 1}); err == nil {
			return fmt.Errorf("%s is still served", resource)
		} else if !apierrors.IsNotFound(err) {
			return err
		}
		if _, err := s.mapping(kind); err == nil {
			return fmt.Errorf("discovery still lists %s", kind)
		} else if !meta.IsNoMatchError(err) {
			return err
		}
		return nil
	})
}

// eachVersion calls f with each served version of a definition.
func eachVersion(crd *unstructured.Unstructured, f func(schema.GroupVersionResource, schema.GroupVersionKind) error) error {
	group, _, _ := unstructured.NestedString(crd.Object, "spec", "group")
	kind, _, _ := unstructured.NestedString(crd.Object, "spec", "names", "kind")
	plural, _, _ := unstructured.NestedString(crd.Object, "spec", "names", "plural")
	versions, _, err := unstructured.NestedSlice(crd.Object, "spec", "versions")
	if err != nil {
		return err
	}
	for _, v := range versions {
		version, _ := v.(map[string]any)
		if served, _ := version["served"].(bool); !served {
			continue
		}
		name, _ := version["name"].(string)
		v := schema.GroupVersion{Group: group, Version: name}
		if err := f(v.WithResource(plural), v.WithKind(kind)); err != nil {
			return err
		}
	}
	return nil
}

// RemoveCRD deletes a definition and all its objects and waits until the API
// server no longer serves it. RemoveCRD does nothing if there is no definition of
// that name.
func (s *Server) RemoveCRD(ctx context.Context, name string) error {
	crd, err := s.objects.Resource(crds).Get(ctx, name, metav1.GetOptions{})
	if err != nil {
		return ignoreNotFound(err)
	}
	if err := s.objects.Resource(crds).Delete(ctx, name, metav1.DeleteOptions{}); err != nil {
		return ignoreNotFound(err)
	}
	return until(ctx, name+" to be removed", func(ctx context.Context) error { return s.gone(ctx, crd) })
}
