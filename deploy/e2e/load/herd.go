package main

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"time"

	"meshlog.dev/deploy/e2e/load/fleet"
)

// herdCommand makes this program a herd of proxies, in a separate process that
// takes orders over standard input.
const herdCommand = "be-herd"

// behind is the nice value of the herd. The proxies of a mesh run on machines of
// their own, and their work does not slow the server down.
const behind = 10

// order is an order to a herd, one JSON object a line. The herd answers each with
// a herdReport.
type order struct {
	Herd    *fleet.HerdConfig `json:",omitempty"` // connect; the first order
	Expect  *int              `json:",omitempty"` // await the return of the proxies at a target
	Forget  *int              `json:",omitempty"` // make the proxies at a target return without versions
	Scatter bool              `json:",omitempty"` // end all streams
	Wait    bool              `json:",omitempty"` // until all expected proxies are back
}

// herdReport is the result of an order. Counts are since the herd was made.
type herdReport struct {
	Error  string `json:",omitempty"`
	Took   []time.Duration
	Counts herdCounts
}

type herdCounts struct{ Bytes, Refused, Failed int64 }

func (c herdCounts) since(then herdCounts) herdCounts {
	return herdCounts{c.Bytes - then.Bytes, c.Refused - then.Refused, c.Failed - then.Failed}
}

// beHerd takes orders until its input ends.
func beHerd(ctx context.Context, in io.Reader, out io.Writer) error {
	if err := syscall.Setpriority(syscall.PRIO_PROCESS, 0, behind); err != nil {
		return fmt.Errorf("lower the priority: %w", err)
	}
	var h *fleet.Herd
	var back *fleet.Return
	var began time.Time
	defer func() {
		if h != nil {
			h.Close()
		}
	}()
	lines := bufio.NewReader(in)
	answers := json.NewEncoder(out)
	for {
		line, err := lines.ReadBytes('\n')
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return err
		}
		var o order
		if err := json.Unmarshal(line, &o); err != nil {
			return err
		}
		var r herdReport
		switch {
		case o.Herd != nil:
			began = time.Now()
			h, back = fleet.NewHerd(ctx, *o.Herd)
		case o.Expect != nil:
			back, began = h.Expect(*o.Expect), time.Now()
		case o.Forget != nil:
			h.Forget(*o.Forget)
		case o.Scatter:
			began = time.Now()
			h.Scatter()
		}
		if o.Wait {
			if err := back.Wait(ctx); err != nil {
				r.Error = err.Error()
			} else {
				r.Took = sorted(back.Took(began))
			}
		}
		r.Counts = herdCounts{h.Bytes(), h.Refused(), h.Failed()}
		if err := answers.Encode(r); err != nil {
			return err
		}
	}
}

// herd is a herd in another process.
type herd struct {
	cmd     *exec.Cmd
	in      io.WriteCloser
	out     *json.Decoder
	stderr  strings.Builder
	ordered *json.Encoder
}

func startHerd(ctx context.Context) (*herd, error) {
	self, err := os.Executable()
	if err != nil {
		return nil, err
	}
	h := &herd{cmd: exec.CommandContext(ctx, self, herdCommand)}
	h.cmd.Stderr = &h.stderr
	h.cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	if h.in, err = h.cmd.StdinPipe(); err != nil {
		return nil, err
	}
	out, err := h.cmd.StdoutPipe()
	if err != nil {
		return nil, err
	}
	h.ordered, h.out = json.NewEncoder(h.in), json.NewDecoder(out)
	return h, h.cmd.Start()
}

// tell sends an order and waits for the herd's report.
func (h *herd) tell(o order) (herdReport, error) {
	var r herdReport
	if err := h.ordered.Encode(o); err != nil {
		return r, fmt.Errorf("the herd: %w: %s", err, h.stderr.String())
	}
	if err := h.out.Decode(&r); err != nil {
		return r, fmt.Errorf("the herd: %w: %s", err, h.stderr.String())
	}
	if r.Error != "" {
		return r, fmt.Errorf("the herd: %s", r.Error)
	}
	return r, nil
}

// end stops the herd's process.
func (h *herd) end() error {
	if err := h.in.Close(); err != nil {
		return err
	}
	return h.cmd.Wait()
}
