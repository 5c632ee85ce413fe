package past

import (
	"context"
	"errors"
	"fmt"

	"meshlog.dev/proto/ident"
	"meshlog.dev/store"
)

// Verdict is the result of verifying a version.
type Verdict string

// The verdicts. Only Broken is an error.
const (
	// Broken: the chain or the log has changed since the version was published, or
	// the same build makes another content.
	Broken Verdict = "broken"
	// OtherBuild: this build makes another content than the build that published
	// the version.
	OtherBuild Verdict = "other-build"
	// Rewound: the version comes from a part of the log that was lost, which a
	// later epoch shows.
	Rewound Verdict = "rewound"
	// Restored: this log holds the same events with other times, as after an
	// import; the content is the same.
	Restored Verdict = "restored"
	// Unfolded: the version lies before the replay floor.
	Unfolded Verdict = "unfolded"
	// Unread: the content of the version cannot be read any more: it is older than
	// the oldest checkpoint.
	Unread Verdict = "unread"
)

// Finding is a verdict about a version.
type Finding struct {
	Version ident.Position
	Verdict Verdict
	Build   string // published the version
	Reason  string
}

// Verification is the result of Verify.
type Verification struct {
	Build string // folded the log again
	// Floor is the position at which the fold began; First and Last are the
	// bounds of the log.
	Floor       ident.Position
	First, Last uint64
	Versions    int // on the chain
	// Same counts the versions of this build with the same content, SameOther
	// those of other builds.
	Same, SameOther int
	Findings        []Finding // by check, in the order of the versions
}

// Count returns how many findings have a verdict.
func (v *Verification) Count(d Verdict) int {
	n := 0
	for _, f := range v.Findings {
		if f.Verdict == d {
			n++
		}
	}
	return n
}

// Verify folds the whole log again with this build, and compares the root of
// every version of the chain. It also checks that each version follows the one
// before it, is at the record that it names, and has a content with its root.
// progress may be nil.
func Verify(ctx context.Context, p *Past, build string, progress func(done, total int64)) (*Verification, error) {
	chain, err := links(p.Versions.History(ctx))
	if err != nil {
		return nil, err
	}
	// Read the versions first: a log that grows meanwhile has their records.
	bounds, err := p.bounds(ctx)
	if err != nil {
		return nil, err
	}
	replay, err := BeginAtFloor(ctx, p)
	if err != nil {
		return nil, err
	}
	v := &verifier{
		Verification: Verification{Build: build, Floor: replay.From(), First: bounds.First, Last: bounds.Last, Versions: len(chain)},
		bySeq:        map[uint64][]link{},
		replay:       replay,
	}
	v.follows(chain)
	for _, l := range chain {
		v.bySeq[l.version.Seq] = append(v.bySeq[l.version.Seq], l)
	}
	if err := v.fold(ctx, bounds.Last, progress); err != nil {
		return nil, err
	}
	for _, l := range chain {
		v.judge(l)
	}
	if err := v.contents(ctx, p, chain); err != nil {
		return nil, err
	}
	return &v.Verification, nil
}

type verifier struct {
	Verification
	replay *Replay
	bySeq  map[uint64][]link
	came   map[ident.Position]outcome // of the fold, by version of the chain
}

// outcome is the state of the fold at the record of a version.
type outcome struct {
	at      ident.Position
	record  ident.Hash
	root    ident.Hash
	segment string // build of the segment
}

func (v *verifier) find(l link, d Verdict, format string, args ...any) {
	v.Findings = append(v.Findings, Finding{l.version, d, l.build, fmt.Sprintf(format, args...)})
}

// follows checks that each version follows the one before it.
func (v *verifier) follows(chain []link) {
	for i, l := range chain {
		if i == 0 {
			continue
		}
		switch before := chain[i-1]; {
		case !before.version.Less(l.version):
			v.find(l, Broken, "it comes after version %s on the chain, and is not greater", before.version)
		case l.previous != before.version:
			v.find(l, Broken, "it follows version %s, and on the chain it comes after %s", l.previous, before.version)
		case l.previousRoot != before.root:
			v.find(l, Broken, "it follows version %s with root %s, which has root %s", l.previous, l.previousRoot, before.root)
		}
	}
}

// fold folds the log again and notes the outcome at each version.
func (v *verifier) fold(ctx context.Context, last uint64, progress func(done, total int64)) error {
	v.came = map[ident.Position]outcome{}
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

// note notes the outcome, if there is a version at this record.
func (v *verifier) note() {
	f := v.replay.Fold()
	for _, l := range v.bySeq[f.Position().Seq] {
		v.came[l.version] = outcome{f.Position(), f.RecordHash(), v.replay.Content().Root(), f.Segment().Build}
	}
}

// judge compares a version with the outcome of the fold.
func (v *verifier) judge(l link) {
	version := l.version
	came, folded := v.came[version]
	later := v.replay.Position().Epoch > version.Epoch
	switch {
	case !folded && version.Seq > v.Last && later, folded && came.at.Epoch != version.Epoch && later:
		v.find(l, Rewound, "its part of the log was lost; epoch %d followed", v.replay.Position().Epoch)
		return
	case !folded && version.Seq > v.Last:
		v.find(l, Broken, "the log ends at %d, before it", v.Last)
		return
	case !folded:
		v.find(l, Unfolded, "it lies before the replay floor %s", v.Floor)
		return
	case came.at.Epoch != version.Epoch:
		v.find(l, Broken, "record %d of this log lies in epoch %d", version.Seq, came.at.Epoch)
		return
	}
	sameRecord, sameRoot := l.record == came.record, l.root == came.root
	own := l.build == v.Build && came.segment == v.Build
	switch {
	case sameRoot && !sameRecord:
		v.find(l, Restored, "record %d differs, perhaps only in its time, from the one it was made from; the content is the same", version.Seq)
	case sameRoot && own:
		v.Same++
	case sameRoot:
		v.SameOther++
	case !sameRecord && later:
		v.find(l, Rewound, "record %d differs from the one it was made from; epoch %d followed", version.Seq, v.replay.Position().Epoch)
	case !sameRecord:
		v.find(l, Broken, "record %d differs from the one it was made from", version.Seq)
	case own:
		v.find(l, Broken, "it has root %s, and this build, which made it, now makes %s", l.root, came.root)
	default:
		v.find(l, OtherBuild, "made by %s it has root %s, this build makes %s", l.build, l.root, came.root)
	}
}

// contents checks that the content of every version can be read, and has its
// root.
func (v *verifier) contents(ctx context.Context, p *Past, chain []link) error {
	from := 0
	for ; from < len(chain); from++ { // the oldest may be without a checkpoint by now
		_, err := p.Versions.Fetch(ctx, chain[from].version)
		if err == nil {
			break
		}
		switch {
		case errors.Is(err, store.ErrNotFound):
			v.find(chain[from], Unread, "no checkpoint of the content is left before it")
		case errors.Is(err, store.ErrCorrupt):
			v.find(chain[from], Broken, "its content: %v", err)
		default:
			return err
		}
	}
	if from == len(chain) {
		return nil
	}
	return v.deltas(ctx, p, chain[from].version)
}

// deltas applies all deltas from a version whose content can be read.
func (v *verifier) deltas(ctx context.Context, p *Past, from ident.Position) error {
	var at store.Stored
	for u, err := range p.Versions.Updates(ctx, from) {
		if err != nil {
			if errors.Is(err, store.ErrNotFound) || errors.Is(err, store.ErrCorrupt) {
				v.Findings = append(v.Findings, Finding{Version: at.Version(), Verdict: Broken, Reason: fmt.Sprintf("the next version: %v", err)})
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
			v.find(link{version: version, build: u.Manifest.GetBuild()}, Broken, "its content has root %s, its manifest says %s", root, store.RootOf(u.Manifest))
		}
	}
	return nil
}
