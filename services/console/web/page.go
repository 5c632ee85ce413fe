package web

import (
	"bytes"
	"encoding/json"
	"fmt"
	"html/template"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"

	"meshlog.dev/proto/ident"
	"meshlog.dev/services/console/watch"
	"meshlog.dev/services/operate/command"
	"meshlog.dev/services/operate/past"
)

// page holds the values that a template shows.
type page struct {
	Title, Path string
	Query       url.Values
	At          string // the version that the page was moved to; empty: the present
	Stale       string // why what is shown may be old
	Failed      bool
	Now         time.Time
	Mesh        *watch.Now // nil: no mesh is open
	Data        any

	mesh   *watch.Mesh
	moment command.Moment
	live   bool // it follows the mesh
}

// Version is the version that the page shows.
func (p *page) Version() ident.Position { return p.moment.Version }

// Published is when it was.
func (p *page) Published() time.Time { return command.Stamp(command.PublishedAt(p.moment.Manifest)) }

// Live reports whether the page follows the present.
func (p *page) Live() bool { return p.live && p.At == "" && p.Mesh != nil && !p.Failed }

// To returns the address of a page at the same version: parameters are names and values.
func (p *page) To(path string, parameters ...any) string {
	q := url.Values{}
	if p.At != "" {
		q.Set("at", p.At)
	}
	return address(path, q, parameters)
}

// AtVersion returns the address of a page at a version.
func (p *page) AtVersion(path string, v any, parameters ...any) string {
	return address(path, url.Values{"at": {fmt.Sprint(v)}}, parameters)
}

// With returns the address of this page with other parameters.
func (p *page) With(parameters ...any) string {
	q := url.Values{}
	for name, values := range p.Query {
		if len(values) > 0 && values[0] != "" {
			q.Set(name, values[0])
		}
	}
	return address(p.Path, q, parameters)
}

// Here returns the address of this page.
func (p *page) Here() string { return p.With() }

// Present returns the address of this page without a version.
func (p *page) Present() string { return p.With("at", "") }

// Param returns a parameter of the address.
func (p *page) Param(name string) string { return p.Query.Get(name) }

// address adds parameters to a path; an empty value removes one.
func address(path string, q url.Values, parameters []any) string {
	for i := 0; i+1 < len(parameters); i += 2 {
		name, value := fmt.Sprint(parameters[i]), fmt.Sprint(parameters[i+1])
		if value == "" {
			q.Del(name)
		} else {
			q.Set(name, value)
		}
	}
	if len(q) == 0 {
		return path
	}
	return path + "?" + q.Encode()
}

// ToObject returns the address of an object.
func (p *page) ToObject(k past.Key) string {
	return p.To("/object", "key", command.Slashed(ident.Key(k)), "source", k.Source+"/"+k.Instance)
}

// ToProxy returns the address of a proxy.
func (p *page) ToProxy(id string) string { return p.To("/proxy", "id", id) }

// pageSize is how many rows a page shows.
const pageSize = 100

// Paged is one page of rows.
type Paged[T any] struct {
	Rows        []T
	All         int // rows that match
	First, Last int // of the page, from 1
	Page, Pages int // from 1
}

// paged returns the page of rows that an address names.
func paged[T any](rows []T, number string) Paged[T] { return pagedBy(rows, number, pageSize) }

// pagedBy is paged for pages of a size.
func pagedBy[T any](rows []T, number string, size int) Paged[T] {
	pages := max(1, (len(rows)+size-1)/size)
	n, err := strconv.Atoi(number)
	if err != nil || n < 1 {
		n = 1
	}
	n = min(n, pages)
	first, last := (n-1)*size, min(n*size, len(rows))
	return Paged[T]{Rows: rows[first:last], All: len(rows), First: min(first+1, last), Last: last, Page: n, Pages: pages}
}

// sorted sorts rows by the column that an address names, which - reverses; an unknown column
// is the first one of columns that by has.
func sorted[T any](rows []T, column string, by map[string]func(a, b T) int) {
	name, reverse := strings.CutPrefix(column, "-")
	compare, ok := by[name]
	if !ok {
		return
	}
	slices.SortStableFunc(rows, func(a, b T) int {
		if reverse {
			a, b = b, a
		}
		return compare(a, b)
	})
}

// Sort is the head of a column that can be sorted.
type Sort struct{ To, Text, Order string }

// SortBy returns the head of a column.
func (p *page) SortBy(column, text string) Sort {
	switch p.Param("sort") {
	case column:
		return Sort{p.With("sort", "-"+column, "page", ""), text, "ascending"}
	case "-" + column:
		return Sort{p.With("sort", column, "page", ""), text, "descending"}
	}
	return Sort{p.With("sort", column, "page", ""), text, "none"}
}

var functions = template.FuncMap{
	"clock":  clock,
	"stamp":  func(t time.Time) string { return t.UTC().Format(time.RFC3339Nano) },
	"since":  func(t, now time.Time) string { return command.Since(t, now) },
	"cell":   cellClass,
	"lines":  func(c past.ObjectChange) []string { return command.ChangeLines(c) },
	"fields": func(f []past.FieldChange) []string { return command.FieldLines(f) },
	"brief":  func(b json.RawMessage) string { return command.Brief(b) },
	"plural": func(n int, one, many string) string { return command.Plural(n, one, many) },
	"upper":  strings.ToUpper,
	"pair": func(p *page, r routeRow) any {
		return struct {
			P   *page
			Row *routeRow
		}{p, &r}
	},
	"path":     func(a, b string) string { return a + "/" + b },
	"join":     func(all []string) string { return strings.Join(all, ", ") },
	"text":     func(v any) string { return fmt.Sprint(v) },
	"add":      func(a, b int) int { return a + b },
	"tab":      tabOf,
	"now":      tabOfNow,
	"pager":    pagerOf,
	"indent":   indented,
	"severity": func(s string) string { return map[string]string{"error": "bad", "warning": "warn"}[s] },
	"effect":   effectClass,
	"reached":  reached,
	"number":   func(n uint32) int { return int(n) },
}

// tab is a link of the navigation.
type tab struct {
	To, Text string
	Current  bool
}

func tabOf(p *page, path, text string) tab { return tab{p.To(path), text, p.Path == path} }

// tabOfNow is tabOf for a page that is always of the present.
func tabOfNow(p *page, path, text string) tab { return tab{path, text, p.Path == path} }

// pager holds the values for the links to other pages of a table.
type pager struct {
	P  *page
	Of Paged[struct{}]
}

func pagerOf(p *page, number, pages, first, last, all int) pager {
	return pager{p, Paged[struct{}]{Page: number, Pages: pages, First: first, Last: last, All: all}}
}

// indented prints JSON in lines.
func indented(b json.RawMessage) string {
	var out bytes.Buffer
	if json.Indent(&out, b, "", "  ") != nil {
		return string(b)
	}
	return out.String()
}

// clock prints a time in UTC: an address that is shared shows all readers the same.
func clock(t time.Time) string {
	if t.IsZero() {
		return "-"
	}
	return t.UTC().Format("2006-01-02 15:04:05.000")
}

// cellClass returns the class of the color of a cell.
func cellClass(c command.Cell) string {
	return map[string]string{command.Red: "bad", command.Yellow: "warn", command.Green: "good", command.Faint: "faint"}[c.Color]
}

func effectClass(e past.Effect) string {
	switch e {
	case past.Served:
		return "good"
	case past.Gone, past.Refused:
		return "bad"
	case past.Covered, past.Uncovered, past.Renewed:
		return "warn"
	}
	return "faint"
}
