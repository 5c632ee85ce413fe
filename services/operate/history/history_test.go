package history

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"meshlog.dev/proto/ident"
	"meshlog.dev/services/operate/command"
	"meshlog.dev/services/operate/operatetest"
	"meshlog.dev/services/operate/past"
)

// The output of commands about the past is fixed in all formats, because scripts read
// it.

var exampleKey = past.Key{Source: "file", Instance: "default", Kind: "VirtualService", Namespace: "demo", Name: "shop"}

func exampleChanges() []past.ObjectChange {
	text := func(s string) json.RawMessage { return json.RawMessage(s) }
	return []past.ObjectChange{
		{
			Object: "VirtualService demo/shop (file/default)", Key: exampleKey, Seq: 41, Change: "changed",
			Fields: []past.FieldChange{
				{Path: "spec.http[0].route[0].weight", Before: text("90"), After: text("50")},
				{Path: "spec.http[0].timeout", After: text(`"5s"`)},
				{Path: "spec.http[1]", Before: text(`{"route":[{"destination":{"host":"a.very.long.name.of.a.service.in.another.namespace.svc.cluster.local"}}]}`)},
			},
		},
		{
			Object: "ServiceEntry demo/shop (file/default)", Key: past.Key{Source: "file", Instance: "default", Kind: "ServiceEntry", Namespace: "demo", Name: "shop"},
			Change: "added", After: text(`{"hosts":["shop"]}`), Seq: 42,
		},
		{Object: "overlay hold-1", Overlay: "hold-1", Change: "removed", Before: text(`{"kind":"hold"}`)},
		{
			Object: "Strange z (x/y)", Key: past.Key{Source: "x", Instance: "y", Kind: "Strange", Name: "z"},
			Change: "changed", Unreadable: `this build knows no kind "Strange"`,
		},
	}
}

func position(seq uint64) ident.Position { return ident.Position{Epoch: 1, Seq: seq} }

func TestPrintDiff(t *testing.T) {
	v := &DiffView{From: position(40), To: position(42)}
	for _, c := range exampleChanges() {
		v.Changes = append(v.Changes, causedChange{ObjectChange: c})
	}
	v.Changes[0].Cause = "PUT routes.yaml:2 by file"
	operatetest.Golden(t, "diff", func(o *command.Output) { o.Print(v, func() { v.show(o) }) })
	none := &DiffView{From: position(40), To: position(40), Changes: []causedChange{}}
	operatetest.Golden(t, "diff-none", func(o *command.Output) { o.Print(none, func() { none.show(o) }) })
}

func TestPrintHistory(t *testing.T) {
	views := []*past.KeyEvent{
		{Key: exampleKey, Seq: 7, Time: at, What: "put", Effect: "served", Applied: position(8), Version: position(10), Actor: "file", Origin: "routes.yaml:2", Spec: json.RawMessage(`{"hosts":["*"]}`)},
		{
			Key: exampleKey, Seq: 11, Time: at.Add(time.Minute), What: "put", Effect: "served", Applied: position(11), Version: position(11), Actor: "file", Origin: "routes.yaml:2",
			Fields: []past.FieldChange{{Path: "spec.http[0].route[0].weight", Before: json.RawMessage("90"), After: json.RawMessage("50")}},
		},
		{
			Key: exampleKey, Seq: 12, Time: at.Add(2 * time.Minute), What: "put", Effect: "refused", Applied: position(12), Actor: "file", Origin: "routes.yaml:2",
			Problems: []string{"spec.http[0].route[0].weight: is -1"},
		},
		{Key: exampleKey, Seq: 20, Time: at.Add(3 * time.Minute), What: "overlay", Effect: "covered", Applied: position(20), Version: position(20), Overlay: "hold-1", Actor: "builder-1"},
	}
	operatetest.Golden(t, "history", func(o *command.Output) { o.Print(views, func() { showHistory(views, o) }) })
	views[1].Key.Source, views[1].Key.Instance = "kubernetes", "eu"
	views = views[:2]
	operatetest.Golden(t, "history-several", func(o *command.Output) { o.Print(views, func() { showHistory(views, o) }) })
}

func TestPrintShow(t *testing.T) {
	entry := past.Key{Source: "file", Instance: "default", Kind: "ServiceEntry", Namespace: "demo", Name: "shop"}
	v := &contentView{
		Version: position(42), Time: at, Root: "abcd", Overlays: []string{"hold-1"},
		Objects: []Standing{
			{Object: "ServiceEntry demo/shop (file/default)", Key: entry, Served: true, Overlays: []string{"hold-1"}},
			{Object: "VirtualService demo/shop (file/default)", Key: exampleKey, Served: true, Seq: 11},
			{Object: "VirtualService demo/shop (kubernetes/eu)", Key: past.Key{Source: "kubernetes", Instance: "eu", Kind: "VirtualService", Namespace: "demo", Name: "shop"}, Seq: 12},
		},
	}
	operatetest.Golden(t, "show", func(o *command.Output) { o.Print(v, func() { v.show(o) }) })

	m := ident.Position{Epoch: 1, Seq: 42}
	one := &Standing{
		Object: "VirtualService demo/shop (file/default)", Key: exampleKey, Served: true, Seq: 11, Cause: "PUT routes.yaml:2 by file",
		Overlays: []string{"rollback-1"},
		Value:    json.RawMessage(`{"hosts":["*"],"http":[{"route":[{"destination":{"host":"shop"},"weight":90}]}]}`),
		Offered:  json.RawMessage(`{"hosts":["*"]}`),
	}
	operatetest.Golden(t, "show-one", func(o *command.Output) {
		o.Print(one, func() {
			if err := one.show(m, o); err != nil {
				t.Error(err)
			}
		})
	})
}

// A document can be applied again: it names the kind as its API does.
func TestDocumentKind(t *testing.T) {
	gateway := past.Key{Source: "file", Instance: "default", Kind: "KubernetesGateway", Namespace: "demo", Name: "edge"}
	b, err := documentYAML(gateway, json.RawMessage(`{"spec":{"gatewayClassName":"meshlog"}}`))
	if err != nil {
		t.Fatal(err)
	}
	want := `apiVersion: gateway.networking.k8s.io/v1
kind: Gateway
metadata:
  name: edge
  namespace: demo
spec:
  gatewayClassName: meshlog
`
	if diff := cmp.Diff(want, string(b)); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

func TestPrintReplay(t *testing.T) {
	step := stepView{
		Position: position(42), Time: at, What: "put", Object: "VirtualService demo/shop (file/default)", Detail: "routes.yaml:2", Actor: "file",
		Changes: exampleChanges(), Problems: []string{"warning: routes.yaml:2: spec.http: is doubtful"},
	}
	end := replayView{From: position(1), To: position(42), Time: at, Records: 41, Objects: 2, Root: "abababababababab", Recorded: "abababababababab", Build: "0.1.0+abc", Steps: []stepView{}}
	for name, o := range map[string]replayOptions{"replay": {}, "replay-step": {step: true}} {
		operatetest.Golden(t, name, func(out *command.Output) {
			s := &replayer{out: out, o: o, view: end}
			if err := s.step(step); err != nil {
				t.Error(err)
			}
			out.Print(&s.view, s.summary)
		})
	}
}

func TestPrintVerify(t *testing.T) {
	v := &past.Verification{
		Build: "0.1.0+abc", Floor: ident.Position{Epoch: 1, Seq: 9}, First: 10, Last: 99, Versions: 20, Same: 14, SameOther: 1,
		Findings: []past.Finding{
			{Version: ident.Position{Epoch: 1, Seq: 5}, Verdict: past.Unfolded, Build: "0.1.0+abc", Reason: "it lies before the replay floor 1.9"},
			{Version: ident.Position{Epoch: 1, Seq: 40}, Verdict: past.Broken, Build: "0.1.0+abc", Reason: "record 40 is another than the one it was made from"},
			{Version: ident.Position{Epoch: 1, Seq: 50}, Verdict: past.OtherBuild, Build: "0.0.9", Reason: "made by 0.0.9 it has root ab, this build comes to cd"},
			{Version: ident.Position{Epoch: 1, Seq: 60}, Verdict: past.Rewound, Build: "0.1.0+abc", Reason: "its part of the log was lost; epoch 2 followed"},
			{Version: ident.Position{Epoch: 2, Seq: 61}, Verdict: past.Restored, Build: "0.1.0+abc", Reason: "record 61 has another time"},
		},
	}
	operatetest.Golden(t, "verify", func(o *command.Output) {
		o.Print(verifyView{false, v}, func() { showVerification(v, o) })
	})
	if err := verdict(v); exitCode(err) != 0 || fmt.Sprint(err) != "1 thing does not hold" {
		t.Errorf("verdict: %v, exit code %d, want the general one", err, exitCode(err))
	}
	v.Findings = v.Findings[2:3]
	if err := verdict(v); exitCode(err) != 4 {
		t.Errorf("verdict of other builds: %v, exit code %d", err, exitCode(err))
	}
	v.Findings = nil
	if err := verdict(v); err != nil {
		t.Error(err)
	}
	var b bytes.Buffer
	showVerification(v, command.NewOutput(&b, command.Table))
	if !bytes.HasSuffix(b.Bytes(), []byte("All versions hold.\n")) {
		t.Error(b.String())
	}
}

func TestPrintExport(t *testing.T) {
	e := exportView{
		File: "mesh.archive", Bytes: 20 << 20,
		Export: &past.Export{First: 10, Last: 99, From: position(9), To: position(99), Versions: 20, Blobs: 3},
	}
	operatetest.Golden(t, "export", func(o *command.Output) { o.Print(e, func() { e.show(o) }) })
	i := importView{Into: "copy", First: 10, Last: 99, Version: position(99)}
	operatetest.Golden(t, "import", func(o *command.Output) { o.Print(i, func() { i.show(true, o) }) })
}

// A replay waits for Enter on a terminal, and stops waiting when the input ends.
func TestReplayWaits(t *testing.T) {
	var b bytes.Buffer
	s := &replayer{out: command.NewOutput(&b, command.Table), enter: bytes.NewBufferString("\nabc\n")}
	for range 3 {
		if err := s.wait(); err != nil {
			t.Fatal(err)
		}
	}
	if s.enter != nil {
		t.Error("the replay still waits after the input ended")
	}
	s.enter = failing{}
	if err := s.wait(); err == nil {
		t.Error("an error of the terminal is not returned")
	}
}

type failing struct{}

func (failing) Read([]byte) (int, error) { return 0, errors.New("gone") }

// exitCode returns the exit code of an error that has one of its own.
func exitCode(err error) int {
	var coded interface{ ExitCode() int }
	if errors.As(err, &coded) {
		return coded.ExitCode()
	}
	return 0
}
