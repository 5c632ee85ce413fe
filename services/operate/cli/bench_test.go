package cli

import (
	"bytes"
	"context"
	"flag"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"meshlog.dev/events"
	"meshlog.dev/events/archive"
	"meshlog.dev/events/memlog"
	"meshlog.dev/proto/ident"
	reportv1 "meshlog.dev/proto/meshlog/report/v1"
	"meshlog.dev/services/builder"
	"meshlog.dev/services/mesh/fold"
	"meshlog.dev/services/mesh/meshtest"
	"meshlog.dev/services/mesh/world"
	"meshlog.dev/services/operate/past"
	"meshlog.dev/store"
	"meshlog.dev/store/memstore"
)

// The log of BenchmarkPast: a week of changes.
var (
	benchRecords  = flag.Int("past.records", 1_000_000, "records on the log of BenchmarkPast")
	benchServices = flag.Int("past.services", 1000, "services in its mesh, each with an EndpointSlice")
)

const (
	benchWeek       = 7 * 24 * time.Hour
	benchPerVersion = 500 // records: what the gate costs a version is not measured here
	benchRoutes     = 100
	benchMarker     = 4321 // the timeout of a route from the middle of the week on, which bisect finds
)

// week is a mesh with a long past, which a real builder folds and publishes.
type week struct {
	b       *testing.B
	log     *memlog.Log
	chain   *memstore.Chain
	machine *builder.Machine
	now     time.Time
	ids     int
	pseq    uint64
	after   uint64
	pending builder.WriteCheckpoint
	digest  events.ShardDigests // of what is listed
	listed  bool
	all     []events.Event
}

type noFleet struct{}

func (noFleet) Tick(context.Context, *reportv1.Tick) error                 { return nil }
func (noFleet) AskListing(context.Context, *reportv1.ListingRequest) error { return nil }

var benchShard = ident.Shard{Source: "file", Instance: "default"}

func (w *week) id() string { w.ids++; return fmt.Sprint("id", w.ids) }

func (w *week) add(body events.Body) {
	w.all = append(w.all, events.Event{ID: w.id(), Observed: w.now, Actor: "ann", Body: body})
	if len(w.all) == benchPerVersion {
		w.flush()
	}
}

// flush appends what was added, and has the builder publish a version of it.
func (w *week) flush() {
	ctx := w.b.Context()
	if len(w.all) > 0 {
		if _, err := w.log.Append(ctx, w.all, events.Fence{}); err != nil {
			w.b.Fatal(err)
		}
		w.all = w.all[:0]
	}
	if w.after == 0 || w.machine.Stale() {
		after, err := w.machine.Connect(ctx)
		if err != nil {
			w.b.Fatal(err)
		}
		w.after = after
	}
	if err := w.machine.Head(ctx); err != nil {
		w.b.Fatal(err)
	}
	recs, err := w.log.ReadAfter(w.after, 1000)
	if err != nil {
		w.b.Fatal(err)
	}
	if len(recs) > 0 {
		w.after = recs[len(recs)-1].Seq
	}
	if err := w.machine.Read(ctx, recs); err != nil {
		w.b.Fatal(err)
	}
	if _, err := w.machine.Commit(ctx); err != nil {
		w.b.Fatal(err)
	}
	if write := w.pending; write != nil {
		w.pending = nil
		w.machine.Checkpointed(write(ctx, w.chain))
	}
}

func (w *week) put(c meshtest.Change, origin string) {
	w.pseq++
	row := c.Row()
	v, err := world.UnmarshalValue(row.Value)
	if err != nil {
		w.b.Fatal(err)
	}
	k, _, err := ident.ParseRow(row.Row)
	if err != nil {
		w.b.Fatal(err)
	}
	if !w.listed {
		w.digest.Toggle(k, events.ContentHash(k, v))
	}
	w.add(&events.Object{Key: k, Op: events.Put, Value: v, Session: "s1", Pseq: w.pseq, Low: w.pseq, Origin: origin})
}

// benchService is the one that is asked about: its route changes every hour or so.
const benchService = "s7"

func benchRoute(b *testing.B, name string, timeout int) meshtest.Change {
	return meshtest.YAML(b, fmt.Sprintf("apiVersion: networking.istio.io/v1\nkind: VirtualService\nmetadata: {name: %[1]s, namespace: demo}\nspec:\n  hosts: [%[1]s.demo.svc.cluster.local]\n  http: [{timeout: %[2]dms, route: [{destination: {host: %[1]s.demo.svc.cluster.local}}]}]\n", name, timeout))[0]
}

// benchSlice returns the endpoints of a service, which have moved n times.
func benchSlice(service string, n int) meshtest.Change {
	return meshtest.Slice("demo", service, "80 http", fmt.Sprintf("10.%d.%d.%d", 1+n/65000%250, n/250%250, n%250+1))
}

// benchArchive writes an archive of the week, with checkpoints every hour.
func benchArchive(b *testing.B) string {
	w := &week{b: b, chain: memstore.NewChain(), now: time.Unix(1_800_000_000, 0)}
	w.log = memlog.New(func() time.Time { return w.now })
	machine, err := builder.Open(b.Context(), builder.Config{
		ID: "builder", Build: "test", Log: w.log, Feed: w.chain, Store: memstore.Open(&memstore.File{}, store.Retention{Versions: 2}), Fleet: noFleet{},
		Judge: fold.KindJudge{}, Now: func() time.Time { return w.now }, NewID: w.id, Logger: slog.New(slog.DiscardHandler),
		History: 4 * time.Hour, StartCheckpoint: func(write builder.WriteCheckpoint) { w.pending = write },
	})
	if err != nil {
		b.Fatal(err)
	}
	machine.Lead(true)
	w.machine = machine
	for range 3 {
		w.flush()
	}
	w.add(&events.Begin{Shard: benchShard, Session: "s1", Holder: "bench"})
	w.put(meshtest.YAML(b, "apiVersion: meshlog.dev/v1\nkind: MeshPolicy\nmetadata: {name: default}\nspec: {requiredSources: [{source: file, instance: default}]}\n")[0], "policy.yaml:1")
	for i := range *benchServices {
		name := fmt.Sprintf("s%d", i)
		w.put(meshtest.Service("demo", name, "80 http"), name+".yaml:1")
		w.put(benchSlice(name, i), name+".yaml:9")
		if i < benchRoutes {
			w.put(benchRoute(b, name, 1000), name+".yaml:20")
		}
	}
	w.listed = true
	w.add(&events.Alive{Shard: benchShard, Session: "s1", Low: w.pseq + 1, Digest: w.digest.Sum(), Listed: events.AllBuckets()})
	first := w.ids
	step := benchWeek / time.Duration(*benchRecords)
	for i := range *benchRecords - first {
		w.now = w.now.Add(step)
		if i == *benchRecords/2 {
			w.put(benchRoute(b, "s9", benchMarker), "s9.yaml:20")
			continue
		}
		if i%6000 == 3000 {
			w.put(benchRoute(b, benchService, 1000+i/6000), benchService+".yaml:20")
			continue
		}
		n := i % *benchServices
		w.put(benchSlice(fmt.Sprintf("s%d", n), i), fmt.Sprintf("s%d.yaml:9", n))
	}
	w.flush()
	p := &past.Past{Name: "bench", Log: w.log, Versions: w.chain, Blobs: w.chain}
	plan, err := past.PlanExport(b.Context(), p, 0)
	if err != nil {
		b.Fatal(err)
	}
	path := filepath.Join(b.TempDir(), "week.archive")
	f, err := os.Create(path)
	if err != nil {
		b.Fatal(err)
	}
	defer f.Close()
	out, err := archive.NewWriter(f, plan.First)
	if err == nil {
		err = plan.Write(b.Context(), out, nil)
	}
	if err == nil {
		err = out.Close()
	}
	if err != nil {
		b.Fatal(err)
	}
	if plan.Versions < *benchRecords/benchPerVersion/2 {
		b.Fatalf("only %d versions: the builder says %v", plan.Versions, w.machine.Report())
	}
	b.Logf("%d records, %d versions, %d blobs, %d MiB", plan.Last, plan.Versions, plan.Blobs, out.Size()>>20)
	return path
}

// Questions about a week of a million records, from an archive, each with its limit. Open the
// archive is part of each: a command that is run does it.
func BenchmarkPast(b *testing.B) {
	file := benchArchive(b)
	dir := b.TempDir()
	node := filepath.Join(dir, "node.yaml")
	if err := os.WriteFile(node, []byte("node: {id: sidecar~10.0.0.9~app.demo~demo.svc.cluster.local, cluster: app}\n"), 0o600); err != nil {
		b.Fatal(err)
	}
	object := filepath.Join(dir, "object.yaml")
	if err := os.WriteFile(object, []byte("apiVersion: networking.istio.io/v1\nkind: VirtualService\nmetadata: {name: s8, namespace: demo}\nspec:\n  hosts: [s8.demo.svc.cluster.local]\n  http: [{timeout: 9s, route: [{destination: {host: s8.demo.svc.cluster.local}}]}]\n"), 0o600); err != nil {
		b.Fatal(err)
	}
	const host = benchService + ".demo.svc.cluster.local"
	test := fmt.Sprintf(`grep -q '"timeout": "%gs"' "$XDS_DIR/routes.json"`, float64(benchMarker)/1000)
	early := fmt.Sprintf("latest~%d", *benchRecords/benchPerVersion*9/10)
	for _, q := range []struct {
		name string
		most time.Duration
		args []string
	}{
		{"open", 0, []string{"versions", "-n", "1"}},
		{"history", time.Second, []string{"history", "VirtualService/demo/" + benchService}},
		{"diff", time.Second, []string{"diff", "latest~200", "latest~100"}},
		{"why", time.Second, []string{"why", "--node", node, "route/80", "virtual_hosts[" + host + ":80].routes[0].route.timeout"}},
		{"what-if", 2 * time.Second, []string{"what-if", "-f", object}},
		{"bisect", 30 * time.Second, []string{"bisect", "--node", node, "--bad", early, "--good", "latest", "--", "sh", "-c", test}},
		{"replay", 0, []string{"replay", "--from", "1"}},
		{"verify", 0, []string{"verify"}},
	} {
		b.Run(q.name, func(b *testing.B) {
			for b.Loop() {
				cmd := New()
				cmd.SilenceErrors, cmd.SilenceUsage = true, true
				var out, errs bytes.Buffer
				cmd.SetArgs(slices.Concat(q.args[:1], []string{"--archive", file}, q.args[1:]))
				cmd.SetOut(&out)
				cmd.SetErr(&errs)
				begun := time.Now()
				err := cmd.ExecuteContext(b.Context())
				if took := time.Since(begun); err != nil && exitCode(err) < 3 {
					b.Logf("%v\n%s%s", err, errs.String(), out.String()[:min(out.Len(), 2000)])
				} else if q.most > 0 {
					verdict := "PASS"
					if took > q.most {
						verdict = "MISS"
					}
					b.Logf("%s  %s, at most %s: %s", q.name, took.Round(time.Millisecond), q.most, verdict)
				} else {
					b.Logf("%s  %s", q.name, took.Round(time.Millisecond))
				}
			}
		})
	}
}
