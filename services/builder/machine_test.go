package builder

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"math"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"meshlog.dev/events"
	"meshlog.dev/proto/ident"
	"meshlog.dev/store"
	"meshlog.dev/store/memstore"
)

func wantServed(t *testing.T, r *rig, want map[string]string) {
	t.Helper()
	if diff := cmp.Diff(want, r.served()); diff != "" {
		t.Errorf("content of the head (-want +got):\n%s", diff)
	}
}

func TestNothingIsPublishedBeforeASourceHasListed(t *testing.T) {
	r := newRig(t)
	b := r.start(r.config("b0", "one", &memstore.File{}), true)
	b.settle()
	r.offered[key("a")] = ident.Value{Type: "type.test/thing", Bytes: []byte("good 1")}
	r.session++
	r.append(&events.Begin{Shard: shard, Session: r.sessionName(), Holder: "test"})
	r.object(key("a"), events.Put, r.offered[key("a")])
	b.settle()
	if got := r.versions(); len(got) != 0 {
		t.Fatalf("published %v while the source still lists", got)
	}
	r.alive(events.AllBuckets())
	b.settle()
	wantServed(t, r, map[string]string{"a": "good 1"})
}

func TestAVersionNamesWhatChangedAndWhy(t *testing.T) {
	r, b := servingA(t)
	r.put("a", "good 2")
	r.put("bad", "spoilt")
	b.settle()
	all := r.versions()
	last := all[len(all)-1]
	changes := last.GetChanges()
	if len(changes) != 1 || changes[0].GetKey() != "v/file/default/Thing/default/a" || changes[0].GetSeq() != last.GetVersion().GetSeq()-1 {
		t.Errorf("changes = %v, want key a by the record before the version's last", changes)
	}
	if ds := last.GetDiagnostics(); len(ds) == 0 || ds[0].GetObject() != "Thing default/bad (file/default)" || ds[0].GetReason() != "not good" {
		t.Errorf("diagnostics = %v, want the one about bad first", ds)
	}
	if len(last.GetWatermark()) != 1 || !last.GetWatermark()[0].GetSynced() {
		t.Errorf("watermark = %v, want file/default synced", last.GetWatermark())
	}
}

func TestOnlyAChangedWorldIsPublished(t *testing.T) {
	r, b := servingA(t)
	n := len(r.versions())
	r.alive(events.BucketSet{})
	r.put("a", "good 1")
	b.settle()
	if got := len(r.versions()); got != n {
		t.Errorf("%d versions after events that change nothing, want %d", got, n)
	}
}

// accident simulates a crash or a lost answer during one call.
type accident func(do func() error) error

var errLost = errors.New("the answer was lost")

type faultyFeed struct {
	Feed
	publish accident
}

func (f *faultyFeed) Publish(ctx context.Context, u store.Update, expect, gen uint64) (seq uint64, err error) {
	err = f.publish(func() (err error) {
		seq, err = f.Feed.Publish(ctx, u, expect, gen)
		return err
	})
	return seq, err
}

type faultyStore struct {
	store.Store
	commit accident
}

func (f *faultyStore) Commit(ctx context.Context, prev ident.Position, c store.Commit) error {
	return f.commit(func() error { return f.Store.Commit(ctx, prev, c) })
}

// TestCommitCrashPairs fails each step of a commit in both ways: the step is not
// done, or it is done but its answer is lost.
func TestCommitCrashPairs(t *testing.T) {
	whole := func(do func() error) error { return do() }
	never := func(func() error) error { return errLost }
	unknown := func(do func() error) error { return errors.Join(do(), errLost) }
	for _, c := range []struct {
		name            string
		publish, commit accident
	}{
		{"publish fails", never, whole},
		{"publish succeeds, the answer is lost", unknown, whole},
		{"the file fails", whole, never},
		{"the file succeeds, the answer is lost", whole, unknown},
	} {
		t.Run(c.name, func(t *testing.T) {
			r := newRig(t)
			file := &memstore.File{}
			config := r.config("b0", "one", file)
			feed, files := &faultyFeed{config.Feed, whole}, &faultyStore{config.Store, whole}
			config.Feed, config.Store = feed, files
			b := r.start(config, true)
			b.settle()
			r.list()
			r.put("a", "good 1")
			b.settle()

			feed.publish, files.commit = c.publish, c.commit
			r.put("a", "good 2")
			_ = b.step() // the step fails, or its answer is lost; then the process dies
			b = r.start(r.config("b0", "one", file), true)
			b.settle()
			wantServed(t, r, map[string]string{"a": "good 2"})
			r.put("a", "good 3")
			b.settle()
			wantServed(t, r, map[string]string{"a": "good 3"})
			r.versions()
			kept, err := memstore.Open(file, store.Retention{}).Latest(t.Context())
			if head, _ := r.chain.Head(t.Context()); err != nil || kept.Version() != head.Version() {
				t.Errorf("the file has %v (%v), the head is %v", kept.Version(), err, head.Version())
			}
		})
	}
}

func TestTwoLeadersMakeOneChain(t *testing.T) {
	r := newRig(t)
	a := r.start(r.config("b0", "one", &memstore.File{}), true)
	b := r.start(r.config("b1", "one", &memstore.File{}), true)
	a.settle()
	r.list()
	for i := range 20 {
		r.put("a", fmt.Sprintf("good %d", i))
		first, second := a, b
		if i%3 == 0 {
			first, second = b, a
		}
		for range 3 {
			if err := first.step(); err != nil {
				t.Fatal(err)
			}
			if err := second.step(); err != nil {
				t.Fatal(err)
			}
		}
	}
	a.settle()
	b.settle()
	wantServed(t, r, map[string]string{"a": "good 19"})
	if len(r.versions()) < 20 {
		t.Errorf("%d versions, want at least 20", len(r.versions()))
	}
	ra, rb := a.ledger.Content().Root(), b.ledger.Content().Root()
	if !bytes.Equal(ra[:], rb[:]) {
		t.Error("the two leaders have different contents")
	}
}

func TestStandbyComparesEveryRootAndTakesOverWarm(t *testing.T) {
	r := newRig(t)
	leader := r.start(r.config("b0", "one", &memstore.File{}), true)
	standby := r.start(r.config("b1", "one", &memstore.File{}), false)
	leader.settle()
	standby.settle()
	r.list()
	const changes = 10
	for i := range changes {
		r.put("a", fmt.Sprintf("good %d", i))
		leader.settle()
		standby.settle()
	}
	if got, want := standby.stats.Compared, uint64(len(r.versions())); got != want {
		t.Errorf("compared %d roots, want %d", got, want)
	}
	r.put("a", "good last") // the leader is dead by now and does not publish this
	standby.settle()
	if standby.Backlog() == 0 {
		t.Error("the standby folded past the head: it cannot compare what the leader publishes next")
	}
	standby.Lead(true)
	standby.settle()
	wantServed(t, r, map[string]string{"a": "good last"})
}

func TestAnotherRootOfTheSameBuildNeverLeads(t *testing.T) {
	r := newRig(t)
	leader := r.start(r.config("b0", "one", &memstore.File{}), true)
	config := r.config("b1", "one", &memstore.File{})
	config.Judge = judge{"a build that is broken"}
	standby := r.start(config, false)
	leader.settle()
	standby.settle()
	r.list()
	r.put("a", "only for one")
	leader.settle()
	standby.settle()
	standby.Lead(true)
	if standby.leader {
		t.Error("a builder with another root of the same build leads")
	}
	if got := standby.Report().GetError(); got == "" {
		t.Error("the report does not say why it does not lead")
	}
}

func TestAnotherBuildKeepsWhatItCannotUse(t *testing.T) {
	r := newRig(t)
	a := r.start(r.config("b0", "one", &memstore.File{}), true)
	a.settle()
	r.list()
	r.put("a", "good 1")
	r.put("b", "good 1")
	a.settle()
	r.put("a", "2 for one")
	a.settle()
	b := r.start(r.config("b1", "two", &memstore.File{}), true)
	b.settle()
	wantServed(t, r, map[string]string{"a": "2 for one", "b": "good 1"})
	r.put("a", "3 for two")
	b.settle()
	wantServed(t, r, map[string]string{"a": "3 for two", "b": "good 1"})
	all := r.versions()
	if got := all[len(all)-1].GetBuild(); got != "two" {
		t.Errorf("the head is by build %q, want two", got)
	}
}

func TestGuardHoldsAMassLossUntilApproved(t *testing.T) {
	r, b := losingTen(t)
	b.settle()
	holds := b.Report().GetHolds()
	if len(holds) != 1 || holds[0].GetKeys() != 10 {
		t.Fatalf("holds = %v, want one of 10 keys", holds)
	}
	wantServed(t, r, map[string]string{"overlay": holds[0].GetId()})
	r.append(&events.Overlay{ID: holds[0].GetId(), Remove: true})
	b.settle()
	wantServed(t, r, map[string]string{})
	if got := b.stats.Holds; got != 1 {
		t.Errorf("%d holds were made, want 1", got)
	}
}

func TestAHoldApprovedBeforeItWasPublishedIsNotMadeAgain(t *testing.T) {
	r, b := losingTen(t)
	if err := b.step(); err != nil { // the hold is on the log, but the builder has not read it
		t.Fatal(err)
	}
	rec, err := r.log.Last(t.Context(), events.BuilderOverlaySubject)
	if err != nil {
		t.Fatal(err)
	}
	r.append(&events.Overlay{ID: rec.Event.Body.(*events.Overlay).ID, Remove: true})
	b.settle()
	wantServed(t, r, map[string]string{})
}

func TestARewoundLogBeginsAnEpochAndEverySourceListsAgain(t *testing.T) {
	r, b := servingA(t)
	before, _ := r.log.Bounds(t.Context())
	r.put("b", "good 1")
	b.settle()
	was := b.Position()
	r.log.Rewind(before.Last)
	b.settle()
	if got := b.Position().Epoch; got <= was.Epoch {
		t.Errorf("epoch %d after the log was rewound, want more than %d", got, was.Epoch)
	}
	if err := b.Tick(t.Context()); err != nil {
		t.Fatal(err)
	}
	if len(r.fleet.asked) == 0 {
		t.Error("no source was asked to list again")
	}
	wantServed(t, r, map[string]string{"a": "good 1", "b": "good 1"})
	r.list()
	b.settle()
	wantServed(t, r, map[string]string{"a": "good 1", "b": "good 1"})
	r.versions()
}

func TestAStandbyThatFindsTheLogRewoundWaitsForTheLeader(t *testing.T) {
	r := newRig(t)
	leader := r.start(r.config("b0", "one", &memstore.File{}), true)
	standby := r.start(r.config("b1", "one", &memstore.File{}), false)
	leader.settle()
	r.list()
	r.put("a", "good 1")
	leader.settle()
	standby.settle()
	bounds, _ := r.log.Bounds(t.Context())
	r.log.Rewind(bounds.Last - 1)
	if err := standby.step(); !errors.Is(err, ErrWait) {
		t.Fatalf("standby: %v, want ErrWait", err)
	}
	leader.settle()
	standby.settle()
	if standby.Position().Epoch != leader.Position().Epoch {
		t.Errorf("standby in epoch %d, leader in %d", standby.Position().Epoch, leader.Position().Epoch)
	}
}

func TestExpiredVersionsBeginAnEpoch(t *testing.T) {
	r, b := servingA(t)
	was := b.Position().Epoch
	r.chain.Expire()
	b.settle()
	r.list()
	b.settle()
	wantServed(t, r, map[string]string{"a": "good 1"})
	head, _ := r.chain.Head(t.Context())
	if head.Version().Epoch <= was {
		t.Errorf("head %v after the versions expired, want an epoch above %d", head.Version(), was)
	}
}

func TestAFrontendAboveTheHeadMakesAnEpochBegin(t *testing.T) {
	r, b := servingA(t)
	head, _ := r.chain.Head(t.Context())
	b.Claim("f1", ident.Position{Epoch: head.Version().Epoch, Seq: head.Version().Seq + 5}, ident.HashOf([]byte("lost")))
	b.settle()
	r.list()
	b.settle()
	after, _ := r.chain.Head(t.Context())
	if after.Version().Epoch <= head.Version().Epoch {
		t.Errorf("head %v after a frontend reported a newer one than %v", after.Version(), head.Version())
	}
}

// A report that names an epoch of the far future begins none (BUS-1): no later epoch
// could be greater.
func TestAReportOfAFarEpochBeginsNone(t *testing.T) {
	r, b := servingA(t)
	head, _ := r.chain.Head(t.Context())
	for _, epoch := range []uint64{math.MaxUint64, ident.MaxEpoch(r.clock()) + 1000} {
		b.Claim("f1", ident.Position{Epoch: epoch, Seq: 1}, ident.HashOf([]byte("lost")))
		b.settle()
	}
	if after, _ := r.chain.Head(t.Context()); after.Version() != head.Version() || b.Position().Epoch != head.Version().Epoch {
		t.Errorf("head %v and position %v after the reports, want %v", after.Version(), b.Position(), head.Version())
	}
}

func TestACheckpointIsWrittenEveryQuarterOfTheHistory(t *testing.T) {
	r := newRig(t)
	var written []ident.Position // the contents
	config := r.config("b0", "one", &memstore.File{})
	config.History = 4 * time.Hour
	config.StartCheckpoint = func(write WriteCheckpoint) {
		if content := write(t.Context(), r.chain).Content; content != nil {
			written = append(written, store.VersionOf(content.GetVersion()))
		}
	}
	b := r.start(config, true)
	b.settle()
	r.list()
	for i := range 3 {
		r.put("a", fmt.Sprint("good ", i))
		b.settle()
		b.Checkpointed(Checkpointed{})
	}
	if len(written) != 1 {
		t.Fatalf("%d checkpoints for 3 versions in quick succession, want 1 for the first", len(written))
	}
	r.now = r.now.Add(time.Hour)
	r.put("a", "good later")
	b.settle()
	if head, _ := r.chain.Head(t.Context()); len(written) != 2 || written[1] != head.Version() {
		t.Errorf("checkpoints of %v an hour later, want one of the head %v", written, head.Version())
	}
}

func TestAnUnchangedHeadIsPublishedAgain(t *testing.T) {
	r := newRig(t)
	config := r.config("b0", "one", &memstore.File{})
	config.History = 4 * time.Hour
	b := r.start(config, true)
	b.settle()
	r.list()
	r.put("a", "good 1")
	b.settle()
	n := len(r.versions())
	r.now = r.now.Add(time.Hour)
	r.alive(events.BucketSet{})
	b.settle()
	all := r.versions()
	if len(all) != n+1 || all[n].GetChangeCount() != 0 {
		t.Errorf("%d versions an hour later, want %d: the head again, with nothing changed", len(all), n+1)
	}
}

// Without the blobs, a builder can read neither the head nor the fold from the
// bus. A new epoch writes both again, although no object changes.
func TestBlobsThatAreLostComeBack(t *testing.T) {
	r := newRig(t)
	b := r.start(r.config("b0", "one", &memstore.File{}), true)
	b.settle()
	r.list()
	for i := range 2 {
		r.put("a", fmt.Sprint("good ", i))
		b.settle()
	}
	head, _ := r.chain.Head(t.Context())
	r.chain.Trim(head.Seq - 1)
	r.chain.LoseBlobs()
	if _, err := r.chain.Fetch(t.Context(), head.Version()); err == nil {
		t.Fatal("the head can be read without the blobs and the versions before it")
	}

	b.BlobsLost(head.Version().Epoch)
	b.settle()
	r.list()
	b.settle()
	after, _ := r.chain.Head(t.Context())
	if got, err := r.chain.Fetch(t.Context(), after.Version()); err != nil || got.Snapshot.Root() != store.RootOf(head.Manifest) {
		t.Errorf("the head %v: %v, want the content from before", after.Version(), err)
	}
	b.BlobsLost(head.Version().Epoch) // a late report changes nothing
	b.settle()
	if b.Position().Epoch != after.Version().Epoch {
		t.Errorf("epoch %d began after %v, which still has its blobs", b.Position().Epoch, after.Version())
	}
	cold := r.start(r.config("b1", "one", &memstore.File{}), false)
	cold.settle()
	if _, root := cold.Folded(); root != store.RootOf(head.Manifest) || cold.Position().Epoch != after.Version().Epoch {
		t.Errorf("a builder that starts with nothing is at %v", cold.Position())
	}
}

func TestAHeadThatExpiredUnderALeaderIsNoticed(t *testing.T) {
	r, b := servingA(t)
	was := b.Position().Epoch
	r.chain.Expire()
	if err := b.Tick(t.Context()); err != nil {
		t.Fatal(err)
	}
	if !b.Urgent() {
		t.Fatal("the leader sees no reason to publish although its head is gone")
	}
	b.settle()
	r.list()
	b.settle()
	if got := b.Position().Epoch; got <= was {
		t.Errorf("epoch %d, want one above %d", got, was)
	}
	wantServed(t, r, map[string]string{"a": "good 1"})
}

func TestAHoldMayBeLargerThanAMessage(t *testing.T) {
	r := newRig(t)
	b := r.start(r.config("b0", "one", &memstore.File{}), true)
	b.settle()
	r.list()
	big := "good" + strings.Repeat("x", 100<<10)
	for i := range 20 {
		r.put(fmt.Sprint("k", i), big)
	}
	b.settle()
	clear(r.offered)
	r.list()
	b.settle()
	holds := b.Report().GetHolds()
	if len(holds) != 1 || holds[0].GetKeys() != 20 || len(holds[0].GetParts()) < 5 {
		t.Fatalf("holds = %v, want one of 20 keys in several parts", holds)
	}
	r.put("new", "good")
	b.settle()
	if got := r.served()["new"]; got != "good" {
		t.Error("other changes are not published while the loss is held")
	}
	var batch []events.Event
	for _, part := range holds[0].GetParts() {
		batch = append(batch, events.Event{ID: r.id(), Body: &events.Overlay{ID: part, Remove: true}})
	}
	if _, err := r.log.Append(t.Context(), batch, events.Fence{}); err != nil {
		t.Fatal(err)
	}
	b.settle()
	wantServed(t, r, map[string]string{"new": "good"})
	if got := b.stats.Holds; got != 1 {
		t.Errorf("%d holds were made, want 1", got)
	}
}

func TestLostVersionsBeginAnEpoch(t *testing.T) {
	r := newRig(t)
	file := &memstore.File{}
	b := r.start(r.config("b0", "one", file), true)
	b.settle()
	r.list()
	r.put("a", "good 1")
	b.settle()
	was := b.Position().Epoch
	r.chain = memstore.NewChain() // the stream was removed
	for _, f := range []*memstore.File{file, {}} {
		b = r.start(r.config("b0", "one", f), true)
		b.settle()
		r.list()
		b.settle()
		wantServed(t, r, map[string]string{"a": "good 1"})
		if got := b.Position().Epoch; got <= was {
			t.Errorf("epoch %d after the versions were lost, want one above %d", got, was)
		}
		if b.stats.Segments > 1 {
			t.Errorf("%d epochs were begun, want 1", b.stats.Segments)
		}
	}
}

// TestALostHeadContentStopsNothing removes the versions before the head, and
// starts a builder of another build without a file. It cannot get the content of the
// head, and does not accept the newest value of a: the last one that it accepts stays.
func TestALostHeadContentStopsNothing(t *testing.T) {
	r, b := servingA(t)
	r.put("a", "2 for one")
	r.put("b", "good 1")
	b.settle()
	head, err := r.chain.Head(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	r.chain.Trim(head.Seq - 1)
	b = r.start(r.config("b1", "two", &memstore.File{}), true)
	if err := b.step(); !errors.Is(err, store.ErrNotFound) {
		t.Errorf("at first: %v, want ErrNotFound: a checkpoint may still arrive", err)
	}
	r.now = r.now.Add(lostAfter)
	b.settle()
	wantServed(t, r, map[string]string{"a": "good 1", "b": "good 1"})
	r.put("a", "good 3")
	b.settle()
	wantServed(t, r, map[string]string{"a": "good 3", "b": "good 1"})
}

// TestAnOverlayBetweenARewindAndItsEpochIsKept checks that an operator's overlay
// that the log acknowledged is not lost, even if no builder had folded it when the
// epoch began.
func TestAnOverlayBetweenARewindAndItsEpochIsKept(t *testing.T) {
	r, b := servingA(t)
	common := r.bounds().Last
	r.put("b", "good 1")
	b.settle()
	r.log.Rewind(common)
	k := key("a")
	base := events.ContentHash(k, r.offered[k])
	r.append(&events.Overlay{ID: "op", Kind: ident.Rollback, Values: []ident.OverlayValue{
		{Key: k, Base: base, Value: &ident.Value{Type: "type.test/thing", Bytes: []byte("good 0")}},
	}})
	b.settle()
	r.list()
	b.settle()
	if got := r.served()["overlay"]; got != "op" {
		t.Errorf("the overlay of the epoch is %q, want op", got)
	}
}
