package past_test

import (
	"context"
	"errors"
	"iter"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/protobuf/proto"

	"meshlog.dev/proto/ident"
	"meshlog.dev/services/mesh/fold"
	"meshlog.dev/services/operate/past"
	"meshlog.dev/store"
)

// verify checks the number of findings with each verdict, for a mesh and for an
// archive of it.
func verify(t *testing.T, m *mesh, build string, same, sameOther int, want map[past.Verdict]int) *past.Verification {
	t.Helper()
	var first *past.Verification
	copied, _ := archived(t, m.past(), 0)
	for _, p := range []*past.Past{m.past(), copied} {
		v, err := past.Verify(t.Context(), p, build, func(done, total int64) {
			if done > total {
				t.Errorf("%d of %d are done", done, total)
			}
		})
		if err != nil {
			t.Fatalf("%s: %v", p.Name, err)
		}
		got := map[past.Verdict]int{}
		for _, f := range v.Findings {
			got[f.Verdict]++
		}
		if diff := cmp.Diff(want, got); diff != "" || v.Same != same || v.SameOther != sameOther {
			t.Errorf("%s: %d same, %d of other builds, want %d and %d; findings %+v\n%s", p.Name, v.Same, v.SameOther, same, sameOther, v.Findings, diff)
		}
		if first == nil {
			first = v
		}
	}
	return first
}

func TestVerify(t *testing.T) {
	m := newMesh(t, "one")
	m.canary(5)
	v := verify(t, m, "one", 6, 0, map[past.Verdict]int{})
	if v.Floor != (ident.Position{}) || v.First != 1 || v.Versions != 6 {
		t.Errorf("verified %+v", v)
	}
}

// After a rewind, Verify distinguishes lost versions from broken ones.
func TestVerifyRewound(t *testing.T) {
	m := newMesh(t, "one")
	m.canary(3)
	kept := m.versions()[1].GetVersion().GetSeq()
	m.log.Rewind(kept)
	// Until a builder notices the rewind, versions without records are broken.
	broken, err := past.Verify(t.Context(), m.past(), "one", nil)
	if err != nil || broken.Count(past.Broken) != 2 || !strings.Contains(broken.Findings[0].Reason, "the log ends at") {
		t.Errorf("before an epoch: %+v, %v", broken, err)
	}
	m.settle() // begins an epoch
	m.list()
	m.canary(2)
	versions := len(m.versions())
	verify(t, m, "one", versions-2, 0, map[past.Verdict]int{past.Rewound: 2})

	// The lost sequences now have other records.
	at := m.versions()[3].GetVersion()
	if _, err := past.At(t.Context(), m.past(), store.VersionOf(at)); err != nil {
		t.Errorf("a version of the lost part cannot be read from the chain: %v", err)
	}
	lost := ident.Position{Epoch: at.GetEpoch(), Seq: at.GetSeq() + 1}
	if _, err := past.At(t.Context(), m.past(), lost); !errors.Is(err, past.ErrNotThere) {
		t.Errorf("a lost position: %v", err)
	}
}

// Verify also compares versions of other builds, but their differences are not
// failures.
func TestVerifyOtherBuilds(t *testing.T) {
	m := newMesh(t, "one")
	m.canary(2)
	m.start("picky", judge{refused: "shop"})
	m.settle()
	m.put("VirtualService", "demo", "other", weights(50, 50))
	m.settle()
	m.put("VirtualService", "demo", "shop", weights(1, 99)) // refused: the last good one is served
	m.put("VirtualService", "demo", "other", weights(40, 60))
	m.settle()
	m.start("three", fold.KindJudge{})
	m.settle()
	m.canary(1)
	all := m.versions()
	made := map[string]int{}
	for _, v := range all {
		made[v.GetBuild()]++
	}
	v := verify(t, m, "three", made["three"], made["one"]+made["picky"]-1, map[past.Verdict]int{past.OtherBuild: 1})
	for _, f := range v.Findings {
		if f.Build != "picky" || !strings.Contains(f.Reason, "made by picky") {
			t.Errorf("%+v does not name the build", f)
		}
	}
}

// The first records of the log have expired. The floor, the position from which the
// log can be folded, is a checkpoint of the fold.
func TestVerifyFloor(t *testing.T) {
	m := newMesh(t, "one")
	m.canary(3)
	m.checkpoint()
	floor := store.VersionOf(m.versions()[3].GetVersion())
	m.canary(3)
	all := m.versions()
	m.log.Trim(floor.Seq + 1)
	v := verify(t, m, "one", len(all)-3, 0, map[past.Verdict]int{past.Unfolded: 3})
	if v.Floor != floor || v.First != floor.Seq+1 {
		t.Errorf("the floor is %s, the log begins at %d; want %s", v.Floor, v.First, floor)
	}
	// Positions above the floor are found, positions below it are not.
	for _, c := range []struct {
		seq  uint64
		want error
	}{{floor.Seq + 1, nil}, {floor.Seq - 1, past.ErrTooOld}, {1 << 40, past.ErrNotThere}} {
		if _, err := past.Locate(t.Context(), m.past(), c.seq); !errors.Is(err, c.want) {
			t.Errorf("position %d: %v, want %v", c.seq, err, c.want)
		}
	}
	// If the records after the checkpoint are missing too, there is no floor.
	m.log.Trim(floor.Seq + 2)
	if _, err := past.Verify(t.Context(), m.past(), "one", nil); !errors.Is(err, past.ErrTooOld) {
		t.Errorf("a log without a floor: %v", err)
	}
	// The next epoch is a floor again.
	m.log.Rewind(floor.Seq + 2)
	m.settle()
	m.list()
	m.canary(1)
	after, err := past.Verify(t.Context(), m.past(), "one", nil)
	if err != nil || after.Count(past.Broken) != 0 || after.Same != len(m.versions())-len(all) {
		t.Errorf("after a new epoch: %+v, %v", after, err)
	}
}

// A version with a changed root or record hash is broken; one with another previous
// root is no version of the chain (BUS-4).
func TestVerifyBroken(t *testing.T) {
	for name, tamper := range map[string]func(m *store.Manifest){
		"another root":     func(m *store.Manifest) { m.Root = make([]byte, 32) },
		"another record":   func(m *store.Manifest) { m.RecordHash, m.Root = make([]byte, 32), make([]byte, 32) },
		"another previous": func(m *store.Manifest) { m.PreviousRoot = make([]byte, 32) },
	} {
		t.Run(name, func(t *testing.T) {
			m := newMesh(t, "one")
			m.canary(1)
			m.put("VirtualService", "demo", "shop", weights(1, 99))
			var last store.Update
			m.settle()
			for u, err := range m.chain.Updates(t.Context(), ident.Position{}) {
				if err != nil {
					t.Fatal(err)
				}
				last = u
			}
			m.chain.Rewind(2)
			last.Manifest = proto.CloneOf(last.Manifest)
			tamper(last.Manifest)
			if _, err := m.chain.Publish(t.Context(), last, 2, m.chain.Generation()); err != nil {
				t.Fatal(err)
			}
			v, err := past.Verify(t.Context(), m.past(), "one", nil)
			if err != nil || v.Count(past.Broken)+v.Count(past.Foreign) == 0 {
				t.Errorf("verified %+v, %v", v, err)
			}
		})
	}
}

// brokenVersions are versions that cannot be read.
type brokenVersions struct {
	past.Versions
	skipped   ident.Position // Updates skips it
	unfetched ident.Position // Fetch fails for it
	first     error          // error of Updates, instead of the first version
}

func (b brokenVersions) Fetch(ctx context.Context, v ident.Position) (store.Stored, error) {
	if v == b.unfetched {
		return store.Stored{}, store.ErrCorrupt
	}
	return b.Versions.Fetch(ctx, v)
}

func (b brokenVersions) Updates(ctx context.Context, from ident.Position) iter.Seq2[store.Update, error] {
	return func(yield func(store.Update, error) bool) {
		if b.first != nil {
			yield(store.Update{}, b.first)
			return
		}
		for u, err := range b.Versions.Updates(ctx, from) {
			if store.VersionOf(u.Manifest.GetVersion()) != b.skipped && !yield(u, err) {
				return
			}
		}
	}
}

// An error about unreadable content names the version.
func TestVerifyUnreadable(t *testing.T) {
	m := newMesh(t, "one")
	m.canary(4)
	var chain []ident.Position // oldest first
	for _, v := range m.versions() {
		chain = append(chain, store.VersionOf(v.GetVersion()))
	}
	p := m.past()
	p.Versions = brokenVersions{Versions: m.chain, skipped: chain[2], unfetched: chain[3]}
	_, err := past.Verify(t.Context(), p, "one", nil)
	if !errors.Is(err, store.ErrCorrupt) || !strings.Contains(err.Error(), "version "+chain[3].String()) {
		t.Errorf("unreadable content in the middle of the chain: %v, want an error that names %s", err, chain[3])
	}
	p.Versions = brokenVersions{Versions: m.chain, first: store.ErrCorrupt}
	v, err := past.Verify(t.Context(), p, "one", nil)
	if err != nil || len(v.Findings) != 1 || v.Findings[0].Version != chain[0] || v.Findings[0].Verdict != past.Broken {
		t.Errorf("the first update: %+v, %v; want a finding of %s", v, err, chain[0])
	}
}

// A replay enforces source rules about hosts, as the builder did (ACL-1).
func TestVerifyHostRules(t *testing.T) {
	m := newMesh(t, "one")
	m.put("MeshPolicy", "", "default", `{"requiredSources":[{"source":"file","instance":"default"}],"sourceRules":[{"source":"file","hosts":["*.example"]}]}`)
	m.settle()
	m.put("VirtualService", "demo", "other", `{"hosts":["shop.other"],"http":[{"redirect":{"uri":"/"}}]}`)
	m.put("VirtualService", "demo", "shop", `{"hosts":["shop.example"],"http":[{"redirect":{"uri":"/"}}]}`)
	m.settle()
	verify(t, m, "one", len(m.versions()), 0, map[past.Verdict]int{})
	if head := m.versions()[len(m.versions())-1]; len(head.GetDiagnostics()) == 0 {
		t.Error("the builder forbids nothing")
	}
}
