package sources

import (
	"context"
	"errors"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/spf13/pflag"

	"meshlog.dev/proto/ident"
	"meshlog.dev/services/internal/bus"
	"meshlog.dev/services/internal/process"
	"meshlog.dev/services/roles/watcher"
)

// fake is a source that says when its watcher begins and ends.
type fake struct {
	said           chan string
	instance, text string
	fails          bool
}

func (f *fake) Flags(fs *pflag.FlagSet) {
	fs.StringVar(&f.instance, "instance", "", "")
	fs.StringVar(&f.text, "text", "", "")
	fs.BoolVar(&f.fails, "fails", false, "")
}
func (f *fake) Check() error       { return nil }
func (f *fake) Verify() error      { return nil }
func (f *fake) Shard() ident.Shard { return ident.Shard{Source: "fake", Instance: f.instance} }
func (f *fake) Run(ctx context.Context, _ watcher.Place) error {
	f.said <- f.instance + " " + f.text + " begins"
	if f.fails {
		return errors.New("it fails")
	}
	<-ctx.Done()
	f.said <- f.instance + " " + f.text + " ends"
	return ctx.Err()
}

// AGG-6, AGG-7, AGG-8: watchers start, restart and stop with their entries, and a source that
// is gone from the file is reported; a file with an error changes nothing, and a watcher that
// fails stops no other.
func TestFollow(t *testing.T) {
	said := make(chan string, 10)
	file := filepath.Join(t.TempDir(), "sources.yaml")
	types := typeTable{"fake": func() source { return &fake{said: said} }}
	r := &runner{
		listFile: listFile{file, func(path string, data []byte) (list, error) { return parse(types, path, data) }},
		running:  map[ident.Shard]running{},
		report: func(ctx context.Context, _ watcher.Place, s ident.Shard) error {
			said <- s.Instance + " is not configured"
			<-ctx.Done()
			return ctx.Err()
		},
		options: Options{
			Own:     []ident.Shard{{Source: "fake", Instance: "own"}},
			Process: &process.Process{Log: slog.New(slog.DiscardHandler)},
			Connect: func(ident.Shard, func(bus.ConnectOptions) bus.ConnectOptions) func(context.Context) (*bus.Conn, error) {
				return nil
			},
		},
	}
	r.tell(nil)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	save := func(text string) {
		t.Helper()
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		r.follow(ctx)
	}
	hears := func(want ...string) { // in any order, because watchers are independent
		t.Helper()
		var got []string
		for range want {
			got = append(got, <-said)
		}
		slices.Sort(got)
		slices.Sort(want)
		if !slices.Equal(got, want) {
			t.Fatalf("%q, want %q", got, want)
		}
		if len(said) > 0 {
			t.Fatalf("%q, want nothing", <-said)
		}
	}
	wrong := func(want string) {
		t.Helper()
		if err := *r.told.Load(); (err != nil) != (want != "") || err != nil && !strings.Contains(err.Error(), want) {
			t.Errorf("wrong is %v, want %q", err, want)
		}
	}
	r.follow(ctx)
	wrong("no such file")
	save("sources: [{type: fake, instance: a, text: one}]")
	hears("a one begins")
	wrong("")
	save("sources:\n- {type: fake, instance: a, text: one}\n- {type: fake, instance: b, fails: true}")
	hears("b  begins")
	save("sources:\n- {type: fake, instance: a, text: two}\n- {type: fake, instance: a, text: three}")
	hears("a one ends", "a two begins", "b is not configured")
	wrong("the source fake/a is there already in line 2")
	save("sources:\n- {type: fake, instance: a, txt: four}")
	hears()
	wrong("txt: no such setting")
	if err := os.Remove(file); err != nil {
		t.Fatal(err)
	}
	r.follow(ctx)
	hears()
	wrong("no such file")
	save("sources:\n- {type: fake, instance: a, text: two}\n- {type: fake, instance: own}")
	hears()
	wrong("sources.yaml:3: this process watches the source fake/own already")
	save("sources: []")
	hears("a two ends", "a is not configured")
	wrong("")
	save("sources: [{type: fake, instance: a, text: two}]")
	hears("a two begins")
}
