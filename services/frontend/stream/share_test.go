package stream_test

import (
	"fmt"
	"testing"

	"meshlog.dev/proto/ident"
	"meshlog.dev/services/frontend/content"
	"meshlog.dev/services/frontend/names"
	"meshlog.dev/services/frontend/stream"
)

// TestColdClientCostsNoPast checks that the stream of a new client does not read
// earlier versions: making them for a new class takes a hundred times as long as a
// response.
func TestColdClientCostsNoPast(t *testing.T) {
	for _, delta := range []bool{false, true} {
		t.Run(fmt.Sprintf("delta=%v", delta), func(t *testing.T) {
			v, all := bigMesh()
			newClientOf(stream.Config{Delta: delta, Past: func(func(content.View) bool) { t.Error("the stream looked at earlier versions") }}, v, all).connect()
		})
	}
}

// TestStreamsShareWhatTheyAreSent checks that streams of one class and
// subscription are sent the same slices, in first responses and in changes.
func TestStreamsShareWhatTheyAreSent(t *testing.T) {
	for _, delta := range []bool{false, true} {
		t.Run(fmt.Sprintf("delta=%v", delta), func(t *testing.T) {
			v, all := bigMesh()
			table := new(names.Table)
			one, two := newClient(table, v, all, delta), newClient(table, v, all, delta)
			same := func(what string) {
				t.Helper()
				a, ok := one.stream.Next(one.now)
				b, also := two.stream.Next(two.now)
				if !ok || !also || &a.Resources[0] != &b.Resources[0] || a.Memo == nil || a.Memo != b.Memo {
					t.Errorf("%s: %d and %d resources are not one list", what, len(a.Resources), len(b.Resources))
				}
				for _, c := range []*client{one, two} {
					c.answer(a)
				}
			}
			for _, typ := range []ident.ResourceType{ident.CDS, ident.EDS, ident.LDS, ident.RDS} { // each Secret has a response of its own
				for _, c := range []*client{one, two} {
					c.send(stream.Request{TypeURL: typ.URL(), Names: c.names[typ]})
				}
				same("first " + typ.String())
			}
			for i := range 3 {
				v = changed(v, all[i*100], i)
				one.stream.Update(one.now, v)
				two.stream.Update(two.now, v)
				same("changed endpoints")
			}
		})
	}
}
