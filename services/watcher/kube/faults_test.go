package kube

import (
	"fmt"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/rest"

	networking "istio.io/api/networking/v1alpha3"
	"meshlog.dev/deploy/testkit/kubetest"
	"meshlog.dev/services/mesh/kind"
	"meshlog.dev/services/watcher/kube/apiserver"
)

// through returns a proxy to the server, until the test ends.
func through(t *testing.T, s *kubetest.Server) (*kubetest.Proxy, *rest.Config) {
	t.Helper()
	p, err := s.Proxy(s.Config())
	must(t, err)
	t.Cleanup(p.Close)
	return p, p.Config()
}

// fail answers requests for a resource with an error.
func fail(resource string, code int) func(http.ResponseWriter, *http.Request) bool {
	return func(w http.ResponseWriter, r *http.Request) bool {
		if !strings.HasSuffix(r.URL.Path, "/"+resource) {
			return false
		}
		http.Error(w, "broken", code)
		return true
	}
}

func testFailing(t *testing.T, s *kubetest.Server) {
	p, c := through(t, s)
	p.Intercept(fail("virtualservices", http.StatusInternalServerError))
	w, _ := observe(t, c)
	w.lists("Service", "Pod", "ServiceEntry")
	if w.kinds["VirtualService"] {
		t.Error("the listing names a kind that cannot be read")
	}
	w.says("kind VirtualService", "unreadable")
	p.Intercept(nil)
	w.lists("VirtualService")
	w.isWell("kind VirtualService")
	// A failing kind is reported and loses no objects.
	p.Intercept(fail("virtualservices", http.StatusInternalServerError))
	p.Cut()
	w.says("kind VirtualService", "unreadable")
	w.has("VirtualService shop/cart")
	p.Intercept(nil)
	w.isWell("kind VirtualService")
	w.has("VirtualService shop/cart")
	w.neverDeleted()
}

func testHangs(t *testing.T, s *kubetest.Server) {
	p, c := through(t, s)
	w, _ := observe(t, c)
	w.lists("Service")
	p.Hang()
	w.until("the source to be down", func() bool { return w.down != nil })
	p.Resume()
	w.lists("Service")
	w.neverDeleted()
}

func testCut(t *testing.T, s *kubetest.Server) {
	p, c := through(t, s)
	w, _ := observe(t, c)
	w.lists("ServiceEntry")
	for i := range 5 {
		p.Cut()
		must(t, s.Apply(t.Context(), serviceEntry(fmt.Sprint("c", i))))
		w.has(fmt.Sprint("ServiceEntry shop/c", i))
	}
	w.neverDeleted()
	for i := range 5 {
		must(t, s.Delete(t.Context(), serviceEntry(fmt.Sprint("c", i))))
	}
}

// testWatchHangs: the API server answers, but one watch brings no events.
func testWatchHangs(t *testing.T, s *kubetest.Server) {
	p, c := through(t, s)
	hang := make(chan struct{})
	var hung bool
	p.Intercept(func(_ http.ResponseWriter, r *http.Request) bool {
		if !strings.HasSuffix(r.URL.Path, "/serviceentries") || r.URL.Query().Get("watch") == "" || hung {
			return false
		}
		hung = true
		select {
		case <-hang:
		case <-r.Context().Done():
		}
		return true
	})
	defer close(hang)
	w, _ := observe(t, c, func(_ *Config, l *limits) { l.Idle, l.Silence = 300*time.Millisecond, 500*time.Millisecond })
	w.lists("Service", "ServiceEntry")
	must(t, s.Apply(t.Context(), serviceEntry("h")))
	w.has("ServiceEntry shop/h")
	must(t, s.Delete(t.Context(), serviceEntry("h")))
	w.lacks("ServiceEntry shop/h")
}

const empty = `{"apiVersion":"networking.istio.io/v1","kind":"ServiceEntryList","metadata":{"resourceVersion":"1"},"items":[]}`

// testEmptyList: after an outage, the API server returns an empty list for a while.
func testEmptyList(t *testing.T, s *kubetest.Server) {
	for i := range 3 {
		must(t, s.Apply(t.Context(), serviceEntry(fmt.Sprint("e", i))))
	}
	p, c := through(t, s)
	w, _ := observe(t, c)
	w.lists("ServiceEntry")
	lists := 0
	p.Intercept(func(rw http.ResponseWriter, r *http.Request) bool {
		if !strings.HasSuffix(r.URL.Path, "/serviceentries") || lists >= 3 {
			return false
		}
		if r.URL.Query().Get("watch") != "" {
			http.Error(rw, "no streams", http.StatusInternalServerError)
			return true
		}
		lists++
		rw.Header().Set("Content-Type", "application/json")
		_, _ = rw.Write([]byte(empty))
		return true
	})
	p.Cut()
	w.says("kind ServiceEntry", "doubted")
	w.isWell("kind ServiceEntry")
	w.has("ServiceEntry shop/e0", "ServiceEntry shop/e1", "ServiceEntry shop/e2")
	w.neverDeleted()
	for i := range 3 {
		must(t, s.Delete(t.Context(), serviceEntry(fmt.Sprint("e", i))))
	}
	w.lacks("ServiceEntry shop/e0", "ServiceEntry shop/e1", "ServiceEntry shop/e2")
}

// testEmptyLists: an empty list after an error does not confirm an empty list before it.
func testEmptyLists(t *testing.T, s *kubetest.Server) {
	must(t, s.Apply(t.Context(), serviceEntry("e")))
	p, c := through(t, s)
	const doubt = 100 * time.Millisecond
	w, _ := observe(t, c, func(_ *Config, l *limits) { l.Doubt = doubt })
	w.lists("ServiceEntry")
	var mu sync.Mutex
	var first time.Time // time of the last empty list
	again := make(chan struct{})
	p.Intercept(func(rw http.ResponseWriter, r *http.Request) bool {
		if !strings.HasSuffix(r.URL.Path, "/serviceentries") {
			return false
		}
		mu.Lock()
		defer mu.Unlock()
		select {
		case <-again:
			return false
		default:
		}
		if r.URL.Query().Get("watch") != "" || !first.IsZero() && time.Since(first) < 2*doubt {
			http.Error(rw, "broken", http.StatusInternalServerError)
			return true
		}
		if !first.IsZero() {
			close(again)
		}
		first = time.Now()
		rw.Header().Set("Content-Type", "application/json")
		_, _ = rw.Write([]byte(empty))
		return true
	})
	p.Cut()
	w.says("kind ServiceEntry", "doubted")
	<-again
	must(t, s.Apply(t.Context(), serviceEntry("f")))
	w.has("ServiceEntry shop/e", "ServiceEntry shop/f")
	w.neverDeleted()
	must(t, s.Delete(t.Context(), serviceEntry("e"), serviceEntry("f")))
	w.lacks("ServiceEntry shop/e", "ServiceEntry shop/f")
}

// testGone: watches cannot be resumed because the history is compacted.
func testGone(t *testing.T, s *kubetest.Server) {
	p, c := through(t, s)
	w, _ := observe(t, c)
	w.lists("ServiceEntry")
	p.Intercept(func(rw http.ResponseWriter, r *http.Request) bool {
		q := r.URL.Query()
		if q.Get("watch") == "" || q.Get("sendInitialEvents") != "" || !strings.HasSuffix(r.URL.Path, "/serviceentries") {
			return false
		}
		expired(rw)
		return true
	})
	p.Cut()
	must(t, s.Apply(t.Context(), serviceEntry("g")))
	w.has("ServiceEntry shop/g")
	w.neverDeleted()
	must(t, s.Delete(t.Context(), serviceEntry("g")))
	w.lacks("ServiceEntry shop/g")
}

// pager counts the lists of ServiceEntries and limits their pages to two objects.
type pager struct {
	streamless atomic.Bool // refuse streamed lists
	breaks     atomic.Bool // the next watch breaks off
	expires    atomic.Bool // the token of the next second page has expired

	pages, whole atomic.Int64
}

func (c *pager) intercept(rw http.ResponseWriter, r *http.Request) bool {
	q := r.URL.Query()
	watches, streams := q.Get("watch") != "", q.Get("sendInitialEvents") != ""
	switch {
	case !strings.HasSuffix(r.URL.Path, "/serviceentries"):
	case streams && c.streamless.Load(), watches && !streams && c.breaks.CompareAndSwap(true, false):
		http.Error(rw, "broken", http.StatusInternalServerError)
		return true
	case watches:
	case q.Get("limit") == "":
		c.whole.Add(1)
	case q.Get("continue") != "" && c.expires.CompareAndSwap(true, false):
		expired(rw)
		return true
	default:
		c.pages.Add(1)
		q.Set("limit", "2")
		r.URL.RawQuery = q.Encode()
	}
	return false
}

// testPages: without streams, lists have pages, the first time and later. If the token of
// the second page has expired, the watcher lists again.
func testPages(t *testing.T, s *kubetest.Server) {
	for i := range 5 {
		must(t, s.Apply(t.Context(), serviceEntry(fmt.Sprint("p", i))))
	}
	p, c := through(t, s)
	var counts pager
	counts.expires.Store(true)
	counts.streamless.Store(true)
	p.Intercept(counts.intercept)
	w, stop := observe(t, c)
	w.lists("ServiceEntry")
	w.has("ServiceEntry shop/p0", "ServiceEntry shop/p4")
	stop()
	if pages, whole := counts.pages.Load(), counts.whole.Load(); pages != 1 || whole != 1 {
		t.Errorf("%d pages and %d lists in one piece, want the first page and, after it, everything", pages, whole)
	}

	counts.pages.Store(0)
	counts.whole.Store(0)
	counts.streamless.Store(false)
	w, _ = observe(t, c)
	w.lists("ServiceEntry")
	if n := counts.pages.Load() + counts.whole.Load(); n != 0 {
		t.Errorf("%d lists instead of a stream", n)
	}
	must(t, s.Delete(t.Context(), serviceEntry("p4")))
	w.lacks("ServiceEntry shop/p4")
	counts.streamless.Store(true)
	counts.breaks.Store(true)
	p.Cut()
	must(t, s.Apply(t.Context(), serviceEntry("p5")))
	w.has("ServiceEntry shop/p5", "ServiceEntry shop/p0", "ServiceEntry shop/p3")
	if pages, whole := counts.pages.Load(), counts.whole.Load(); pages < 2 || whole != 0 {
		t.Errorf("listed again: %d pages, %d lists in one piece", pages, whole)
	}
	for i := range 6 {
		must(t, s.Delete(t.Context(), serviceEntry(fmt.Sprint("p", i))))
	}
}

// expired answers that the resource version is too old.
func expired(rw http.ResponseWriter) {
	rw.Header().Set("Content-Type", "application/json")
	rw.WriteHeader(http.StatusGone)
	_, _ = rw.Write([]byte(`{"kind":"Status","apiVersion":"v1","status":"Failure","reason":"Expired","code":410,"message":"too old resource version"}`))
}

func testDefinition(t *testing.T, s *kubetest.Server) { definitionGoes(t, s, s.Config()) }

func definitionGoes(t *testing.T, s *kubetest.Server, access *rest.Config) {
	ctx := t.Context()
	w, _ := observe(t, access)
	w.lists("VirtualService")
	w.has("VirtualService shop/cart")
	must(t, s.RemoveCRD(ctx, virtualServices))
	w.until("a listing without routes", func() bool { return w.kinds != nil && !w.kinds["VirtualService"] })
	w.until("routes to be missed", func() bool {
		ds := w.problems["kinds"]
		return len(ds) == 1 && strings.Contains(ds[0].Reason, "VirtualService")
	})
	w.has("VirtualService shop/cart")
	must(t, s.InstallIstioCRDs(ctx, virtualServices), s.Apply(ctx, strings.ReplaceAll(route, "3s", "4s")))
	w.lists("VirtualService")
	w.until("the new route", func() bool {
		o := w.objects["VirtualService shop/cart"]
		k, _ := kind.ByName("VirtualService")
		m, err := k.Decode(o.Value.Type, o.Value.Bytes)
		return err == nil && m.(*networking.VirtualService).GetHttp()[0].GetTimeout().GetSeconds() == 4
	})
	w.neverDeleted()
}

// testDefinitionGoing: a definition is being removed; some of its objects are gone, and a
// finalizer keeps others. A watcher that starts now treats the kind like a watcher that
// saw the removal begin.
func testDefinitionGoing(t *testing.T, s *kubetest.Server) {
	ctx := t.Context()
	held := strings.NewReplacer("{name: cart,", "{name: held, finalizers: [example.com/hold],").Replace(route)
	must(t, s.Apply(ctx, held))
	before, stop := observe(t, s.Config())
	before.has("VirtualService shop/cart", "VirtualService shop/held")
	d, err := dynamic.NewForConfig(s.Config())
	must(t, err)
	must(t, d.Resource(apiserver.Definitions.GroupVersionResource).Delete(ctx, virtualServices, metav1.DeleteOptions{}))
	before.until("a listing without routes", func() bool { return before.kinds != nil && !before.kinds["VirtualService"] })
	before.has("VirtualService shop/cart", "VirtualService shop/held")
	before.neverDeleted()
	stop()
	after, stop := observe(t, s.Config())
	after.lists("Service")
	if after.kinds["VirtualService"] {
		t.Error("the listing names a kind whose definition is being removed")
	}
	stop()
	must(t, s.Apply(ctx, strings.ReplaceAll(held, "[example.com/hold]", "[]")))
	must(t, s.RemoveCRD(ctx, virtualServices))
	must(t, s.InstallIstioCRDs(ctx, virtualServices), s.Apply(ctx, route))
}
