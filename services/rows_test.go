package services_test

import (
	"flag"
	"fmt"
	"io/fs"
	"os"
	"path"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"testing/fstest"
)

// rowList lists the rows of the configuration API, and those without a test.
const rowList = "services/ROWS.md"

var showRows = flag.Bool("rows", false, "print the rows of "+rowList+" with their tests")

var (
	rowCount   = regexp.MustCompile("^\\| `([A-Z]+)-` \\| (\\d+) \\|")
	untested   = regexp.MustCompile(`^\| ([A-Z]+-\d+(?: to [A-Z]+-\d+)?) \| (.+) \|$`)
	citedRow   = regexp.MustCompile(`\b([A-Z]+)-(\d+)(?: to ([A-Z]+)-(\d+))?\b`)
	testHead   = regexp.MustCompile(`^func ((?:Test|Fuzz)\w+)\(`)
	namedRow   = regexp.MustCompile(`^(?:Test|Fuzz)((?:[A-Z]+\d+)+)`)
	rowOfName  = regexp.MustCompile(`([A-Z]+)(\d+)`)
	otherHead  = regexp.MustCompile(`^(func|var|const|type) `)
	storyFiles = regexp.MustCompile(`^-- .* --$`)
)

// Each row of the configuration API has a test or a story that cites it, or a reason in
// services/ROWS.md why there is none. `make rows` prints them.
func TestRowsHaveTests(t *testing.T) {
	table, problems := rowsWithTests(t, os.DirFS(".."))
	for _, p := range problems {
		t.Error(p)
	}
	if *showRows {
		if _, err := os.Stdout.WriteString(table); err != nil {
			t.Error(err)
		}
	}
}

func TestRowProblems(t *testing.T) {
	list := "| `AB-` | 4 | x |\n| AB-2 to AB-3 | nobody asked |\n"
	file := func(text string) *fstest.MapFile { return &fstest.MapFile{Data: []byte(text)} }
	const fromTo = "services/ROWS.md: "
	for name, test := range map[string]struct {
		list  string
		test  string
		story string
		want  []string
	}{
		"all":       {list, "// AB-1\nfunc TestA(t *testing.T) {}\n", "about AB-4\n-- a --\n", nil},
		"no reason": {list, "func TestA(t *testing.T) {}\n", "about AB-4\n", []string{fromTo + "AB-1 has neither a test nor a reason"}},
		"no longer": {list, "func TestA(t *testing.T) {\n\t// AB-1 to AB-2\n}\n", "about AB-4\n", []string{fromTo + "AB-2 has a test, services TestA: remove the reason"}},
		"beyond":    {list + "| AB-5 | x |\n", "// AB-1\nfunc TestA(t *testing.T) {}\n", "about AB-4\n", []string{fromTo + "AB-5 is no row"}},
	} {
		t.Run(name, func(t *testing.T) {
			tree := fstest.MapFS{"services/ROWS.md": file(test.list), "services/a_test.go": file(test.test), "services/testdata/b.txtar": file(test.story)}
			if _, got := rowsWithTests(t, tree); !slices.Equal(got, test.want) {
				t.Errorf("got %q, want %q", got, test.want)
			}
		})
	}
}

// rowsWithTests returns a table of all rows with their tests and then of those without, and
// the errors in the list.
func rowsWithTests(t *testing.T, tree fs.FS) (table string, problems []string) {
	t.Helper()
	var ids []string
	reasons := map[string]string{}
	for _, line := range lines(t, tree, rowList) {
		if m := rowCount.FindStringSubmatch(line); m != nil {
			n, _ := strconv.Atoi(m[2])
			for i := range n {
				ids = append(ids, fmt.Sprintf("%s-%d", m[1], i+1))
			}
		}
		if m := untested.FindStringSubmatch(line); m != nil {
			for _, id := range cited(m[1]) {
				reasons[id] = m[2]
			}
		}
	}
	tests := testsOfRows(t, tree)
	var with, without strings.Builder
	for _, id := range ids {
		all, reason := tests[id], reasons[id]
		delete(reasons, id)
		switch {
		case len(all) > 0 && reason != "":
			problems = append(problems, fmt.Sprintf("%s: %s has a test, %s: remove the reason", rowList, id, all[0]))
		case len(all) == 0 && reason == "":
			problems = append(problems, fmt.Sprintf("%s: %s has neither a test nor a reason", rowList, id))
		}
		if len(all) > 0 {
			fmt.Fprintf(&with, "%-7s %s\n", id, strings.Join(all, "\n        "))
		} else {
			fmt.Fprintf(&without, "%-7s %s\n", id, reason)
		}
	}
	for id := range reasons {
		problems = append(problems, fmt.Sprintf("%s: %s is no row", rowList, id))
	}
	return with.String() + "\nRows without a test:\n" + without.String(), problems
}

// cited returns the IDs in a text, also those between two, as in AB-1 to AB-3.
func cited(text string) []string {
	var all []string
	for _, m := range citedRow.FindAllStringSubmatch(text, -1) {
		first, _ := strconv.Atoi(m[2])
		last := first
		if m[3] == m[1] {
			last, _ = strconv.Atoi(m[4])
		}
		for i := first; i <= last; i++ {
			all = append(all, fmt.Sprintf("%s-%d", m[1], i))
		}
	}
	return all
}

// testsOfRows returns the tests that cite each row: functions of tests, with what is written
// above them, and stories and golden files by their name or the text above their files.
func testsOfRows(t *testing.T, tree fs.FS) map[string][]string {
	t.Helper()
	tests := map[string][]string{}
	add := func(text, test string) {
		for _, id := range cited(text) {
			if !slices.Contains(tests[id], test) {
				tests[id] = append(tests[id], test)
			}
		}
	}
	err := fs.WalkDir(tree, ".", func(name string, d fs.DirEntry, err error) error {
		switch {
		case err != nil:
			return err
		case d.IsDir() && (name == "bin" || len(name) > 1 && strings.HasPrefix(d.Name(), ".")):
			return fs.SkipDir
		case d.IsDir():
		case strings.HasSuffix(name, ".txtar"):
			add(path.Base(name), name)
			for _, line := range lines(t, tree, name) {
				if storyFiles.MatchString(strings.TrimSpace(line)) {
					break
				}
				add(line, name)
			}
		case strings.HasSuffix(name, "_test.go") && name != "services/rows_test.go" && name != "services/ids_test.go":
			test, above := "", []string(nil)
			for _, line := range lines(t, tree, name) {
				if strings.HasPrefix(line, "//") {
					above = append(above, line)
					continue
				}
				if m := testHead.FindStringSubmatch(line); m != nil {
					test = path.Dir(name) + " " + m[1]
					if names := namedRow.FindStringSubmatch(m[1]); names != nil { // such as TestDR2Merge
						add(rowOfName.ReplaceAllString(names[1], "$1-$2 "), test)
					}
				} else if otherHead.MatchString(line) {
					test = ""
				}
				if test != "" {
					add(strings.Join(append(above, line), "\n"), test)
				}
				above = nil
			}
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return tests
}
