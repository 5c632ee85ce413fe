package scenario

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/tools/txtar"
	"meshlog.dev/proto/ident"
	"meshlog.dev/services/mesh/why"
)

func TestExperiment(t *testing.T) {
	files, _ := filepath.Glob("testdata/*.txtar")
	n, none, leaves, tried := 0, 0, 0, 0
	var worst time.Duration
	what := ""
	start := time.Now()
	for _, file := range files {
		if only := os.Getenv("STORY"); only != "" && !strings.Contains(file, only) {
			continue
		}
		story, err := txtar.ParseFile(file)
		if err != nil {
			t.Fatal(err)
		}
		s := newStage(t)
		if _, err := s.play(story); err != nil {
			t.Fatal(err)
		}
		for name, p := range s.proxies {
			sets := s.sets(s.pc, p)
			for ty := range ident.ResourceTypes {
				if ty == ident.NDS {
					continue
				}
				for _, r := range sets[ty].Resources {
					begin := time.Now()
					a, err := why.Why(why.Question{World: s.world, Proxy: p, Type: ty, Resource: r.Name})
					if err != nil {
						t.Fatalf("%s %s %s %s: %v", file, name, ty, r.Name, err)
					}
					took := time.Since(begin)
					if took > worst {
						worst, what = took, fmt.Sprint(file, name, ty, r.Name, a.Leaves, a.Tried)
					}
					n++
					tried += a.Tried
					for _, c := range a.Causes {
						leaves++
						if len(c.Set) == 0 {
							none++
						}
					}
					if os.Getenv("SHOW") != "" && strings.Contains(fmt.Sprint(name, " ", ty, " ", r.Name), os.Getenv("SHOW")) {
						b, _ := s.why([]string{name, ty.String(), r.Name})
						fmt.Printf("== %s %s %s %s (%v, %d worlds, %d leaves, %d read)\n%s", file, name, ty, r.Name, took, a.Tried, a.Leaves, a.Read, b)
					}
				}
			}
		}
	}
	fmt.Printf("%d resources, %d leaves, %d default, %d worlds, %v, worst %v: %s\n", n, leaves, none, tried, time.Since(start), worst, what)
}
