package command

import (
	"fmt"
	"io"
	"os"
	"time"

	"golang.org/x/term"
)

// Progress shows on a terminal how far work is that takes long.
type Progress struct {
	w       io.Writer
	what    string
	started time.Time // of the first Show
	shown   time.Time
}

// Work shows progress once it has taken progressAfter, each progressEvery.
const (
	progressAfter = time.Second
	progressEvery = 200 * time.Millisecond
)

// Show says that done of total are done.
func (p *Progress) Show(done, total int64) {
	now := time.Now()
	if p.started.IsZero() {
		p.started = now
	}
	if total > 0 && now.Sub(p.started) >= progressAfter && now.Sub(p.shown) >= progressEvery {
		p.Say("%s %d %%", p.what, done*100/total)
	}
}

// Say replaces the line that is shown.
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
