package web

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"meshlog.dev/events"
	"meshlog.dev/events/memlog"
	"meshlog.dev/proto/ident"
	"meshlog.dev/services/mesh/world"
	"meshlog.dev/services/operate/command"
)

// logged appends the objects of a head to a log, as a watcher does.
func logged(tb testing.TB, rows map[string][]byte) *memlog.Log {
	tb.Helper()
	log := memlog.New(time.Now)
	shard := ident.Shard{Source: "kubernetes", Instance: "default"}
	all := []events.Event{command.NewEvent("test", &events.Segment{Epoch: 1, Build: "test"}), command.NewEvent("test", &events.Begin{Shard: shard, Session: "s1", Holder: "test"})}
	var n uint64
	for row, b := range rows {
		k, _, err := ident.ParseRow(row)
		if err != nil {
			tb.Fatal(err)
		}
		v, err := world.UnmarshalValue(b)
		if err != nil {
			tb.Fatal(err)
		}
		n++
		k.Source, k.Instance = shard.Source, shard.Instance
		all = append(all, command.NewEvent("test", &events.Object{Key: k, Op: events.Put, Value: v, Session: "s1", Pseq: n, Low: 1}))
	}
	all = append(all, command.NewEvent("test", &events.Alive{Shard: shard, Session: "s1", Low: n + 1, Partial: true, Ends: true}))
	for i, e := range all {
		e.ID = fmt.Sprintf("e%d", i)
		if _, err := log.Append(tb.Context(), []events.Event{e}, events.Fence{}); err != nil {
			tb.Fatal(err)
		}
	}
	return log
}

// BenchmarkWhatIf measures a draft of one object in a mesh with 10,000 services, on a console that
// has answered one before. The goal is 300 ms. "moved" is after another change of the log.
func BenchmarkWhatIf(b *testing.B) {
	s, m, now, _ := services(b, 10_000)
	rows := map[string][]byte{}
	for r := range now.Head.Snapshot.Rows() {
		rows[r.Key] = r.Value
	}
	log := logged(b, rows)
	m.Past.Log = log
	ask := func(b *testing.B, timeout int) {
		text := fmt.Sprintf(`apiVersion: networking.istio.io/v1
kind: VirtualService
metadata: {name: s, namespace: demo}
spec:
  hosts: [s-00777.demo.svc.cluster.local]
  http: [{timeout: %ds, route: [{destination: {host: s-00777.demo.svc.cluster.local}}]}]
`, timeout)
		r := httptest.NewRequest(http.MethodPost, whatIfPath, strings.NewReader(""))
		p := &page{Path: whatIfPath, Now: now.At, Mesh: now, mesh: m}
		d := &whatIfData{Text: text}
		if err := s.judge(r, p, d, text); err != nil {
			b.Fatal(err)
		}
		if len(d.View.Objects) != 1 || len(d.View.Classes) == 0 {
			b.Fatalf("%+v %v", d.View.Summary(), d.View.Problems)
		}
		p.Data = d
		w := httptest.NewRecorder()
		if s.render(w, "what-if.html", p); w.Code != 200 {
			b.Fatalf("status %d", w.Code)
		}
	}
	begun := time.Now()
	ask(b, 1)
	b.Logf("the first one takes %s", time.Since(begun).Round(time.Millisecond))
	n := 1
	b.Run("warm", func(b *testing.B) {
		for b.Loop() {
			n++
			ask(b, n)
		}
	})
	b.Run("moved", func(b *testing.B) {
		for b.Loop() {
			b.StopTimer()
			n++
			for row, value := range rows { // one of them, with another time
				k, _, _ := ident.ParseRow(row)
				v, err := world.UnmarshalValue(value)
				if err != nil {
					b.Fatal(err)
				}
				k.Source, k.Instance, v.Created = "kubernetes", "default", time.Unix(int64(n), 0)
				e := command.NewEvent("test", &events.Object{Key: k, Op: events.Put, Value: v, Session: "s1", Pseq: uint64(100_000 + n), Low: 1})
				e.ID = fmt.Sprintf("moved%d", n)
				if _, err := log.Append(b.Context(), []events.Event{e}, events.Fence{}); err != nil {
					b.Fatal(err)
				}
				break
			}
			b.StartTimer()
			ask(b, n)
		}
	})
}
