package main

import (
	"fmt"
	"io"
	"strings"
)

// printer writes the demo's pages. A failed write to a terminal is nothing to
// act on.
type printer struct {
	w       io.Writer
	colours bool
}

const (
	bold  = "1"
	green = "32"
	faint = "2"
)

func (p *printer) paint(colour, text string) string {
	if !p.colours {
		return text
	}
	return "\x1b[" + colour + "m" + text + "\x1b[0m"
}

// chapter begins a part.
func (p *printer) chapter(title string) { fmt.Fprintf(p.w, "\n%s\n\n", p.paint(bold, title)) }

// where says what runs where.
func (p *printer) where(what, does, place string) {
	fmt.Fprintf(p.w, "  %-12s %-56s %s\n", what, does, p.paint(faint, place))
}

// holds says what was seen to hold.
func (p *printer) holds(format string, args ...any) {
	fmt.Fprintf(p.w, "  %s %s\n", p.paint(green, "ok"), fmt.Sprintf(format, args...))
}

// note says something in passing.
func (p *printer) note(format string, args ...any) {
	fmt.Fprintf(p.w, "  %s\n", fmt.Sprintf(format, args...))
}

const row = "  %-9s %-18s %-13s %-26s %s\n"

// columns heads a table of changes, of what is changed.
func (p *printer) columns(what, toACK string) {
	fmt.Fprint(p.w, p.paint(faint, fmt.Sprintf(row, what, "version", toACK, "measured", "caused by")))
}

// line is one change.
func (p *printer) line(what, version, toACK, measured, cause string) {
	fmt.Fprintf(p.w, row, what, version, toACK, measured, cause)
}

// command shows what one would type.
func (p *printer) command(line string) { fmt.Fprintf(p.w, "  %s\n", p.paint(bold, "$ "+line)) }

// output shows what a program printed.
func (p *printer) output(text string) {
	for line := range strings.Lines(text) {
		fmt.Fprintf(p.w, "  %s\n", strings.TrimRight(line, "\n"))
	}
}
