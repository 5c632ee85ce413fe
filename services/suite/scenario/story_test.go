package scenario

import (
	"bytes"
	"errors"
	"flag"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/tools/txtar"
)

var update = flag.Bool("update", false, "rewrite the output of the stories")

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
	want, err := txtar.ParseFile(file)
	if err != nil {
		t.Fatal(err)
	}
	s := newStage(t)
	got, err := s.play(want)
	if err != nil {
		t.Fatal(err)
	}
	for i, section := range got.Files {
		if diff := cmp.Diff(string(want.Files[i].Data), string(section.Data)); diff != "" && !*update {
			t.Errorf("-- %s -- (-want +got; -update writes it):\n%s", section.Name, diff)
		}
	}
	s.askEnvoy()
	if *update && !t.Failed() {
		if err := os.WriteFile(file, txtar.Format(got), 0o644); err != nil {
			t.Fatal(err)
		}
	}
}

// section is a step of a story. It has either input, which takes the section's
// text, or output, which makes the text that the section should hold.
type section struct {
	least, most int // how many words may follow the first
	input       func(s *stage, args []string, text string) error
	output      func(s *stage, args []string, text string) ([]byte, error)
}

var sections = map[string]section{
	"proxies": {0, 0, func(s *stage, _ []string, text string) error { return s.define(text) }, nil},
	"put":     {1, 2, func(s *stage, args []string, text string) error { return s.put(placeOf(args), text) }, nil},
	"remove":  {1, 2, func(s *stage, args []string, _ string) error { return s.put(placeOf(args), "") }, nil},
	"calls":   {0, 0, nil, func(s *stage, _ []string, text string) ([]byte, error) { return s.calls(text, s.call) }},
	"names":   {2, 2, nil, func(s *stage, args []string, _ string) ([]byte, error) { return s.names(args[0], args[1]) }},
	"xds": {3, math.MaxInt, nil, func(s *stage, args []string, _ string) ([]byte, error) {
		return s.resource(args[0], args[1], strings.Join(args[2:], " "))
	}},
	"why-not":     {0, 0, nil, func(s *stage, _ []string, text string) ([]byte, error) { return s.calls(text, s.whyNot) }},
	"why":         {3, math.MaxInt, nil, func(s *stage, args []string, _ string) ([]byte, error) { return s.why(args) }},
	"changes":     {1, 1, nil, func(s *stage, args []string, _ string) ([]byte, error) { return s.changes(args[0]) }},
	"diagnostics": {0, 0, nil, func(s *stage, _ []string, _ string) ([]byte, error) { return s.diagnostics(), nil }},
}

// find returns the section that a name begins with, and the words behind it.
func find(name string) (section, []string, error) {
	words := strings.Fields(name)
	if len(words) == 0 {
		return section{}, nil, errors.New("a section without a name")
	}
	found, ok := sections[words[0]]
	if args := len(words) - 1; !ok || args < found.least || args > found.most {
		return section{}, nil, fmt.Errorf("-- %s --: no such section; README.md lists them", name)
	}
	return found, words[1:], nil
}

// play runs the sections of a story, and returns the story with its output. A
// section without output holds "none", so that an empty section always fails.
func (s *stage) play(story *txtar.Archive) (*txtar.Archive, error) {
	now := &txtar.Archive{Comment: story.Comment}
	outputs := 0
	for _, f := range story.Files {
		found, args, err := find(f.Name)
		switch {
		case err != nil:
			return nil, err
		case found.input != nil:
			err = found.input(s, args, string(f.Data))
		default:
			outputs++
			if f.Data, err = found.output(s, args, string(f.Data)); len(f.Data) == 0 {
				f.Data = []byte("none\n")
			}
		}
		if err != nil {
			return nil, fmt.Errorf("-- %s --: %w", f.Name, err)
		}
		now.Files = append(now.Files, f)
	}
	if outputs == 0 {
		return nil, errors.New("the story has no output: add calls, or another section with output")
	}
	return now, nil
}

// A story fails if a section that had output has none now, if a section expects an
// empty output, or if a section does not exist.
func TestEmptyOutput(t *testing.T) {
	for _, name := range []string{"names sidecar.shop EDS", "xds sidecar.shop CDS outbound|80||a", "changes sidecar.shop", "diagnostics"} {
		for _, text := range []string{"", "what came out once\n"} {
			got, err := newStage(t).play(txtar.Parse([]byte("-- " + name + " --\n" + text)))
			if err != nil {
				t.Fatal(err)
			}
			if out := string(got.Files[0].Data); out == text || out != "none\n" {
				t.Errorf("-- %s -- with %q: got %q, want none", name, text, out)
			}
		}
	}
	for _, story := range []string{
		"", "only a comment\n", "-- proxies --\n", "-- calls --\n", "-- calls --\n    by 0.0.0.0_80\n",
		"-- change sidecar.shop --\n", "-- diagnostics shop --\n", "-- changes --\n", "-- put --\n",
	} {
		if got, err := newStage(t).play(txtar.Parse([]byte(story))); err == nil {
			t.Errorf("%q passes with %q", story, txtar.Format(got))
		}
	}
}

// calls simulates the lines that begin with ">", and writes the outcome below each.
func (s *stage) calls(text string, answer func(call string) (string, error)) ([]byte, error) {
	var out bytes.Buffer
	made := 0
	for line := range strings.Lines(text) {
		call, ok := strings.CutPrefix(strings.TrimSpace(line), ">")
		switch {
		case ok:
		case strings.HasPrefix(line, "#"), strings.TrimSpace(line) == "":
			out.WriteString(line)
			continue
		default:
			continue // the outcome of an earlier run
		}
		made++
		out.WriteString(line)
		result, err := answer(call)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", strings.TrimSpace(line), err)
		}
		out.WriteString(result)
	}
	if made == 0 {
		return nil, errors.New("no line begins with >")
	}
	return out.Bytes(), nil
}
