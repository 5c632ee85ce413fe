package samebytes

// This file has everything that the comparison uses of the product. suggest_test.go
// and the recorders (record_test.go, overlays_test.go, kubernetes_test.go) use the
// product too.

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"meshlog.dev/events/archive"
	"meshlog.dev/proto/ident"
	"meshlog.dev/services/frontend/content"
	"meshlog.dev/services/frontend/names"
	"meshlog.dev/services/mesh/gate"
	"meshlog.dev/services/mesh/index"
	"meshlog.dev/services/mesh/problem"
	"meshlog.dev/services/mesh/proxy"
	"meshlog.dev/services/mesh/world"
	"meshlog.dev/services/mesh/xds"
	"meshlog.dev/services/operate/past"
	"meshlog.dev/services/watcher/file"
	"meshlog.dev/store"
)

// quiet is the shortest time between the records of two versions.
const quiet = 100 * time.Millisecond

// documentFiles is the prefix of the files of an archive that hold the documents
// that its records were made from: documents/<step>/<source>/<instance>/<file>.
const documentFiles = "documents/"

// document is a file that a watcher read.
type document struct{ name, text string }

// openArchive returns the log of an archive, and the documents in it.
func openArchive(t *testing.T, path string) (*past.Past, []document) {
	t.Helper()
	a, err := archive.Open(t.Context(), path)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { a.Close() })
	var documents []document
	for _, name := range a.Files(documentFiles) {
		b, err := a.File(t.Context(), name)
		if err != nil {
			t.Fatal(err)
		}
		documents = append(documents, document{strings.TrimPrefix(name, documentFiles), string(b)})
	}
	return past.FromArchive(path, a), documents
}

// objectsOf writes a line for each object that the file's watcher makes of a
// document, and for each problem that it reports.
func objectsOf(d document) string {
	var b strings.Builder
	fmt.Fprintf(&b, "@ %s\n", d.name)
	objects, problems := file.Objects(d.name[strings.LastIndexByte(d.name, '/')+1:], []byte(d.text))
	for _, o := range objects {
		created := "-"
		if !o.Value.Created.IsZero() {
			created = o.Value.Created.UTC().Format(time.RFC3339)
		}
		fmt.Fprintf(&b, "+ %s %s %s/%s %s %s %s\n", digest([]byte(o.Value.Type), []byte{0}, o.Value.Bytes), o.Kind, o.Namespace, o.Name, o.Value.Type, created, o.Origin)
	}
	for _, p := range problems {
		fmt.Fprintf(&b, "! %s %s\n", problemLine(p), p.Origin)
	}
	return b.String()
}

// problemLine returns what is compared of a problem: everything but its prose.
func problemLine(d problem.Diagnostic) string {
	object := d.Resource
	if d.Key != (ident.Key{}) {
		object = d.Key.String()
	}
	return strings.TrimRight(fmt.Sprintf("%s %s %s %s", d.Severity, d.Code, object, d.Field), " ")
}

// digest returns the digest of the concatenated parts.
func digest(parts ...[]byte) string {
	h := sha256.New()
	for _, p := range parts {
		h.Write(p)
	}
	return hex.EncodeToString(h.Sum(nil)[:8])
}

// mesh replays a log, and has the content that a frontend serves at the version
// that the replay has reached.
type mesh struct {
	replay  *past.Replay
	content *store.Snapshot
	world   *world.World
	pc      *index.PushContext
	cache   *content.Cache
	gate    *gate.Gate
	digests map[*xds.Resource]string
	made    []problem.Diagnostic
}

func newMesh() *mesh {
	empty := world.NewWorld()
	return &mesh{
		world: empty, pc: index.NewPushContext(empty), cache: content.New(0), gate: gate.New(),
		digests: map[*xds.Resource]string{},
	}
}

// run replays the log, and calls version at the end of each version.
func (m *mesh) run(ctx context.Context, p *past.Past, version func() error) (err error) {
	if m.replay, err = past.BeginAtFloor(ctx, p); err != nil {
		return err
	}
	bounds, err := p.Log.Bounds(ctx)
	if err != nil {
		return err
	}
	end := func() error {
		if err := m.advance(); err != nil {
			return fmt.Errorf("version %s: %w", m.position(), err)
		}
		return version()
	}
	var last time.Time
	for r, err := range past.Records(ctx, p.Log, m.replay.Position().Seq+1, bounds.Last) {
		if err != nil {
			return err
		}
		if !last.IsZero() && r.Time.Sub(last).Abs() >= quiet {
			if err := end(); err != nil {
				return err
			}
		}
		if _, err := m.replay.Next(ctx, r); err != nil {
			return err
		}
		last = r.Time
	}
	return end()
}

// advance makes a version of the replayed content, as a frontend's replica does.
func (m *mesh) advance() error {
	next := m.replay.Content()
	if m.content != nil && m.content.Root() == next.Root() {
		return nil
	}
	delta := store.Diff(m.content, next)
	var rows []world.RowChange
	for _, r := range delta.Put {
		rows = append(rows, world.RowChange{Row: r.Key, Value: r.Value})
	}
	for _, row := range delta.Remove {
		rows = append(rows, world.RowChange{Row: row})
	}
	now, keys, err := m.world.Apply(world.Change{Rows: rows})
	if err != nil {
		return err
	}
	pc, changed := m.pc.Next(now, keys)
	m.content, m.world, m.pc = next, now, pc
	m.cache.Update(m.replay.Position(), time.Time{}, pc, changed)
	m.made, err = m.gate.Build(now, keys)
	return err
}

func (m *mesh) position() string { return m.replay.Position().String() }

func (m *mesh) root() string { return hex.EncodeToString(first8(m.content.Root())) }

func first8(h ident.Hash) []byte { return h[:8] }

// problems returns the problems that a builder would publish with the version:
// lines, and how often each occurs.
func (m *mesh) problems() map[string]int {
	count := map[string]int{}
	for _, d := range slices.Concat(m.replay.Fold().Diagnostics(), m.world.Diagnostics(), m.made) {
		count[problemLine(d)]++
	}
	return count
}

// client is a node that is connected to the mesh.
type client struct {
	node   node
	client *content.Client
}

// typeNames are the short names of the resource types.
var typeNames = func() (names []string) {
	for t := range ident.ResourceTypes {
		names = append(names, t.String())
	}
	return names
}()

func (m *mesh) join(n node) (*client, error) {
	p, err := proxy.New(n.node)
	if err != nil {
		return nil, fmt.Errorf("node %s: %w", n.name, err)
	}
	return &client{n, m.cache.Join(p, func() {})}, nil
}

// served returns what the client is served, by type.
func (m *mesh) served(c *client) []served {
	view := c.client.View()
	subscribed := map[ident.ResourceType][]string{}
	if c.node.names != nil {
		subscribed = subscriptions(view.Sets, c.node.names)
	}
	all := make([]served, ident.ResourceTypes)
	for t := range ident.ResourceTypes {
		set := view.Sets[t]
		all[t] = served{set: set, version: set.Sum, resources: set.Resources, digest: m.digestOf}
		if c.node.names == nil {
			continue
		}
		all[t].set, all[t].version, all[t].resources = nil, new(names.Table).InternList(subscribed[t]).SumIn(set), nil
		for _, name := range subscribed[t] {
			r := set.Find(name)
			if r == nil && (t == ident.EDS || t == ident.RDS) {
				r = xds.Empty(t, name)
			}
			if r != nil {
				all[t].resources = append(all[t].resources, r)
			}
		}
	}
	return all
}

// served is what a node is served of a type.
type served struct {
	set       *xds.Set // nil if the node subscribes to names
	version   xds.Sum
	resources []*xds.Resource
	digest    func(*xds.Resource) string
}

// subscriptions returns the names that a gRPC client requests, by type and sorted:
// the Listeners, and what they refer to, down to the endpoints.
func subscriptions(sets [ident.ResourceTypes]*xds.Set, listeners []string) map[ident.ResourceType][]string {
	names := map[ident.ResourceType][]string{ident.LDS: slices.Sorted(slices.Values(listeners))}
	for _, step := range []struct{ from, to ident.ResourceType }{
		{ident.LDS, ident.RDS}, {ident.LDS, ident.CDS}, {ident.RDS, ident.CDS}, {ident.CDS, ident.EDS},
	} {
		for _, name := range names[step.from] {
			if r := sets[step.from].Find(name); r != nil {
				names[step.to] = append(names[step.to], references(step.from.String(), step.to.String(), r.Value())...)
			}
		}
		slices.Sort(names[step.to])
		names[step.to] = slices.Compact(names[step.to])
	}
	return names
}

// texts returns the resources that were digested, as YAML, by their digests.
func (m *mesh) texts() map[string]string {
	texts := map[string]string{}
	for r, d := range m.digests {
		if texts[d] == "" {
			texts[d] = yamlOf(append(slices.Clone(r.Head), r.Value()...))
		}
	}
	return texts
}

// digestOf returns the digest of the bytes of a resource in a DiscoveryResponse.
func (m *mesh) digestOf(r *xds.Resource) string {
	d, ok := m.digests[r]
	if !ok {
		d = digest(r.Head, r.Value())
		m.digests[r] = d
	}
	return d
}
