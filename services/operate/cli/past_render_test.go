package cli

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"testing"
	"time"

	"meshlog.dev/proto/ident"
	"meshlog.dev/services/operate/past"
)

// What is printed of the past, in all formats: scripts read it.

var exampleKey = keyView{Source: "file", Instance: "default", Kind: "VirtualService", Namespace: "demo", Name: "shop"}

func exampleChanges() []objectChange {
	text := func(s string) json.RawMessage { return json.RawMessage(s) }
	return viewChanges([]past.ObjectChange{
		{
			Key: ident.Key{Source: "file", Instance: "default", Kind: "VirtualService", Namespace: "demo", Name: "shop"}, Seq: 41,
			Before: text(`{"a":1}`), After: text(`{"a":2}`),
			Fields: []past.FieldChange{
				{Path: "spec.http[0].route[0].weight", Before: text("90"), After: text("50")},
				{Path: "spec.http[0].timeout", After: text(`"5s"`)},
				{Path: "spec.http[1]", Before: text(`{"route":[{"destination":{"host":"a.very.long.name.of.a.service.in.another.namespace.svc.cluster.local"}}]}`)},
			},
		},
		{Key: ident.Key{Source: "file", Instance: "default", Kind: "ServiceEntry", Namespace: "demo", Name: "shop"}, After: text(`{"hosts":["shop"]}`), Seq: 42},
		{Overlay: "hold-1", Before: text(`{"kind":"hold"}`)},
		{Key: ident.Key{Source: "x", Instance: "y", Kind: "Strange", Name: "z"}, Before: text("null"), After: text("null"), Unreadable: `this build knows no kind "Strange"`},
	})
}

func TestPrintDiff(t *testing.T) {
	v := &diffView{From: "1.40", To: "1.42", Changes: exampleChanges()}
	v.Changes[0].Cause = "PUT routes.yaml:2 by file"
	golden(t, "diff", func(o *output) error { return o.print(v, func() error { return showDiff(v, o) }) })
	none := &diffView{From: "1.40", To: "1.40", Changes: []objectChange{}}
	golden(t, "diff-none", func(o *output) error { return o.print(none, func() error { return showDiff(none, o) }) })
}

func TestPrintHistory(t *testing.T) {
	views := []keyEventView{
		{Key: exampleKey, Seq: 7, Time: at, What: "put", Effect: "served", Applied: "1.8", Version: "1.10", Actor: "file", Origin: "routes.yaml:2", Spec: json.RawMessage(`{"hosts":["*"]}`)},
		{
			Key: exampleKey, Seq: 11, Time: at.Add(time.Minute), What: "put", Effect: "served", Applied: "1.11", Version: "1.11", Actor: "file", Origin: "routes.yaml:2",
			Fields: []fieldView{{"spec.http[0].route[0].weight", json.RawMessage("90"), json.RawMessage("50")}},
		},
		{
			Key: exampleKey, Seq: 12, Time: at.Add(2 * time.Minute), What: "put", Effect: "refused", Applied: "1.12", Actor: "file", Origin: "routes.yaml:2",
			Problems: []string{"spec.http[0].route[0].weight: is -1"},
		},
		{Key: exampleKey, Seq: 20, Time: at.Add(3 * time.Minute), What: "overlay", Effect: "covered", Applied: "1.20", Version: "1.20", Overlay: "hold-1", Actor: "builder-1"},
	}
	golden(t, "history", func(o *output) error { return o.print(views, func() error { return showHistory(views, o) }) })
	views[1].Key.Source, views[1].Key.Instance = "kubernetes", "eu"
	views = views[:2]
	golden(t, "history-several", func(o *output) error { return o.print(views, func() error { return showHistory(views, o) }) })
}

func TestPrintShow(t *testing.T) {
	published := at
	entry := keyView{Source: "file", Instance: "default", Kind: "ServiceEntry", Namespace: "demo", Name: "shop"}
	v := &contentView{
		Version: "1.42", Time: &published, Root: "abcd", Overlays: []string{"hold-1"},
		Objects: []objectStanding{
			{Object: "ServiceEntry demo/shop (file/default)", Key: entry, Served: true, Overlays: []string{"hold-1"}},
			{Object: "VirtualService demo/shop (file/default)", Key: exampleKey, Served: true, Seq: 11},
			{Object: "VirtualService demo/shop (kubernetes/eu)", Key: keyView{"kubernetes", "eu", "VirtualService", "demo", "shop"}, Seq: 12},
		},
	}
	golden(t, "show", func(o *output) error { return o.print(v, func() error { return showContent(v, o) }) })

	m := moment{Version: ident.Position{Epoch: 1, Seq: 42}}
	one := &objectStanding{
		Object: "VirtualService demo/shop (file/default)", Key: exampleKey, Served: true, Seq: 11, Cause: "PUT routes.yaml:2 by file",
		Overlays: []string{"rollback-1"},
		Value:    json.RawMessage(`{"hosts":["*"],"http":[{"route":[{"destination":{"host":"shop"},"weight":90}]}]}`),
		Offered:  json.RawMessage(`{"hosts":["*"]}`),
	}
	golden(t, "show-one", func(o *output) error { return o.print(one, func() error { return showObject(one, m, o) }) })
}

func TestPrintReplay(t *testing.T) {
	step := stepView{
		Position: "1.42", Time: at, What: "put", Object: "VirtualService demo/shop (file/default)", Detail: "routes.yaml:2", Actor: "file",
		Changes: exampleChanges(), Problems: []string{"warning: routes.yaml:2: spec.http: is doubtful"},
	}
	end := replayView{From: "1.1", To: "1.42", Time: at, Records: 41, Objects: 2, Root: "abababababababab", Recorded: "abababababababab", Build: "0.1.0+abc", Steps: []stepView{}}
	for name, o := range map[string]replayOptions{"replay": {}, "replay-step": {step: true}} {
		golden(t, name, func(out *output) error {
			s := &replayer{out: out, o: o, view: end}
			if err := s.step(step); err != nil {
				return err
			}
			return out.print(&s.view, s.summary)
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
	view := viewVerification(v)
	golden(t, "verify", func(o *output) error { return o.print(view, func() error { return showVerification(v, view, o) }) })
	if err := verdict(v); exitCode(err) != 1 || fmt.Sprint(err) != "1 thing does not hold" {
		t.Errorf("verdict: %v, exit code %d", err, exitCode(err))
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
	o := &output{w: &b, format: "table"}
	if err := showVerification(v, viewVerification(v), o); err != nil || !bytes.HasSuffix(b.Bytes(), []byte("All holds.\n")) {
		t.Errorf("%v\n%s", err, b.String())
	}
}

func TestPrintExport(t *testing.T) {
	e := exportView{File: "mesh.archive", Bytes: 20 << 20, First: 10, Last: 99, From: "1.9", To: "1.99", Versions: 20, Blobs: 3}
	golden(t, "export", func(o *output) error { return o.print(e, func() error { return showExport(e, o) }) })
	i := importView{Into: "copy", First: 10, Last: 99, Version: "1.99"}
	golden(t, "import", func(o *output) error { return o.print(i, func() error { return showImport(i, true, o) }) })
}

// A replay waits for Enter on a terminal, and ends where the terminal does.
func TestReplayWaits(t *testing.T) {
	var b bytes.Buffer
	s := &replayer{out: &output{w: &b, format: "table"}, enter: bytes.NewBufferString("\nabc\n")}
	for range 3 {
		if err := s.wait(); err != nil {
			t.Fatal(err)
		}
	}
	if s.enter != nil {
		t.Error("it waits for who is gone")
	}
	s.enter = failing{}
	if err := s.wait(); err == nil {
		t.Error("an error of the terminal is not told")
	}
}

type failing struct{}

func (failing) Read([]byte) (int, error) { return 0, errors.New("gone") }
