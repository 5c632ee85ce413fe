package scenario

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	"google.golang.org/protobuf/types/known/structpb"

	"meshlog.dev/events"
	"meshlog.dev/proto/ident"
	"meshlog.dev/services/mesh/fold"
	"meshlog.dev/services/mesh/index"
	"meshlog.dev/services/mesh/problem"
	"meshlog.dev/services/mesh/proxy"
	"meshlog.dev/services/mesh/simulate"
	"meshlog.dev/services/mesh/trial"
	"meshlog.dev/services/mesh/world"
	"meshlog.dev/services/mesh/xds"
	"meshlog.dev/services/watcher/file"
)

// stage runs a story: it has the files, the log that is made from them, the fold
// of the log, and the proxies.
type stage struct {
	t       *testing.T
	files   map[place]string
	objects map[ident.Key]ident.Value      // the objects on the log
	origins map[place][]problem.Diagnostic // the watcher's, by file
	fold    *fold.Fold
	seq     uint64
	pseqs   map[ident.Shard]uint64 // the last pseq of each shard that has a session
	world   *world.World
	pc      *index.PushContext
	before  *index.PushContext
	catalog *xds.Catalog
	proxies map[string]*proxy.Proxy

	explains bool // each call is explained too
}

// place is a file of a source.
type place struct {
	shard ident.Shard
	file  string
}

const (
	build   = "scenario"
	session = "s"
)

// files is the source of files for which the story names no source.
var files = ident.Shard{Source: "file", Instance: "default"}

func newStage(t *testing.T) *stage {
	s := &stage{
		t: t, files: map[place]string{}, objects: map[ident.Key]ident.Value{}, origins: map[place][]problem.Diagnostic{},
		fold: fold.New(build, fold.KindJudge{Trial: trial.Problems}), pseqs: map[ident.Shard]uint64{}, world: world.NewWorld(), proxies: map[string]*proxy.Proxy{},
	}
	s.pc = index.NewPushContext(s.world)
	s.before, s.catalog = s.pc, xds.NewCatalog(s.pc)
	s.record(&events.Segment{Epoch: 1, Build: build})
	return s
}

// placeOf reads FILE, or SOURCE/INSTANCE FILE.
func placeOf(words []string) place {
	if len(words) == 1 {
		return place{files, words[0]}
	}
	source, instance, _ := strings.Cut(words[0], "/")
	return place{ident.Shard{Source: source, Instance: instance}, words[1]}
}

// open begins the session of a shard, with an empty listing, if it has none.
func (s *stage) open(shard ident.Shard) {
	if _, ok := s.pseqs[shard]; ok {
		return
	}
	s.pseqs[shard] = 0
	s.record(&events.Begin{Shard: shard, Session: session, Holder: "scenario"})
	var none events.ShardDigests
	s.record(&events.Alive{Shard: shard, Session: session, Low: 1, Digest: none.Sum(), Listed: events.AllBuckets()})
}

// record folds one record.
func (s *stage) record(body events.Body) world.Change {
	s.t.Helper()
	s.seq++
	c, _, err := s.fold.Apply(events.Record{Seq: s.seq, Time: time.Unix(int64(s.seq), 0), Event: events.Event{Body: body}}, nil)
	if err != nil {
		s.t.Fatal(err)
	}
	return c
}

// put writes text to a file and publishes all changed objects. An empty text
// removes the file.
func (s *stage) put(at place, text string) error {
	s.open(at.shard)
	s.files[at] = text
	if text == "" {
		delete(s.files, at)
	}
	next := map[ident.Key]ident.Value{}
	var all []events.Object
	s.origins = map[place][]problem.Diagnostic{}
	for _, at := range slices.SortedFunc(maps.Keys(s.files), func(a, b place) int {
		return cmp.Or(strings.Compare(a.shard.String(), b.shard.String()), strings.Compare(a.file, b.file))
	}) {
		objects, problems := file.Objects(at.file, []byte(s.files[at]))
		s.origins[at] = problems
		for _, o := range objects {
			k := ident.Key{Source: at.shard.Source, Instance: at.shard.Instance, Kind: o.Kind, Namespace: o.Namespace, Name: o.Name}
			next[k] = o.Value
			if old, ok := s.objects[k]; !ok || old.Type != o.Value.Type || string(old.Bytes) != string(o.Value.Bytes) {
				all = append(all, events.Object{Key: k, Op: events.Put, Value: o.Value, Origin: o.Origin})
			}
		}
	}
	for k := range s.objects {
		if _, ok := next[k]; !ok {
			all = append(all, events.Object{Key: k, Op: events.Delete})
		}
	}
	slices.SortFunc(all, func(a, b events.Object) int { return strings.Compare(a.Key.String(), b.Key.String()) })
	s.objects = next
	s.publish(all)
	return nil
}

// publish folds objects and applies the changes to the world as one change.
func (s *stage) publish(all []events.Object) {
	var rows []world.RowChange
	for i := range all {
		o := all[i]
		shard := o.Key.Shard()
		s.pseqs[shard]++
		o.Session, o.Pseq, o.Low = session, s.pseqs[shard], s.pseqs[shard]
		rows = append(rows, s.record(&o).Rows...)
	}
	world, keys, err := s.world.Apply(world.Change{Rows: rows})
	if err != nil {
		s.t.Fatal(err)
	}
	s.before = s.pc
	var changed []index.Input
	s.pc, changed = s.pc.Next(world, keys)
	s.world = world
	s.catalog.Update(s.pc, changed)
	s.check()
}

// define reads the section "proxies".
func (s *stage) define(text string) error {
	for line := range strings.Lines(text) {
		if strings.TrimSpace(line) == "" {
			continue
		}
		name, rest, ok := strings.Cut(line, ":")
		words := strings.Fields(rest)
		if !ok || len(words) == 0 {
			return fmt.Errorf("%q: want NAME: NODE-ID [label=value ...]", strings.TrimSpace(line))
		}
		labels, metadata := map[string]any{}, map[string]any{}
		var extensions []*corev3.Extension
		for _, w := range words[1:] {
			k, v, _ := strings.Cut(w, "=")
			if m, ok := strings.CutPrefix(k, "@"); ok {
				metadata[m] = v
			} else if k == "extension" {
				extensions = append(extensions, &corev3.Extension{Name: v})
			} else {
				labels[k] = v
			}
		}
		metadata["LABELS"] = labels
		if err := s.join(strings.TrimSpace(name), words[0], metadata, "", extensions...); err != nil {
			return err
		}
	}
	return nil
}

func (s *stage) join(name, id string, metadata map[string]any, agent string, extensions ...*corev3.Extension) error {
	m, err := structpb.NewStruct(metadata)
	if err != nil {
		return err
	}
	p, err := proxy.New(&corev3.Node{Id: id, Cluster: name, Metadata: m, UserAgentName: agent, Extensions: extensions})
	if err != nil {
		return err
	}
	s.proxies[name] = p
	return nil
}

// proxy returns a proxy that the story defines, or one of those that always exist.
func (s *stage) proxy(name string) (*proxy.Proxy, error) {
	if p := s.proxies[name]; p != nil {
		return p, nil
	}
	kind, ns, _ := strings.Cut(name, ".")
	if ns == "" {
		ns = "default"
	}
	var err error
	switch kind {
	case "sidecar", "router":
		err = s.join(name, fmt.Sprintf("%s~10.99.0.1~app.%s~%s.svc.cluster.local", kind, ns, ns), map[string]any{}, "envoy")
	case "grpc":
		err = s.join(name, "client", map[string]any{"NAMESPACE": ns}, "gRPC Go")
	case "plain":
		err = s.join(name, "edge-1", map[string]any{}, "envoy")
	default:
		err = fmt.Errorf("unknown proxy %q", name)
	}
	return s.proxies[name], err
}

// sets returns what a proxy is served.
func (s *stage) sets(pc *index.PushContext, p *proxy.Proxy) [ident.ResourceTypes]*xds.Set {
	class, catalog := index.Classify(pc, p), xds.NewCatalog(pc)
	var sets [ident.ResourceTypes]*xds.Set
	for t := range ident.ResourceTypes {
		sets[t] = catalog.Set(class, t)
	}
	return sets
}

func (s *stage) served(name string) (*simulate.Proxy, error) {
	p, err := s.proxy(name)
	if err != nil {
		return nil, err
	}
	return simulate.NewProxy(s.sets(s.pc, p))
}
