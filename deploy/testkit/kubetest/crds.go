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
)

var crds = schema.GroupVersionResource{Group: "apiextensions.k8s.io", Version: "v1", Resource: "customresourcedefinitions"}

// InstallIstioCRDs installs the definitions of that name, such as
// "virtualservices.networking.istio.io", without a name all that Istio has, and
// waits until objects of them can be written. They are those of the istio.io/api
// that the services use.
func (s *Server) InstallIstioCRDs(ctx context.Context, names ...string) error {
	file, err := tool(ctx, "istio-crds")
	if err != nil {
		return err
	}
	return s.installCRDs(ctx, []string{file}, names)
}

// InstallGatewayCRDs does the same with the Gateway API, whose experimental
// channel it takes: the one with all kinds.
func (s *Server) InstallGatewayCRDs(ctx context.Context, names ...string) error {
	dir, err := tool(ctx, "gateway-crds")
	if err != nil {
		return err
	}
	files, err := filepath.Glob(filepath.Join(dir, "experimental", "*.yaml"))
	if err != nil {
		return err
	}
	return s.installCRDs(ctx, files, names)
}

// InstallMeshlogCRDs does the same with the kinds that are meshlog's own:
// deploy/kubernetes/crds.
func (s *Server) InstallMeshlogCRDs(ctx context.Context, names ...string) error {
	root, err := root()
	if err != nil {
		return err
	}
	files, err := filepath.Glob(filepath.Join(root, "deploy", "kubernetes", "crds", "*.yaml"))
	if err != nil {
		return err
	}
	return s.installCRDs(ctx, files, names)
}

// installCRDs installs those definitions in the files that have one of the
// names, or all; files may hold other objects too.
func (s *Server) installCRDs(ctx context.Context, files, names []string) error {
	var documents []string
	for _, f := range files {
		b, err := os.ReadFile(f)
		if err != nil {
			return err
		}
		documents = append(documents, string(b))
	}
	var installed []*unstructured.Unstructured
	err := s.each(documents, func(u *unstructured.Unstructured) error {
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
		return fmt.Errorf("install %v: only %d of them are in %v", names, len(installed), files)
	}
	for _, u := range installed {
		if err := until(ctx, u.GetName(), func(ctx context.Context) error { return s.served(ctx, u) }); err != nil {
			return err
		}
	}
	return nil
}

// served is nil if each version of a definition answers and discovery lists it,
// which may be some time later.
func (s *Server) served(ctx context.Context, crd *unstructured.Unstructured) error {
	return eachVersion(crd, func(resource schema.GroupVersionResource, kind schema.GroupVersionKind) error {
		if _, err := s.objects.Resource(resource).List(ctx, metav1.ListOptions{Limit: 1}); err != nil {
			return err
		}
		_, err := s.mapping(kind)
		return err
	})
}

// gone is nil if no version of a definition answers and discovery lists none,
// which may be some time after it is deleted.
func (s *Server) gone(ctx context.Context, crd *unstructured.Unstructured) error {
	s.mapper.Reset()
	return eachVersion(crd, func(resource schema.GroupVersionResource, kind schema.GroupVersionKind) error {
		if _, err := s.objects.Resource(resource).List(ctx, metav1.ListOptions{Limit: 1}); err == nil {
			return fmt.Errorf("%s still answers", resource)
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

// eachVersion calls f with each version that a definition serves.
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

// RemoveCRD deletes a definition by name, and with it all its objects, and
// waits until the API server knows it no more. One that is not there is removed.
func (s *Server) RemoveCRD(ctx context.Context, name string) error {
	crd, err := s.objects.Resource(crds).Get(ctx, name, metav1.GetOptions{})
	if err != nil {
		return ignoreNotFound(err)
	}
	if err := s.objects.Resource(crds).Delete(ctx, name, metav1.DeleteOptions{}); err != nil {
		return ignoreNotFound(err)
	}
	return until(ctx, name+" to go", func(ctx context.Context) error { return s.gone(ctx, crd) })
}
