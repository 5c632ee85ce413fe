package history

import (
	"context"
	"errors"
	"fmt"

	"meshlog.dev/events"
	"meshlog.dev/store"
)

// Verdict is what is found about a version.
type Verdict string

// The verdicts. Broken is the only one that must not be.
const (
	// Broken: the chain or the log is not what was published, or the same build
	// came to another content.
	Broken Verdict = "broken"
	// OtherBuild: this build comes to another content than the build that made
	// the version.
	OtherBuild Verdict = "other-build"
	// Rewound: the version comes from a part of the log that was lost; a later
	// epoch says so.
	Rewound Verdict = "rewound"
	// Restored: this log holds the same events with other times, as after an
	// import; the content is the same.
	Restored Verdict = "restored"
	// Unfolded: the version lies before the replay floor.
	Unfolded Verdict = "unfolded"
	// Unread: the content of the version cannot be put together any more: it is
	// older than the oldest checkpoint.
	Unread Verdict = "unread"
)

// Finding is something to be said about a version.
type Finding struct {
	Version store.Version
	Verdict Verdict
	Build   string // that made the version
	Reason  string
}

// Verification is what Verify found.
type Verification struct {
	Build string // that folded again
	// Floor is the position behind which the fold began; First and Last are
	// the bounds of the log.
	Floor       events.Position
	First, Last uint64
	Versions    int // on the chain
	// Same are those of this build that came out the same, SameOther those of
	// other builds.
	Same, SameOther int
	Findings        []Finding // in the order of the versions, by verdict of one
}

// Count is how many findings there are of a verdict.
func (v *Verification) Count(d Verdict) int {
	n := 0
	for _, f := range v.Findings {
		if f.Verdict == d {
			n++
		}
	}
	return n
}

// Verify folds the whole log again, with this build, and compares the root of
// every version of the chain; it sees that each version follows the one before
// it, stands on the record that it names, and has the content that its root
// says. progress may be nil.
func Verify(ctx context.Context, p *Past, build string, progress func(done, total int64)) (*Verification, error) {
	manifests, err := OldestFirst(p.Versions.History(ctx))
	if err != nil {
		return nil, err
	}
	// The versions first: the log may grow meanwhile, and has more then.
	bounds, err := p.bounds(ctx)
	if err != nil {
		return nil, err
	}
	replay, err := BeginAtFloor(ctx, p)
	if err != nil {
		return nil, err
	}
	v := &verifier{
		Verification: Verification{Build: build, Floor: replay.From(), First: bounds.First, Last: bounds.Last, Versions: len(manifests)},
		bySeq:        map[uint64][]*store.Manifest{},
		replay:       replay,
	}
	v.chain(manifests)
	for _, m := range manifests {
		v.bySeq[m.GetVersion().GetSeq()] = append(v.bySeq[m.GetVersion().GetSeq()], m)
	}
	if err := v.fold(ctx, bounds.Last, progress); err != nil {
		return nil, err
	}
	for _, m := range manifests {
		v.judge(m)
	}
	if err := v.contents(ctx, p, manifests); err != nil {
		return nil, err
	}
	return &v.Verification, nil
}

type verifier struct {
	Verification
	replay *Replay
	bySeq  map[uint64][]*store.Manifest
	came   map[store.Version]outcome // what the fold came to, by version of the chain
}

// outcome is what is at a version's place on this log.
type outcome struct {
	at      events.Position
	record  events.Hash
	root    store.Hash
	segment string // build of the segment
}

func (v *verifier) find(m *store.Manifest, d Verdict, format string, args ...any) {
	v.Findings = append(v.Findings, Finding{store.VersionOf(m.GetVersion()), d, m.GetBuild(), fmt.Sprintf(format, args...)})
}

// chain sees that each version follows the one before it.
func (v *verifier) chain(manifests []*store.Manifest) {
	for i, m := range manifests {
		if i == 0 {
			continue
		}
		before := manifests[i-1]
		prev, root := store.PreviousOf(m)
		switch was := store.VersionOf(before.GetVersion()); {
		case !was.Less(store.VersionOf(m.GetVersion())):
			v.find(m, Broken, "it comes behind version %s on the chain, and is not greater", was)
		case prev != was:
			v.find(m, Broken, "it follows version %s, and on the chain it comes behind %s", prev, was)
		case root != store.RootOf(before):
			v.find(m, Broken, "it follows version %s with root %s, which has root %s", prev, root, store.RootOf(before))
		}
	}
}

// fold folds the log again and notes what it comes to where a version is.
func (v *verifier) fold(ctx context.Context, last uint64, progress func(done, total int64)) error {
	v.came = map[store.Version]outcome{}
	v.note()
	first := v.replay.Position().Seq
	return v.replay.To(ctx, last, func(s Step) error {
		v.note()
		if progress != nil {
			progress(int64(s.Record.Seq-first), int64(last-first))
		}
		return nil
	})
}

// note notes what the fold has come to, if there is a version here.
func (v *verifier) note() {
	f := v.replay.Fold()
	for _, m := range v.bySeq[f.Position().Seq] {
		v.came[store.VersionOf(m.GetVersion())] = outcome{f.Position(), f.RecordHash(), v.replay.Content().Root(), f.Segment().Build}
	}
}

// judge compares a version with what the fold came to.
func (v *verifier) judge(m *store.Manifest) {
	version := store.VersionOf(m.GetVersion())
	came, folded := v.came[version]
	later := v.replay.Position().Epoch > version.Epoch
	switch {
	case !folded && version.Seq > v.Last && later, folded && came.at.Epoch != version.Epoch && later:
		v.find(m, Rewound, "its part of the log was lost; epoch %d followed", v.replay.Position().Epoch)
		return
	case !folded && version.Seq > v.Last:
		v.find(m, Broken, "the log ends at %d, before it", v.Last)
		return
	case !folded:
		v.find(m, Unfolded, "it lies before the replay floor %s", v.Floor)
		return
	case came.at.Epoch != version.Epoch:
		v.find(m, Broken, "record %d of this log lies in epoch %d", version.Seq, came.at.Epoch)
		return
	}
	h, err := store.HashFrom(m.GetRecordHash())
	sameRecord := err == nil && events.Hash(h) == came.record
	sameRoot := store.RootOf(m) == came.root
	own := m.GetBuild() == v.Build && came.segment == v.Build
	switch {
	case sameRoot && !sameRecord:
		v.find(m, Restored, "record %d has another time, or is another, than when it was made; the content is the same", version.Seq)
	case sameRoot && own:
		v.Same++
	case sameRoot:
		v.SameOther++
	case !sameRecord && later:
		v.find(m, Rewound, "record %d is another than the one it was made from; epoch %d followed", version.Seq, v.replay.Position().Epoch)
	case !sameRecord:
		v.find(m, Broken, "record %d is another than the one it was made from", version.Seq)
	case own:
		v.find(m, Broken, "it has root %s, and this build, which made it, comes to %s", store.RootOf(m), came.root)
	default:
		v.find(m, OtherBuild, "made by %s it has root %s, this build comes to %s", m.GetBuild(), store.RootOf(m), came.root)
	}
}

// contents sees that the content of every version can be put together, and has
// its root.
func (v *verifier) contents(ctx context.Context, p *Past, manifests []*store.Manifest) error {
	from := 0
	for ; from < len(manifests); from++ { // the oldest may have no checkpoint any more
		_, err := p.Versions.Fetch(ctx, store.VersionOf(manifests[from].GetVersion()))
		if err == nil {
			break
		}
		switch {
		case errors.Is(err, store.ErrNotFound):
			v.find(manifests[from], Unread, "no checkpoint of the content is left before it")
		case errors.Is(err, store.ErrCorrupt):
			v.find(manifests[from], Broken, "its content: %v", err)
		default:
			return err
		}
	}
	if from == len(manifests) {
		return nil
	}
	return v.deltas(ctx, p, store.VersionOf(manifests[from].GetVersion()))
}

// deltas applies all deltas from a version on whose content is there.
func (v *verifier) deltas(ctx context.Context, p *Past, from store.Version) error {
	var at store.Stored
	for u, err := range p.Versions.Updates(ctx, from) {
		if err != nil {
			if errors.Is(err, store.ErrNotFound) || errors.Is(err, store.ErrCorrupt) {
				v.Findings = append(v.Findings, Finding{Version: at.Version(), Verdict: Broken, Reason: fmt.Sprintf("what leads on from it: %v", err)})
				return nil
			}
			return err
		}
		version := store.VersionOf(u.Manifest.GetVersion())
		if prev, _ := store.PreviousOf(u.Manifest); at.Manifest != nil && prev == at.Version() {
			at = store.Stored{Manifest: u.Manifest, Snapshot: at.Snapshot.With(u.Delta)}
		} else if at, err = p.Versions.Fetch(ctx, version); err != nil {
			return err
		}
		if root := at.Snapshot.Root(); root != store.RootOf(u.Manifest) {
			v.find(u.Manifest, Broken, "its content has root %s, its manifest says %s", root, store.RootOf(u.Manifest))
		}
	}
	return nil
}
