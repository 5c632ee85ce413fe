package kind_test

import (
	"bytes"
	"fmt"
	"reflect"
	"testing"

	networking "istio.io/api/networking/v1alpha3"

	"meshlog.dev/services/mesh/kind"
)

// Endpoints with equal labels share the map, and the decoded message equals the
// encoded one.
func TestLabelsAreShared(t *testing.T) {
	k, _ := kind.ByName("ServiceEntry")
	entry := &networking.ServiceEntry{}
	for i := range 40 {
		e := &networking.WorkloadEntry{Address: fmt.Sprintf("10.0.0.%d", i)}
		if i%4 > 0 {
			e.Labels = map[string]string{"app": "shop", "version": fmt.Sprint(i % 4)}
		}
		entry.Endpoints = append(entry.Endpoints, e)
	}
	b, err := k.Encode(entry)
	if err != nil {
		t.Fatal(err)
	}
	m, err := k.Decode(k.TypeURL, b)
	if err != nil {
		t.Fatal(err)
	}
	distinct := map[uintptr]bool{}
	for _, e := range m.(*networking.ServiceEntry).GetEndpoints() {
		distinct[reflect.ValueOf(e.GetLabels()).Pointer()] = true
	}
	if len(distinct) != 4 { // no labels, and three versions
		t.Errorf("%d maps of labels, want 4", len(distinct))
	}
	again, err := k.Encode(m)
	if err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(again, b) {
		t.Error("the message differs from the one that was encoded")
	}
}
