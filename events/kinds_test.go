package events

import "testing"

func TestKinds(t *testing.T) {
	some := KindsOf("Service", "Pod", "Service")
	for _, test := range []struct {
		kinds Kinds
		kind  string
		want  bool
	}{
		{nil, "Pod", true},
		{Kinds{}, "Pod", true},
		{some, "Pod", true},
		{some, "Service", true},
		{some, "Node", false},
		{some, "Z", false},
	} {
		if got := test.kinds.Cover(test.kind); got != test.want {
			t.Errorf("%v cover %s: %t", test.kinds, test.kind, got)
		}
	}
	if !some.Equal(KindsOf("Pod", "Service")) || some.Equal(nil) || !Kinds(nil).Equal(KindsOf()) {
		t.Error("equal kinds differ, or others do not")
	}
}
