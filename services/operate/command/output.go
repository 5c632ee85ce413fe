package command

import (
	"encoding/json"
	"fmt"
	"io"
	"os"
	"strings"
	"time"
	"unicode/utf8"

	"golang.org/x/term"
	"sigs.k8s.io/yaml"

	"meshlog.dev/proto/ident"
)

// The formats of -o.
const (
	Table = "table"
	JSON  = "json"
	YAML  = "yaml"
)

// The colors of a terminal.
const (
	Red    = "31"
	Yellow = "33"
	Green  = "32"
	Faint  = "2"
)

// Output prints the result of a command. It keeps its first error and prints
// nothing after it.
type Output struct {
	w        io.Writer
	format   string
	color    bool
	terminal bool // a person reads it
	err      error
}

// NewOutput returns an output in one of the formats.
func NewOutput(w io.Writer, format string) *Output {
	terminal := IsTerminal(w)
	return &Output{w: w, format: format, terminal: terminal, color: terminal && os.Getenv("NO_COLOR") == ""}
}

// Err returns the first error of the output.
func (o *Output) Err() error { return o.err }

// IsTable reports whether the output is a text for people.
func (o *Output) IsTable() bool { return o.format == Table }

// IsYAML reports whether the output is YAML.
func (o *Output) IsYAML() bool { return o.format == YAML }

// IsTerminal reports whether a person reads the output on a terminal.
func (o *Output) IsTerminal() bool { return o.terminal }

// Write implements io.Writer.
func (o *Output) Write(b []byte) (n int, err error) {
	if o.err == nil {
		n, o.err = o.w.Write(b)
	}
	return n, o.err
}

// Print prints v as JSON or YAML, or calls asTable.
func (o *Output) Print(v any, asTable func()) {
	switch o.format {
	case JSON:
		e := json.NewEncoder(o)
		e.SetIndent("", "  ")
		e.SetEscapeHTML(false)
		o.note(e.Encode(v))
	case YAML:
		o.yaml("%s", v)
	default:
		asTable()
	}
}

// Next prints one value of a stream: a line of JSON, or a document of YAML.
func (o *Output) Next(v any) {
	if o.format == YAML {
		o.yaml("---\n%s", v)
		return
	}
	e := json.NewEncoder(o)
	e.SetEscapeHTML(false)
	o.note(e.Encode(v))
}

func (o *Output) yaml(format string, v any) {
	b, err := yaml.Marshal(v)
	if o.note(err); err == nil {
		fmt.Fprintf(o, format, b)
	}
}

func (o *Output) note(err error) {
	if o.err == nil {
		o.err = err
	}
}

// Line prints a line.
func (o *Output) Line(format string, args ...any) { fmt.Fprintf(o, format+"\n", args...) }

// Notes prints lines below a table, set off from it; none print nothing.
func (o *Output) Notes(lines []string) {
	if len(lines) > 0 {
		o.Line("\n%s", strings.Join(lines, "\n"))
	}
}

// Paint returns s in a color, if the output has colors.
func (o *Output) Paint(s, color string) string {
	if !o.color || color == "" {
		return s
	}
	return "\x1b[" + color + "m" + s + "\x1b[0m"
}

// Cut returns s without its middle if it is longer than n runes and the output is a
// terminal.
func (o *Output) Cut(s string, n int) string {
	r := []rune(s)
	if !o.terminal || len(r) <= n {
		return s
	}
	head := (n - 1) / 2
	return string(r[:head]) + "…" + string(r[len(r)-(n-1-head):])
}

// Cell is one entry of a table.
type Cell struct{ Text, Color string }

// Rows is a table. With Head it has a row of titles.
type Rows struct {
	Head   []string
	rows   [][]Cell
	widths []int
}

// Add adds a row of cells, times and other values; an empty text, a zero time
// and a zero position are shown as "-".
func (t *Rows) Add(columns ...any) {
	row := make([]Cell, len(columns))
	for i, c := range columns {
		switch c := c.(type) {
		case Cell:
			row[i] = c
		case time.Time:
			row[i].Text = Clock(c)
		default:
			row[i].Text = fmt.Sprint(c)
		}
		if row[i].Text == "" || c == (ident.Position{}) {
			row[i].Text = "-"
		}
	}
	t.rows = append(t.rows, row)
}

// Fact adds a row of a faint name and its value.
func (t *Rows) Fact(name string, value any) { t.Add(Cell{name, Faint}, value) }

// Note adds an indented line below the last row.
func (t *Rows) Note(line string) {
	t.rows = append(t.rows, []Cell{{Text: "    " + line, Color: Faint}})
}

// Len returns the number of rows.
func (t *Rows) Len() int { return len(t.rows) }

// Rows prints the rows of a table in aligned columns and removes them, so that
// rows which are added later line up with them, without another head.
func (o *Output) Rows(t *Rows) {
	rows := t.rows
	if t.widths == nil && t.Head != nil {
		head := make([]Cell, len(t.Head))
		for i, h := range t.Head {
			head[i] = Cell{h, Faint}
		}
		rows = append([][]Cell{head}, rows...)
	}
	isNote := func(row []Cell) bool { return len(row) == 1 && len(t.widths) > 1 }
	for _, row := range rows {
		if isNote(row) {
			continue
		}
		for i, c := range row {
			if i == len(t.widths) {
				t.widths = append(t.widths, 0)
			}
			t.widths[i] = max(t.widths[i], utf8.RuneCountInString(c.Text))
		}
	}
	var b strings.Builder
	for _, row := range rows {
		for i, c := range row {
			text := c.Text
			if i < len(row)-1 {
				text += strings.Repeat(" ", t.widths[i]-utf8.RuneCountInString(text)+2)
			}
			b.WriteString(o.Paint(text, c.Color))
		}
		b.WriteByte('\n')
	}
	t.rows = nil
	fmt.Fprint(o, b.String())
}

// Stamp returns t in UTC, or the zero time if t is the time of an absent
// timestamp.
func Stamp(t time.Time) time.Time {
	if t.Unix() == 0 {
		return time.Time{}
	}
	return t.UTC()
}

// Clock formats a time in the zone of the reader; empty if it is zero.
func Clock(t time.Time) string {
	if Stamp(t).IsZero() {
		return ""
	}
	return t.Local().Format("2006-01-02 15:04:05.000")
}

// Span formats a duration in few digits.
func Span(d time.Duration) string {
	switch {
	case d < 0:
		return ""
	case d < 10*time.Millisecond:
		return d.Round(10 * time.Microsecond).String()
	case d < time.Second:
		return d.Round(time.Millisecond).String()
	case d < time.Minute:
		return d.Round(100 * time.Millisecond).String()
	}
	return d.Round(time.Second).String()
}

// Short returns the first digits of a hash.
func Short(hex string) string { return hex[:min(len(hex), 12)] }

// Plural formats a number with its noun.
func Plural(n int, one, many string) string {
	if n == 1 {
		return "1 " + one
	}
	return fmt.Sprintf("%d %s", n, many)
}

// Some joins the first three names and counts the others.
func Some(names []string) string {
	if more := len(names) - MaxNamed; more > 0 {
		return fmt.Sprintf("%s and %d more", strings.Join(names[:MaxNamed], ", "), more)
	}
	return strings.Join(names, ", ")
}

// MaxNamed is the number of names in a line that does not list all.
const MaxNamed = 3

// Ago formats the age of something.
func Ago(d time.Duration) string {
	if d < time.Second {
		return "just now"
	}
	return Age(d) + " ago"
}

// Since formats how long ago t was; empty if it is zero.
func Since(t, now time.Time) string {
	if t.IsZero() {
		return ""
	}
	return Ago(now.Sub(t))
}

// Age formats a duration in its largest unit.
func Age(d time.Duration) string {
	switch {
	case d < time.Second:
		return "now"
	case d < time.Minute:
		return fmt.Sprintf("%ds", int(d.Seconds()))
	case d < time.Hour:
		return fmt.Sprintf("%dm", int(d.Minutes()))
	case d < 24*time.Hour:
		return fmt.Sprintf("%dh", int(d.Hours()))
	}
	return fmt.Sprintf("%dd", int(d.Hours()/24))
}

// Progress shows the progress of long work on a terminal.
type Progress struct {
	w       io.Writer
	what    string
	started time.Time // of the first Show
	shown   time.Time
}

// Show shows progress from progressAfter on, at most once in progressEvery.
const (
	progressAfter = time.Second
	progressEvery = 200 * time.Millisecond
)

// Show shows that done of total units of work are finished.
func (p *Progress) Show(done, total int64) {
	now := time.Now()
	if p.started.IsZero() {
		p.started = now
	}
	if total > 0 && now.Sub(p.started) >= progressAfter && now.Sub(p.shown) >= progressEvery {
		p.Say("%s %d %%", p.what, done*100/total)
	}
}

// Say replaces the shown line.
func (p *Progress) Say(format string, args ...any) {
	if p.w != nil && IsTerminal(p.w) {
		p.shown = time.Now()
		fmt.Fprintf(p.w, "\r"+format+"\x1b[K", args...)
	}
}

// Done clears the line.
func (p *Progress) Done() {
	if !p.shown.IsZero() {
		fmt.Fprint(p.w, "\r\x1b[K")
	}
}

// IsTerminal reports whether a reader or a writer is a terminal.
func IsTerminal(stream any) bool {
	f, ok := stream.(*os.File)
	return ok && term.IsTerminal(int(f.Fd()))
}
