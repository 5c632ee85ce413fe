package samebytes

import (
	"flag"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/tools/txtar"

	"meshlog.dev/events"
	"meshlog.dev/events/archive"
	"meshlog.dev/events/memlog"
	"meshlog.dev/proto/ident"
	"meshlog.dev/services/operate/past"
	"meshlog.dev/services/watcher"
	"meshlog.dev/services/watcher/file"
	"meshlog.dev/store/memstore"
)

var record = flag.Bool("record", false, "write the archives of stories that have none")

// stories matches the stories of services/suite/scenario.
const stories = "../scenario/testdata/*.txtar"

// TestStoriesAreRecorded fails for a story without an archive. With -record it
// writes that archive. It does not change existing archives.
func TestStoriesAreRecorded(t *testing.T) {
	paths, err := filepath.Glob(stories)
	if err != nil || len(paths) == 0 {
		t.Fatalf("%s: %v, %v", stories, paths, err)
	}
	for _, path := range paths {
		name := strings.TrimSuffix(filepath.Base(path), ".txtar")
		w := sample{name: "scenario/" + name}
		if _, err := os.Stat(w.file(".archive")); err == nil {
			continue
		}
		if !*record {
			t.Errorf("%s has no archive here: run `go test ./services/suite/samebytes -record -update`", path)
			continue
		}
		story, err := txtar.ParseFile(path)
		if err != nil {
			t.Fatal(err)
		}
		recordStory(t, w, story)
	}
}

func recordStory(t *testing.T, w sample, story *txtar.Archive) {
	t.Helper()
	r := newRecorder(t)
	var nodes strings.Builder
	for i, section := range story.Files {
		words := append(strings.Fields(section.Name), "", "")
		source, name := words[1], words[2]
		if name == "" {
			source, name = "file/default", words[1]
		}
		switch words[0] {
		case "proxies":
			nodes.Write(section.Data)
		case "put":
			r.save(fmt.Sprintf("%03d/%s/%s", i, source, name), string(section.Data))
		case "remove":
			r.save(fmt.Sprintf("%03d/%s/%s", i, source, name), "")
		}
	}
	r.write(w.file(".archive"))
	past, _ := openArchive(t, w.file(".archive"))
	suggestNodes(t, sample{name: w.name, past: past})
	text, err := os.ReadFile(w.file(".nodes"))
	if err != nil {
		t.Fatal(err)
	}
	if nodes.Len() > 0 {
		text = fmt.Appendf(text, "# The proxies of the story.\n%s", strings.ReplaceAll("\n"+nodes.String(), "\n", "\nstory.")[1:])
		text = []byte(strings.TrimSuffix(string(text), "story."))
	}
	write(t, w.file(".nodes"), string(text))
}

// recorder writes a log with fixed times from the contents of files.
type recorder struct {
	t         *testing.T
	log       *memlog.Log
	now       time.Time
	ids       int
	pseqs     map[ident.Shard]uint64
	files     map[string][]watcher.Object // by "source/instance/file"
	objects   map[ident.Key]events.Object
	documents []document
}

func newRecorder(t *testing.T) *recorder {
	r := &recorder{
		t: t, now: time.Unix(1_700_000_000, 0), pseqs: map[ident.Shard]uint64{},
		files: map[string][]watcher.Object{}, objects: map[ident.Key]events.Object{},
	}
	r.log = memlog.New(func() time.Time { r.now = r.now.Add(time.Microsecond); return r.now })
	r.append(&events.Segment{Epoch: 1, Build: "samebytes"})
	return r
}

// append appends records to the log, in batches that the log accepts.
func (r *recorder) append(bodies ...events.Body) {
	r.t.Helper()
	for batch := range slices.Chunk(bodies, events.MaxBatch) {
		var all []events.Event
		for _, b := range batch {
			r.ids++
			all = append(all, events.Event{ID: fmt.Sprintf("samebytes-%d", r.ids), Body: b})
		}
		if _, err := r.log.Append(r.t.Context(), all, events.Fence{}); err != nil {
			r.t.Fatal(err)
		}
	}
}

// save writes text to a file, one second after the step before. The name is
// STEP/SOURCE/INSTANCE/FILE. An empty text removes the file.
func (r *recorder) save(name, text string) { r.saveAll(map[string]string{name: text}) }

// saveAll saves several files at once.
func (r *recorder) saveAll(texts map[string]string) {
	r.t.Helper()
	r.now = r.now.Add(time.Second)
	for name, text := range texts {
		_, path, _ := strings.Cut(name, "/")
		if text != "" {
			r.documents = append(r.documents, document{name, text})
		}
		r.files[path], _ = file.Objects(path[strings.LastIndexByte(path, '/')+1:], []byte(text))
	}
	next := map[ident.Key]events.Object{}
	var changed []events.Object
	for _, path := range slices.Sorted(maps.Keys(r.files)) {
		parts := strings.SplitN(path, "/", 3)
		for _, o := range r.files[path] {
			k := ident.Key{Source: parts[0], Instance: parts[1], Kind: o.Kind, Namespace: o.Namespace, Name: o.Name}
			put := events.Object{Key: k, Op: events.Put, Value: o.Value, Origin: o.Origin}
			next[k] = put
			if old, ok := r.objects[k]; !ok || old.Value.Type != o.Value.Type || string(old.Value.Bytes) != string(o.Value.Bytes) {
				changed = append(changed, put)
			}
		}
	}
	for k := range r.objects {
		if _, ok := next[k]; !ok {
			changed = append(changed, events.Object{Key: k, Op: events.Delete})
		}
	}
	r.objects = next
	slices.SortFunc(changed, func(a, b events.Object) int { return strings.Compare(a.Key.String(), b.Key.String()) })
	r.publish(changed)
}

// publish appends objects, each in the session of its shard.
func (r *recorder) publish(changed []events.Object) {
	r.t.Helper()
	var bodies []events.Body
	for i := range changed {
		o := &changed[i]
		shard := o.Key.Shard()
		o.Session = "s"
		if r.pseqs[shard] == 0 {
			var none events.ShardDigests
			bodies = append(bodies, &events.Begin{Shard: shard, Session: o.Session, Holder: "samebytes"},
				&events.Alive{Shard: shard, Session: o.Session, Low: 1, Digest: none.Sum(), Listed: events.AllBuckets()})
		}
		r.pseqs[shard]++
		o.Pseq, o.Low = r.pseqs[shard], r.pseqs[shard]
		bodies = append(bodies, o)
	}
	r.append(bodies...)
}

func (r *recorder) past() *past.Past {
	chain := memstore.NewChain()
	return &past.Past{Name: "recorder", Log: r.log, Versions: chain, Blobs: chain}
}

// write exports the log to an archive, with the documents beside it.
func (r *recorder) write(path string) {
	r.t.Helper()
	writeArchive(r.t, path, r.past(), r.documents)
}

func writeArchive(t *testing.T, path string, from *past.Past, documents []document) {
	t.Helper()
	export, err := past.PlanExport(t.Context(), from, 0)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		t.Fatal(err)
	}
	f, err := os.Create(path)
	if err != nil {
		t.Fatal(err)
	}
	w, err := archive.NewWriter(f, export.First)
	if err != nil {
		t.Fatal(err)
	}
	for _, d := range documents {
		if err := w.Put(documentFiles+d.name, []byte(d.text)); err != nil {
			t.Fatal(err)
		}
	}
	if err := export.Write(t.Context(), w, nil); err != nil {
		t.Fatal(err)
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	if err := f.Close(); err != nil {
		t.Fatal(err)
	}
}
