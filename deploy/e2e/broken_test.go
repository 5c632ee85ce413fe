package e2e

import (
	"cmp"
	"context"
	"fmt"
	"strings"

	"meshlog.dev/deploy/e2e/rig"
	"meshlog.dev/deploy/e2e/shop"
	"meshlog.dev/deploy/testkit/program"
)

// broken is a way to break the routes.
type broken struct {
	what, old, new string
	field          string // named in the report
	at             string // text in the line that is reported; empty: new
}

var brokenRoutes = []broken{
	{"a field that does not exist", "- route:", "- rout:", "rout", ""},
	{"a value of another type", "weight: 50", "weight: plenty", "weight", ""},
	{"no YAML", "gateways: [edge]", "gateways: [edge", "", ""},
	{"an invalid host", `hosts: ["*"]`, `hosts: ["a b"]`, "hosts", ""},
}

// A broken file is reported with file, line, field and reason, keeps its last
// good value, and affects nothing else.
func brokenFiles(f *fixture) {
	f.shift(50, 50)
	good := f.read(shop.Routes)
	twin := f.backend(shop.V1) // calls itself v1, and runs as v2
	f.during("a file is broken", func() {
		for _, b := range brokenRoutes {
			text := strings.Replace(good, b.old, b.new, 1)
			line := 1 + strings.Count(text[:strings.Index(text, cmp.Or(b.at, b.new))], "\n")
			f.save(shop.Routes, text)
			d := f.reported(b.what, fmt.Sprintf("%s:%d", shop.Routes, line))
			if !strings.Contains(d.Field+": "+d.Reason, b.field) || d.Reason == "" || d.Advice == "" {
				f.Errorf("%s: field %q, reason %q, advice %q; want field %q and both others", b.what, d.Field, d.Reason, d.Advice, b.field)
			}
			f.share(shop.V2, 50)
			f.save(shop.Routes, good)
			f.undiagnosed()
		}
		// A good document beside a broken one is served.
		f.endpoints([]int{f.v1.Port}, []int{f.v2.Port, twin.Port})
		f.share(shop.V1, 75)
		f.endpoints([]int{f.v1.Port}, []int{f.v2.Port})

		f.shift(0, 100)
		f.share(shop.V2, 100)
	})
	f.undiagnosed()
}

// undiagnosed waits until there is no diagnostic.
func (f *fixture) undiagnosed() {
	f.Helper()
	f.must(program.Until(f.ctx, "no diagnostics", func(ctx context.Context) error {
		ds, err := f.diagnostics(ctx)
		if err == nil && len(ds) > 0 {
			err = fmt.Errorf("diagnostics: %+v", ds)
		}
		return err
	}))
}

// reported waits until exactly one diagnostic exists, and it is about file:line.
func (f *fixture) reported(what, origin string) rig.Diagnostic {
	f.Helper()
	var found rig.Diagnostic
	f.must(program.Until(f.ctx, "a diagnostic of "+origin+" ("+what+")", func(ctx context.Context) error {
		ds, err := f.diagnostics(ctx)
		if err != nil {
			return err
		}
		if len(ds) != 1 || !strings.HasSuffix(ds[0].Origin, origin) {
			return fmt.Errorf("diagnostics: %+v", ds)
		}
		found = ds[0]
		return nil
	}))
	return found
}

func (f *fixture) diagnostics(ctx context.Context) ([]rig.Diagnostic, error) {
	var ds []rig.Diagnostic
	err := f.mesh.CLI(ctx, &ds, "diagnostics")
	return ds, err
}

func (f *fixture) read(name string) string {
	f.Helper()
	text, err := f.shop.Read(name)
	f.must(err)
	return text
}

func (f *fixture) save(name, text string) {
	f.Helper()
	_, err := f.shop.Save(name, text)
	f.must(err)
}
