package cli

import (
	"encoding/json"
	"fmt"
	"io"
	"os"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/spf13/cobra"
	"sigs.k8s.io/yaml"
)

// output is how a command prints.
type output struct {
	w      io.Writer
	format string // table, json, yaml
	color  bool
	// terminal says that it is printed for a person.
	terminal bool
}

// outputFlag binds -o.
func outputFlag(cmd *cobra.Command) *string {
	return cmd.Flags().StringP("output", "o", "table", "how to print: table, json or yaml")
}

func newOutput(cmd *cobra.Command, format string) (*output, error) {
	switch format {
	case "table", "json", "yaml":
	default:
		return nil, usage("--output %q: want table, json or yaml", format)
	}
	o := &output{w: cmd.OutOrStdout(), format: format}
	o.terminal = isTerminal(o.w)
	o.color = o.terminal && os.Getenv("NO_COLOR") == ""
	return o, nil
}

// print prints v, or as a table what the function says.
func (o *output) print(v any, asTable func() error) error {
	switch o.format {
	case "json":
		e := json.NewEncoder(o.w)
		e.SetIndent("", "  ")
		e.SetEscapeHTML(false)
		return e.Encode(v)
	case "yaml":
		b, err := yaml.Marshal(v)
		if err == nil {
			_, err = o.w.Write(b)
		}
		return err
	}
	return asTable()
}

// next prints one of a stream of values: a line of JSON, or a document of YAML.
func (o *output) next(v any) error {
	if o.format == "json" {
		e := json.NewEncoder(o.w)
		e.SetEscapeHTML(false)
		return e.Encode(v)
	}
	b, err := yaml.Marshal(v)
	if err == nil {
		_, err = fmt.Fprintf(o.w, "---\n%s", b)
	}
	return err
}

// The colours of a terminal.
const (
	red    = "31"
	yellow = "33"
	green  = "32"
	faint  = "2"
)

// cell is one entry of a table.
type cell struct{ text, color string }

// table is aligned columns.
type table struct {
	head   []string
	rows   [][]cell
	widths []int // at least these; nil: as the rows need
}

// add adds a row of strings and cells; what is empty is shown as "-".
func (t *table) add(columns ...any) {
	row := make([]cell, len(columns))
	for i, c := range columns {
		switch c := c.(type) {
		case cell:
			row[i] = c
		default:
			row[i] = cell{text: fmt.Sprint(c)}
		}
		if row[i].text == "" {
			row[i].text = "-"
		}
	}
	t.rows = append(t.rows, row)
}

// note adds a line below the last row, set in.
func (t *table) note(line string) {
	t.rows = append(t.rows, []cell{{text: "    " + line, color: faint}})
}

// table prints t; head says whether with its head.
func (o *output) table(t *table, head bool) error {
	rows := t.rows
	if head {
		first := make([]cell, len(t.head))
		for i, h := range t.head {
			first[i] = cell{h, faint}
		}
		rows = append([][]cell{first}, rows...)
	}
	widths := make([]int, len(t.head))
	copy(widths, t.widths)
	for _, row := range rows {
		if len(row) == 1 && len(widths) > 1 {
			continue // a note: as long as it is
		}
		for i, c := range row {
			widths[i] = max(widths[i], utf8.RuneCountInString(c.text))
		}
	}
	var b strings.Builder
	for _, row := range rows {
		for i, c := range row {
			text := c.text
			if i < len(row)-1 {
				text += strings.Repeat(" ", widths[i]-utf8.RuneCountInString(c.text)+2)
			}
			b.WriteString(o.paint(text, c.color))
		}
		b.WriteByte('\n')
	}
	t.widths = widths
	_, err := io.WriteString(o.w, b.String())
	return err
}

func (o *output) paint(s, color string) string {
	if !o.color || color == "" {
		return s
	}
	return "\x1b[" + color + "m" + s + "\x1b[0m"
}

// cut is s without its middle where it is longer than n and printed for a
// person, who can widen nothing; what reads a pipe gets it whole.
func (o *output) cut(s string, n int) string {
	r := []rune(s)
	if !o.terminal || len(r) <= n {
		return s
	}
	head := (n - 1) / 2
	return string(r[:head]) + "…" + string(r[len(r)-(n-1-head):])
}

func (o *output) line(format string, args ...any) error {
	_, err := fmt.Fprintf(o.w, format+"\n", args...)
	return err
}

// clock is a time as people read it, in their own zone.
func clock(t time.Time) string {
	if t.IsZero() || t.Unix() == 0 {
		return ""
	}
	return t.Local().Format("2006-01-02 15:04:05.000")
}

// span is a duration in few digits.
func span(d time.Duration) string {
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

func short(hex string) string {
	if len(hex) > 12 {
		return hex[:12]
	}
	return hex
}

func plural(n int, one, many string) string {
	if n == 1 {
		return "1 " + one
	}
	return fmt.Sprintf("%d %s", n, many)
}

// ago says how long ago something was.
func ago(d time.Duration) string {
	if d < time.Second {
		return "just now"
	}
	return age(d) + " ago"
}

// age is a duration in its one largest unit.
func age(d time.Duration) string {
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
