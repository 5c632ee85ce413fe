package services_test

import (
	"bytes"
	"cmp"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path"
	"regexp"
	"slices"
	"strings"
	"testing"
	"testing/fstest"
)

// idList lists the prefixes of IDs, each with the table that defines its rows.
const idList = "services/IDS.md"

var (
	listRow  = regexp.MustCompile("^\\| ((?:`[A-Z]+-?` ?)+) \\| \\[.*?\\]\\(([^)#]+)")
	tableRow = regexp.MustCompile(`^\| ([A-Z]+-?)(\d+) \|`)
)

// Every ID such as SE-9 in code, tests and documents has a row in the table of its
// prefix, and no prefix or ID is defined twice.
func TestIDs(t *testing.T) {
	for _, p := range idProblems(t, os.DirFS("..")) {
		t.Error(p)
	}
}

func TestIDProblems(t *testing.T) {
	list := "| Prefix | Table |\n|---|---|\n| `AB-` `Z` | [t.md](t.md) |\n"
	table := "| AB-1 | a fact |\n| Z12 | another |\n"
	cited := "// AB-1, `Z12` and (AB-1); no IDs: AB-x, ZZ12, Z12a, =Z3, xAB-7\n"
	file := func(text string) *fstest.MapFile { return &fstest.MapFile{Data: []byte(text)} }
	for name, test := range map[string]struct {
		change fstest.MapFS
		want   []string
	}{
		"all defined":          {nil, nil},
		"unknown ID":           {fstest.MapFS{"events/a.go": file("\n// See AB-2.\n")}, []string{"events/a.go:2: AB-2 has no row in services/t.md"}},
		"unknown ID in a name": {fstest.MapFS{"store/testdata/Z3-x.txt": file("")}, []string{"store/testdata/Z3-x.txt: Z3 has no row in services/t.md"}},
		"binary file":          {fstest.MapFS{"store/testdata/x.bin": file("\x00 Z3 ")}, nil},
		"ID defined twice":     {fstest.MapFS{"services/t.md": file(table + "| Z12 | again |\n")}, []string{"services/t.md:3: Z12 is defined twice"}},
		"prefix listed twice":  {fstest.MapFS{"services/IDS.md": file(list + "| `Z` | [u.md](u.md) |\n")}, []string{"services/IDS.md:4: prefix Z is listed twice"}},
		"row of no listed prefix": {fstest.MapFS{"services/t.md": file(table + "| Y1 | stray |\n")},
			[]string{"services/t.md:3: Y1: services/IDS.md lists no prefix Y for this table"}},
	} {
		t.Run(name, func(t *testing.T) {
			tree := fstest.MapFS{"services/IDS.md": file(list), "services/t.md": file(table), "events/b.go": file(cited)}
			maps.Copy(tree, test.change)
			if got := idProblems(t, tree); !slices.Equal(got, test.want) {
				t.Errorf("got %q, want %q", got, test.want)
			}
		})
	}
}

// idProblems returns the errors about the IDs in a tree.
func idProblems(t *testing.T, tree fs.FS) []string {
	t.Helper()
	tables, problems := readIDList(t, tree) // the table of each prefix
	defined := map[string]bool{}
	for _, table := range slices.Compact(slices.Sorted(maps.Values(tables))) {
		for n, line := range lines(t, tree, table) {
			row := tableRow.FindStringSubmatch(line)
			switch {
			case row == nil:
			case tables[row[1]] != table:
				problems = append(problems, fmt.Sprintf("%s:%d: %s%s: %s lists no prefix %[3]s for this table", table, n+1, row[1], row[2], idList))
			case defined[row[1]+row[2]]:
				problems = append(problems, fmt.Sprintf("%s:%d: %s%s is defined twice", table, n+1, row[1], row[2]))
			default:
				defined[row[1]+row[2]] = true
			}
		}
	}
	prefixes := slices.SortedFunc(maps.Keys(tables), func(a, b string) int { return cmp.Or(cmp.Compare(len(b), len(a)), cmp.Compare(a, b)) })
	citation := regexp.MustCompile("(?:^|[\\s(\\[/\"'`|:;,*])(" + strings.Join(prefixes, "|") + `)(\d+)\b`)
	check := func(place, text string) {
		for _, found := range citation.FindAllStringSubmatch(text, -1) {
			if id := found[1] + found[2]; !defined[id] {
				problems = append(problems, fmt.Sprintf("%s: %s has no row in %s", place, id, tables[found[1]]))
			}
		}
	}
	err := fs.WalkDir(tree, ".", func(name string, d fs.DirEntry, err error) error {
		switch {
		case err != nil:
			return err
		case d.IsDir() && (name == "bin" || len(name) > 1 && strings.HasPrefix(d.Name(), ".")):
			return fs.SkipDir
		case !d.Type().IsRegular() || slices.Contains([]string{".sum", ".binpb"}, path.Ext(name)) || strings.HasSuffix(name, ".pb.go") || strings.HasSuffix(name, ".min.js"): // .min.js: programs of others
			return nil
		}
		check(name, name)
		for n, line := range lines(t, tree, name) {
			check(fmt.Sprintf("%s:%d", name, n+1), line)
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return problems
}

func readIDList(t *testing.T, tree fs.FS) (tables map[string]string, problems []string) {
	t.Helper()
	tables = map[string]string{}
	for n, line := range lines(t, tree, idList) {
		row := listRow.FindStringSubmatch(line)
		if row == nil {
			continue
		}
		for _, prefix := range strings.Fields(strings.ReplaceAll(row[1], "`", "")) {
			if tables[prefix] != "" {
				problems = append(problems, fmt.Sprintf("%s:%d: prefix %s is listed twice", idList, n+1, prefix))
				continue
			}
			tables[prefix] = path.Join(path.Dir(idList), row[2])
		}
	}
	if len(tables) == 0 {
		t.Fatalf("%s lists no prefix", idList)
	}
	return tables, problems
}

// lines returns the lines of a text file, and none for a binary file.
func lines(t *testing.T, tree fs.FS, name string) []string {
	t.Helper()
	data, err := fs.ReadFile(tree, name)
	if err != nil {
		t.Fatal(err)
	}
	if bytes.IndexByte(data, 0) >= 0 {
		return nil
	}
	return strings.Split(string(data), "\n")
}
