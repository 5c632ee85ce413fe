package cli

import (
	"fmt"
	"io"
	"os"
	"time"

	"golang.org/x/term"
)

// progress shows on a terminal how far something is that takes long. The zero
// time of the start is the first call of show.
type progress struct {
	w       io.Writer
	what    string // "copied"
	started time.Time
	shown   time.Time
}

// How long something runs before it says so, and how often it does.
const (
	progressAfter = time.Second
	progressEvery = 200 * time.Millisecond
)

// show says that done of total are done.
func (p *progress) show(done, total int64) {
	now := time.Now()
	if p.started.IsZero() {
		p.started = now
	}
	if now.Sub(p.started) < progressAfter || now.Sub(p.shown) < progressEvery || total == 0 || !isTerminal(p.w) {
		return
	}
	p.shown = now
	fmt.Fprintf(p.w, "\r%s %d %%\x1b[K", p.what, done*100/total)
}

// done takes away what was shown.
func (p *progress) done() {
	if !p.shown.IsZero() {
		fmt.Fprint(p.w, "\r\x1b[K")
	}
}

func isTerminal(stream any) bool {
	f, ok := stream.(*os.File)
	return ok && term.IsTerminal(int(f.Fd()))
}
