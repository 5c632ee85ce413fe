package past

import (
	"context"
	"errors"
	"fmt"

	"golang.org/x/sync/errgroup"

	"meshlog.dev/proto/ident"
	"meshlog.dev/store"
)

// Verdict is the result of verifying a version.
type Verdict string

// The verdicts. Only Broken is an error.
const (
	// Broken: the chain or the log has changed since the version was published, or
	// the same build makes another content.
	Broken     Verdict = "broken"
	OtherBuild Verdict = "other-build" // this build makes another content than the build that published it
	Rewound    Verdict = "rewound"     // its part of the log was lost, which a later epoch shows
	// Restored: this log holds the same events with other times, as after an
	// import; the content is the same.
	Restored Verdict = "restored"
	Unfolded Verdict = "unfolded" // it lies before the replay floor
	Foreign  Verdict = "foreign"  // a message on the chain that is no version; all readers pass it over
	Unread   Verdict = "unread"   // its content cannot be read any more: it is older than the oldest checkpoint
)

// Finding is a verdict about a version.
type Finding struct {
	Version ident.Position `json:"version"`
	Verdict Verdict        `json:"verdict"`
	Build   string         `json:"build,omitempty"` // published the version
	Reason  string         `json:"reason"`
}

// Verification is the result of Verify.
type Verification struct {
	Build    string         `json:"build"`       // folded the log again
	Floor    ident.Position `json:"replayFloor"` // where the fold began
	First    uint64         `json:"first"`       // record of the log
	Last     uint64         `json:"last"`
	Versions int            `json:"versions"` // on the chain
	// Same counts the versions of this build with the same content, SameOther
	// those of other builds.
	Same      int       `json:"same"`
	SameOther int       `json:"sameOther"`
	Findings  []Finding `json:"findings"` // by check, in the order of the versions
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
func Verify(ctx context.Context, p *Past, build string, progress Progress) (*Verification, error) {
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
		Verification: Verification{
			Build: build, Floor: replay.From(), First: bounds.First, Last: bounds.Last, Versions: len(chain), Findings: []Finding{},
		},
		replay: replay, came: map[uint64]*outcome{},
	}
	v.follows(chain)
	if err := v.foreign(ctx, p); err != nil {
		return nil, err
	}
	for _, l := range chain {
		v.came[l.version.Seq] = nil
	}
	v.note()
	// The contents depend on the chain alone: one core reads them while another folds the log.
	kept := &verifier{}
	g, both := errgroup.WithContext(ctx)
	g.Go(func() error { return kept.contents(both, p, chain) })
	g.Go(func() error {
		return replay.To(both, bounds.Last, progress, func(Step) error {
			v.note()
			return nil
		})
	})
	if err := g.Wait(); err != nil {
		return nil, err
	}
	for _, l := range chain {
		v.judge(l)
	}
	v.Findings = append(v.Findings, kept.Findings...)
	return &v.Verification, nil
}

type verifier struct {
	Verification
	replay *Replay
	came   map[uint64]*outcome // by the records of versions; nil: the fold has not reached it
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
	for i := 1; i < len(chain); i++ {
		switch before, l := chain[i-1], chain[i]; {
		case !before.version.Less(l.version):
			v.find(l, Broken, "it comes after version %s on the chain, and is not greater", before.version)
		case l.previous != before.version:
			v.find(l, Broken, "it follows version %s, and on the chain it comes after %s", l.previous, before.version)
		case l.previousRoot != before.root:
			v.find(l, Broken, "it follows version %s with root %s, which has root %s", l.previous, l.previousRoot, before.root)
		}
	}
}

// foreign finds the messages on the chain that are no versions. An archive has
// versions only.
func (v *verifier) foreign(ctx context.Context, p *Past) error {
	a, ok := p.Versions.(store.Auditor)
	if !ok {
		return nil
	}
	all, err := a.Foreign(ctx)
	for _, f := range all {
		v.find(link{}, Foreign, "%v", &f)
	}
	return err
}

// note notes the outcome, if there is a version at this record.
func (v *verifier) note() {
	f := v.replay.Fold()
	if _, wanted := v.came[f.Position().Seq]; wanted {
		v.came[f.Position().Seq] = &outcome{f.Position(), f.RecordHash(), v.replay.Content().Root(), f.Segment().Build}
	}
}

// judge compares a version with the outcome of the fold.
func (v *verifier) judge(l link) {
	version := l.version
	came := v.came[version.Seq]
	folded := came != nil
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
	for _, l := range chain {
		_, err := p.Versions.Fetch(ctx, l.version)
		switch {
		case err == nil:
			return v.deltas(ctx, p, l.version)
		case errors.Is(err, store.ErrNotFound):
			v.find(l, Unread, "no checkpoint of the content is left before it")
		case errors.Is(err, store.ErrCorrupt):
			v.find(l, Broken, "its content: %v", err)
		default:
			return err
		}
	}
	return nil
}

// deltas applies all deltas from a version whose content can be read.
func (v *verifier) deltas(ctx context.Context, p *Past, from ident.Position) error {
	last := from // the last version with a content that can be read
	for c, err := range assemble(ctx, p.Versions, from) {
		lost := errors.Is(err, store.ErrNotFound) || errors.Is(err, store.ErrCorrupt)
		switch {
		case lost && c.Manifest == nil:
			v.find(link{version: last}, Broken, "the next version: %v", err)
			return nil
		case err != nil && c.Manifest != nil:
			return fmt.Errorf("content of version %s: %w", c.Version(), err)
		case err != nil:
			return err
		}
		last = c.Version()
		if root := c.Snapshot.Root(); root != store.RootOf(c.Manifest) {
			v.find(link{version: last, build: c.Manifest.GetBuild()}, Broken, "its content has root %s, its manifest says %s", root, store.RootOf(c.Manifest))
		}
	}
	return nil
}
