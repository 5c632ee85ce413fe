package main

import (
	"fmt"
	"io"
	"strings"
)

// printer writes the demo's pages. It ignores failed writes to a terminal.
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

// chapter begins a chapter.
func (p *printer) chapter(title string) { fmt.Fprintf(p.w, "\n%s\n\n", p.paint(bold, title)) }

// where prints where a part runs.
func (p *printer) where(what, does, place string) {
	fmt.Fprintf(p.w, "  %-12s %-56s %s\n", what, does, p.paint(faint, place))
}

// holds prints a check that succeeded.
func (p *printer) holds(format string, args ...any) {
	fmt.Fprintf(p.w, "  %s %s\n", p.paint(green, "ok"), fmt.Sprintf(format, args...))
}

// note prints a remark.
func (p *printer) note(format string, args ...any) {
	fmt.Fprintf(p.w, "  %s\n", fmt.Sprintf(format, args...))
}

const row = "  %-9s %-18s %-13s %-26s %s\n"

// columns prints the head of a table of changes.
func (p *printer) columns(what, toACK string) {
	fmt.Fprint(p.w, p.paint(faint, fmt.Sprintf(row, what, "version", toACK, "measured", "caused by")))
}

// line prints one change.
func (p *printer) line(what, version, toACK, measured, cause string) {
	fmt.Fprintf(p.w, row, what, version, toACK, measured, cause)
}

// command shows a command as the user would type it.
func (p *printer) command(line string) { fmt.Fprintf(p.w, "  %s\n", p.paint(bold, "$ "+line)) }

// output shows the output of a program.
func (p *printer) output(text string) {
	for line := range strings.Lines(text) {
		fmt.Fprintf(p.w, "  %s\n", strings.TrimRight(line, "\n"))
	}
}
