package frontend_test

import (
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	. "meshlog.dev/services/mesh/meshtest"

	"meshlog.dev/proto/ident"
)

func TestPushStatusAndDump(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := newMesh(t)
		m.Publish(Put("a", Cluster("a", 1)), Put("b", Cluster("b", 1)))
		f := start(t, "f1", m)
		defer f.end()
		if st := f.server.Serving(); st.Version() != m.Last().Version() {
			t.Errorf("serving %v", st.Version())
		}
		one, two := f.connect(node("e1", "demo")), f.connect(node("e2", "demo"))
		one.ask(ident.CDS)
		one.ack(one.expect(ident.CDS, "a", "b"))
		two.ask(ident.CDS)
		first := two.expect(ident.CDS, "a", "b")
		synctest.Wait()

		status := f.server.PushStatus(10)
		if status.Version != m.Last().Version() || status.Published.IsZero() {
			t.Errorf("version %v, published %v", status.Version, status.Published)
		}
		if got := fmt.Sprint(status.Streams, status.Applied, status.Rejected, status.AllUnanswered, len(status.Unanswered)); got != "2 1 0 1 1" {
			t.Errorf("streams, applied, rejected, unanswered: %s", got)
		}
		if u := status.Unanswered[0]; u.Proxy != "e2" || u.Type != ident.CDS.String() || time.Since(u.Since) > time.Minute {
			t.Errorf("unanswered: %+v", u)
		}
		if got := len(f.server.PushStatus(0).Unanswered); got != 0 {
			t.Errorf("PushStatus(0) lists %d unanswered responses, want none", got)
		}
		two.nack(first, "b is bad")
		synctest.Wait()
		if status = f.server.PushStatus(10); status.Rejected != 1 {
			t.Errorf("%d streams with a rejection, want 1", status.Rejected)
		}

		var ids []string
		for r := range f.server.Proxies() {
			ids = append(ids, r.GetId())
		}
		if diff := cmp.Diff([]string{"e1", "e2"}, ids); diff != "" {
			t.Error(diff)
		}
		var dump []string
		for d := range f.server.Dump("e1", nil) {
			dump = append(dump, fmt.Sprintf("%s %s sent=%t applied=%t current=%t named=%t", d.Type, d.Name, d.Sent, d.Applied, d.Current,
				strings.Contains(string(d.Resource), `"`+d.Name+`"`)))
		}
		want := []string{"CDS a sent=true applied=true current=true named=true", "CDS b sent=true applied=true current=true named=true"}
		if diff := cmp.Diff(want, dump); diff != "" {
			t.Error(diff)
		}
		for d := range f.server.Dump("e3", nil) {
			t.Errorf("dump of an unknown proxy: %v", d)
		}
	})
}
