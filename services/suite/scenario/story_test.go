package scenario

import (
	"bytes"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/tools/txtar"
)

var update = flag.Bool("update", false, "rewrite what comes out")

func TestStories(t *testing.T) {
	files, err := filepath.Glob("testdata/*.txtar")
	if err != nil || len(files) == 0 {
		t.Fatalf("testdata: %v, %v", files, err)
	}
	for _, file := range files {
		t.Run(strings.TrimSuffix(filepath.Base(file), ".txtar"), func(t *testing.T) {
			t.Parallel()
			tell(t, file)
		})
	}
}

// tell runs one story.
func tell(t *testing.T, file string) {
	ar, err := txtar.ParseFile(file)
	if err != nil {
		t.Fatal(err)
	}
	s := newStage(t)
	for i, section := range ar.Files {
		out, err := s.section(section.Name, string(section.Data))
		if err != nil {
			t.Fatalf("-- %s --: %v", section.Name, err)
		}
		if out == nil {
			continue
		}
		if *update {
			ar.Files[i].Data = out
			continue
		}
		if diff := cmp.Diff(string(section.Data), string(out)); diff != "" {
			t.Errorf("-- %s -- (-want +got; -update writes it):\n%s", section.Name, diff)
		}
	}
	s.askEnvoy()
	if *update && !t.Failed() {
		if err := os.WriteFile(file, txtar.Format(ar), 0o644); err != nil {
			t.Fatal(err)
		}
	}
}

// section does a step. What it returns is what the section should hold; nil:
// it holds what goes in.
func (s *stage) section(name, text string) ([]byte, error) {
	words := strings.Fields(name)
	arg := func(i int) string {
		if i < len(words) {
			return words[i]
		}
		return ""
	}
	switch arg(0) {
	case "proxies":
		return nil, s.define(text)
	case "put":
		return nil, s.put(placeOf(arg(1), arg(2)), text)
	case "remove":
		return nil, s.put(placeOf(arg(1), arg(2)), "")
	case "calls":
		return s.calls(text)
	case "names":
		return s.names(arg(1), arg(2))
	case "xds":
		return s.resource(arg(1), arg(2), strings.Join(words[min(3, len(words)):], " "))
	case "changes":
		return s.changes(arg(1))
	case "diagnostics":
		return s.diagnostics(), nil
	}
	return nil, fmt.Errorf("no such step: doc.go lists them")
}

// calls runs the lines that begin with ">", and puts what comes out below each.
func (s *stage) calls(text string) ([]byte, error) {
	var out bytes.Buffer
	for line := range strings.Lines(text) {
		call, ok := strings.CutPrefix(strings.TrimSpace(line), ">")
		switch {
		case ok:
		case strings.HasPrefix(line, "#"), strings.TrimSpace(line) == "":
			out.WriteString(line)
			continue
		default:
			continue // what came out last time
		}
		out.WriteString(line)
		result, err := s.call(call)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", strings.TrimSpace(line), err)
		}
		out.WriteString(result)
	}
	return out.Bytes(), nil
}
