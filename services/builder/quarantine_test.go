package builder

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/protobuf/proto"

	"meshlog.dev/events"
	"meshlog.dev/proto/ident"
	reportv1 "meshlog.dev/proto/meshlog/report/v1"
	snapshotv1 "meshlog.dev/proto/meshlog/snapshot/v1"
	"meshlog.dev/services/builder/jury"
	"meshlog.dev/services/mesh/index"
	"meshlog.dev/services/mesh/meshtest"
	"meshlog.dev/services/mesh/problem"
	"meshlog.dev/services/mesh/proxy"
	"meshlog.dev/services/mesh/world"
	"meshlog.dev/services/mesh/xds"
	"meshlog.dev/store"
	"meshlog.dev/store/memstore"
)

const release = "envoy 1.38.0"

// anything is a judge that accepts every value.
type anything struct{}

func (anything) Judge(ident.Key, ident.Value) (proto.Message, []problem.Diagnostic, bool) {
	return nil, nil, true
}
func (anything) Closed(ident.Key, ident.Value) (ident.Value, bool) { return ident.Value{}, false }

func (anything) Configures(string) bool { return true }
func (anything) Stages(string) bool     { return true }

func (anything) EndpointsOnly(ident.Key, *world.Object, *world.Object) bool { return false }
func (r *rig) pass(d time.Duration)                                         { r.mu.Lock(); r.now = r.now.Add(d); r.mu.Unlock() }
func (r *rig) leader(id string, file *memstore.File) *driver {
	c := r.config(id, "one", file)
	c.Judge = anything{}
	return r.start(c, true)
}

// cluster makes the source offer a cluster.
func (r *rig) cluster(name string, timeout int) {
	r.t.Helper()
	v, err := world.UnmarshalValue(meshtest.Put(name, meshtest.Cluster(name, timeout)).Row().Value)
	if err != nil {
		r.t.Fatal(err)
	}
	k, p := meshtest.Key(name), ident.Value{Type: v.Type, Bytes: v.Bytes}
	r.offered[k] = p
	r.object(k, events.Put, p)
}

// rejecting returns a leader that has published a second version of the cluster b.
func rejecting(t *testing.T) (*rig, *driver) {
	t.Helper()
	r := newRig(t)
	d := r.leader("b0", &memstore.File{})
	d.settle()
	r.list()
	r.cluster("a", 1)
	r.cluster("b", 1)
	d.settle()
	r.cluster("b", 2)
	d.settle()
	r.pass(time.Minute)
	return r, d
}

// made returns the sum of a cluster as generated for a proxy in a version, and the
// proxy's class.
func (r *rig) made(v ident.Position, name string) (xds.Sum, index.ProxyClass) {
	r.t.Helper()
	at, err := r.chain.Fetch(r.t.Context(), v)
	if err != nil {
		r.t.Fatal(err)
	}
	change := world.Change{Reset: true}
	for row := range at.Snapshot.Rows() {
		change.Rows = append(change.Rows, world.RowChange{Row: row.Key, Value: row.Value})
	}
	w, _, err := world.NewWorld().Apply(change)
	if err != nil {
		r.t.Fatal(err)
	}
	pc := index.NewPushContext(w)
	class := index.Classify(pc, &proxy.Proxy{ID: "p"}).Only(ident.CDS)
	made := xds.NewCatalog(pc).Set(class, ident.CDS).Find(name)
	if made == nil {
		r.t.Fatalf("version %s has no cluster %s", v, name)
	}
	return made.Sum, class
}

// verdict returns a verdict about the cluster b as it is in the head.
func (r *rig) verdict() *reportv1.Verdict {
	r.t.Helper()
	all := r.versions()
	head, before := store.VersionOf(all[len(all)-1].GetVersion()), store.VersionOf(all[len(all)-1].GetPrevious())
	sum, class := r.made(head, "b")
	good, _ := r.made(before, "b")
	return &reportv1.Verdict{
		TypeUrl: ident.CDS.URL(), Name: "b", Sum: sum[:], Client: release, Class: class.Encode(), Message: "it is bad",
		GoodSum: good[:], Good: store.VersionProto(before),
	}
}

// quarantined returns a short text for each quarantine.
func quarantined(d *driver) (all []string) {
	d.r.t.Helper()
	for _, q := range d.Report().GetQuarantines() {
		text := fmt.Sprintf("%s of %s: %s", q.GetName(), q.GetClient(), q.GetReason())
		if q.GetLastGood() {
			text += ", last good"
		}
		all = append(all, text)
	}
	return all
}

// hear delivers a frontend's verdicts to the builder.
func (d *driver) hear(frontend string, v ...*reportv1.Verdict) {
	d.r.t.Helper()
	d.Heard(&reportv1.FrontendReport{Frontend: frontend, Verdicts: v})
	if err := d.Quarantine(d.r.t.Context()); err != nil {
		d.r.t.Fatal(err)
	}
	d.settle()
}

func with(v *reportv1.Verdict, applied, undecided uint32, rejectedBy ...string) *reportv1.Verdict {
	return &reportv1.Verdict{
		TypeUrl: v.GetTypeUrl(), Name: v.GetName(), Sum: v.GetSum(), Client: v.GetClient(), Class: v.GetClass(), Message: v.GetMessage(),
		GoodSum: v.GetGoodSum(), Good: v.GetGood(),
		Applied: applied, Undecided: undecided, Rejected: uint32(len(rejectedBy)), Rejectors: rejectors(rejectedBy),
	}
}

// TestConfirm lists the verdicts that put a resource into quarantine, and those
// that do not.
func TestConfirm(t *testing.T) {
	const at, later = "b of " + release + ": it is bad, last good", 3 * time.Second
	for _, test := range []struct {
		name        string
		hear        func(d *driver, v *reportv1.Verdict)
		now, waited bool // in quarantine at once, and after a while
	}{
		{"two reject it", func(d *driver, v *reportv1.Verdict) { d.hear("f0", with(v, 0, 0, "p1", "p2")) }, true, true},
		{"the only one rejects it", func(d *driver, v *reportv1.Verdict) { d.hear("f0", with(v, 0, 0, "p1")) }, true, true},
		{"one of two rejects it", func(d *driver, v *reportv1.Verdict) { d.hear("f0", with(v, 0, 1, "p1")) }, false, false},
		{"one has it", func(d *driver, v *reportv1.Verdict) { d.hear("f0", with(v, 1, 0, "p1", "p2")) }, false, false},
		{"some have not answered", func(d *driver, v *reportv1.Verdict) { d.hear("f0", with(v, 0, 3, "p1", "p2")) }, false, true},
		{"two of two frontends", func(d *driver, v *reportv1.Verdict) {
			d.hear("f1", with(v, 0, 1))
			d.hear("f0", with(v, 0, 0, "p1"))
			d.hear("f1", with(v, 0, 0, "p2"))
		}, true, true},
		{"one has it elsewhere", func(d *driver, v *reportv1.Verdict) {
			d.hear("f1", with(v, 1, 0))
			d.hear("f0", with(v, 0, 0, "p1", "p2"))
		}, false, false},
		{"a frontend does not report it", func(d *driver, v *reportv1.Verdict) {
			d.hear("f1")
			d.hear("f0", with(v, 0, 0, "p1", "p2"))
		}, false, true},
		{"that frontend goes away", func(d *driver, v *reportv1.Verdict) {
			d.hear("f1")
			d.Heard(&reportv1.FrontendReport{Frontend: "f1", Leaving: true})
			d.hear("f0", with(v, 0, 0, "p1", "p2"))
		}, true, true},
		{"that frontend has been silent", func(d *driver, v *reportv1.Verdict) {
			d.hear("f1")
			d.r.pass(time.Minute)
			d.hear("f0", with(v, 0, 0, "p1", "p2"))
		}, true, true},
		{"not all frontends are known", func(d *driver, v *reportv1.Verdict) {
			*d.jury = *jury.New(d.draft.gate, d.r.clock(), d.cfg.Logger)
			d.hear("f0", with(v, 0, 0, "p1", "p2"))
		}, false, true},
		{"it is not served", func(d *driver, v *reportv1.Verdict) {
			v.Sum = make([]byte, 16)
			d.hear("f0", with(v, 0, 0, "p1", "p2"))
		}, false, false},
		{"its class is not known", func(d *driver, v *reportv1.Verdict) {
			v.Class = []byte("{}")
			d.hear("f0", with(v, 0, 0, "p1", "p2"))
		}, false, false},
		{"the proxies no longer reject it", func(d *driver, v *reportv1.Verdict) {
			d.hear("f0", with(v, 0, 3, "p1", "p2"))
			d.hear("f0")
		}, false, false},
	} {
		t.Run(test.name, func(t *testing.T) {
			r, d := rejecting(t)
			test.hear(d, r.verdict())
			for _, is := range []bool{test.now, test.waited} {
				want := []string{at}
				if !is {
					want = nil
				}
				if diff := cmp.Diff(want, quarantined(d)); diff != "" {
					t.Errorf("in quarantine (-want +got):\n%s", diff)
				}
				r.pass(later)
				if err := d.Tick(t.Context()); err != nil {
					t.Fatal(err)
				}
				d.settle()
			}
		})
	}
}

// The leader announces a suspect at once, and for as long as one proxy rejects it.
func TestSuspectsAreAnnounced(t *testing.T) {
	r, d := rejecting(t)
	v := r.verdict()
	announced := func() (names []string) {
		for _, s := range r.fleet.tick.GetSuspects() {
			names = append(names, s.GetName()+" of "+s.GetClient())
		}
		return names
	}
	d.hear("f0", with(v, 1, 0, "p1"))
	if diff := cmp.Diff([]string{"b of " + release}, announced()); diff != "" {
		t.Errorf("announced (-want +got):\n%s", diff)
	}
	d.hear("f0")
	if err := d.Tick(t.Context()); err != nil {
		t.Fatal(err)
	}
	if got := announced(); got != nil {
		t.Errorf("announced: %v", got)
	}
}

// A quarantine ends when the rejected content changes, and not before.
func TestQuarantineEnds(t *testing.T) {
	r, d := rejecting(t)
	d.hear("f0", with(r.verdict(), 0, 0, "p1", "p2"))
	tick := func() {
		t.Helper()
		if err := d.Tick(t.Context()); err != nil {
			t.Fatal(err)
		}
		d.settle()
	}
	stands := func(what string, want int) {
		t.Helper()
		tick()
		if got := quarantined(d); len(got) != want {
			t.Errorf("%s: in quarantine: %v", what, got)
		}
	}
	stands("nothing happens", 1)
	if all := d.Report().GetDiagnostics(); !slices.ContainsFunc(all, func(d *snapshotv1.Diagnostic) bool {
		return d.GetCode() == "quarantined" && d.GetObject() == "Cluster b" && strings.Contains(d.GetReason(), "it is bad")
	}) {
		t.Errorf("diagnostics: %v", all)
	}
	r.cluster("a", 2)
	d.settle()
	stands("another resource changes", 1)
	r.cluster("b", 2)
	r.list()
	d.settle()
	stands("the same content is offered again", 1)
	r.cluster("b", 3)
	d.settle()
	stands("another content is offered", 0)
	d.hear("f0")
	r.cluster("b", 2)
	d.settle()
	stands("the content is back", 0)
	d.hear("f0", with(r.verdict(), 0, 0, "p1", "p2"))
	stands("it is rejected again", 1)
	// An operator lifts the quarantine, so the content is sent once more.
	r.append(&events.Overlay{ID: d.Report().GetQuarantines()[0].GetId(), Remove: true})
	d.Heard(&reportv1.FrontendReport{Frontend: "f0"})
	d.settle()
	stands("approved", 0)
	d.hear("f0", with(r.verdict(), 0, 0, "p1", "p2"))
	stands("approved and rejected again", 1)
	if n := d.stats.Quarantines; n != 3 {
		t.Errorf("%d quarantines were made", n)
	}
}

// A quarantine serves the content that the class had before, if that content is
// known, and otherwise omits the resource.
func TestLastGood(t *testing.T) {
	for _, test := range []struct {
		name   string
		change func(v *reportv1.Verdict)
		want   bool
	}{
		{"they had good content", func(*reportv1.Verdict) {}, true},
		{"they had nothing", func(v *reportv1.Verdict) { v.Good, v.GoodSum = nil, nil }, false},
		{"they had something else", func(v *reportv1.Verdict) { v.GoodSum = make([]byte, 16) }, false},
		{"in an unknown version", func(v *reportv1.Verdict) { v.Good = store.VersionProto(ident.Position{Epoch: 1, Seq: 1}) }, false},
	} {
		r, d := rejecting(t)
		v := r.verdict()
		test.change(v)
		d.hear("f0", with(v, 0, 0, "p1", "p2"))
		q := d.Report().GetQuarantines()
		if len(q) != 1 || q[0].GetLastGood() != test.want {
			t.Errorf("%s: in quarantine: %v", test.name, q)
		}
	}
}

// Two leaders with the same verdicts make the same quarantine.
func TestTwoLeadersQuarantine(t *testing.T) {
	r, d := rejecting(t)
	v := with(r.verdict(), 0, 0, "p1", "p2")
	other := r.leader("b1", &memstore.File{})
	other.settle()
	r.pass(time.Minute)
	for _, d := range []*driver{d, other} {
		d.Heard(&reportv1.FrontendReport{Frontend: "f0", Verdicts: []*reportv1.Verdict{v}})
		if err := d.Quarantine(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	d.settle()
	other.settle()
	if got, want := quarantined(d), quarantined(other); len(got) != 1 || !slices.Equal(got, want) {
		t.Errorf("in quarantine: %v, and %v", got, want)
	}
}

// At most MaxQuarantines resources are in quarantine. If more are rejected, a
// diagnostic reports it.
func TestQuarantinesAreBounded(t *testing.T) {
	r, d := rejecting(t)
	var verdicts []*reportv1.Verdict
	for i := range jury.MaxQuarantines + 5 {
		v := with(r.verdict(), 0, 0, fmt.Sprint("p", i), fmt.Sprint("q", i))
		v.Client = fmt.Sprintf("envoy 1.%d", i)
		verdicts = append(verdicts, v)
	}
	for range 12 {
		d.hear("f0", verdicts...)
	}
	if got := quarantined(d); len(got) != jury.MaxQuarantines {
		t.Errorf("%d are in quarantine", len(got))
	}
	if !slices.ContainsFunc(d.Report().GetDiagnostics(), func(d *snapshotv1.Diagnostic) bool { return d.GetCode() == "quarantines" }) {
		t.Error("no diagnostic says that there are too many")
	}
}

// A client that invents user agents and node ids fills a tenth of the quarantine;
// others find room in it (XDS-5).
func TestOneClientFillsNoQuarantine(t *testing.T) {
	for name, from := range map[string]*reportv1.Rejector{
		"one identity": {Identity: "spiffe://mesh/ns/shop/sa/web"}, "one address": {Address: "10.0.0.1"},
	} {
		r, d := rejecting(t)
		var verdicts []*reportv1.Verdict
		for i := range 100 {
			v := with(r.verdict(), 0, 0, "x")
			v.Client = fmt.Sprintf("invented %03d", i)
			v.Rejectors = nil
			for n := range 2 {
				v.Rejectors = append(v.Rejectors, &reportv1.Rejector{Proxy: fmt.Sprint("node ", i, n), Identity: from.GetIdentity(), Address: from.GetAddress()})
				if from.GetIdentity() != "" {
					v.Rejectors[n].Address = fmt.Sprint("10.0.", i, ".", n)
				}
			}
			verdicts = append(verdicts, v)
		}
		for range 3 {
			d.hear("f0", verdicts...)
			r.pass(3 * time.Second)
		}
		if got := quarantined(d); len(got) != jury.MaxByOne {
			t.Errorf("%s holds %d entries of the quarantine, want %d", name, len(got), jury.MaxByOne)
		}
		if !slices.ContainsFunc(d.Report().GetDiagnostics(), func(d *snapshotv1.Diagnostic) bool {
			return d.GetCode() == "quarantines" && strings.Contains(d.GetReason(), from.GetIdentity()+from.GetAddress())
		}) {
			t.Errorf("no diagnostic names %s: %v", name, d.Report().GetDiagnostics())
		}
		d.hear("f0", append(verdicts, with(r.verdict(), 0, 0, "p1", "p2"))...)
		if got := quarantined(d); len(got) != jury.MaxByOne+1 {
			t.Errorf("%s: what others reject is not in quarantine: %v", name, got)
		}
	}
}

// Two proxies behind one address count as one: it is believed if it is all there
// is, and not while others have not answered (XDS-5).
func TestProxiesOfOnePlace(t *testing.T) {
	for undecided, want := range map[uint32]int{0: 1, 1: 0} {
		r, d := rejecting(t)
		v := with(r.verdict(), 0, undecided, "p1", "p2")
		v.Rejectors[0].Address, v.Rejectors[1].Address = "10.0.0.1", "10.0.0.1"
		d.hear("f0", v)
		r.pass(3 * time.Second)
		d.hear("f0", v)
		if got := quarantined(d); len(got) != want {
			t.Errorf("%d proxies have not answered; in quarantine: %v", undecided, got)
		}
	}
}

// What proxies reject over one protocol still reaches those of the same version
// that use the other one (PRO-5).
func TestQuarantineNamesTheProtocol(t *testing.T) {
	r, d := rejecting(t)
	rejected, applied := with(r.verdict(), 0, 0, "p1", "p2"), with(r.verdict(), 2, 0)
	rejected.Client = (&proxy.Proxy{UserAgent: "envoy 1.40.0"}).Client()
	applied.Client = (&proxy.Proxy{UserAgent: "envoy 1.40.0", Delta: true}).Client()
	applied.Class = nil
	d.hear("f0", rejected, applied)
	if got := quarantined(d); len(got) != 1 || !strings.Contains(got[0], "envoy 1.40.0 (state of the world)") {
		t.Errorf("in quarantine: %v", got)
	}
}

// rejectors returns proxies that reject, each in a place of its own.
func rejectors(ids []string) (all []*reportv1.Rejector) {
	for _, id := range ids {
		all = append(all, &reportv1.Rejector{Proxy: id, Address: id})
	}
	return all
}
