//go:build faults

package failpoint

import (
	"fmt"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
)

// variable holds POINT[:N][:pause]: when the process passes the point the Nth
// time (default 1), it is killed or, with pause, stopped until SIGCONT.
const variable = "MESHLOG_FAIL_AT"

type order struct {
	point  Point
	pass   int64
	signal syscall.Signal
}

var (
	ordered = sync.OnceValue(func() order {
		o, err := parse(os.Getenv(variable))
		if err != nil {
			panic(fmt.Sprintf("%s: %v", variable, err))
		}
		return o
	})
	passed atomic.Int64 // number of passes of the ordered point
)

// At kills or stops the process if the variable names this pass of p.
func At(p Point) {
	o := ordered()
	if p != o.point || passed.Add(1) != o.pass {
		return
	}
	fmt.Fprintf(os.Stderr, "%s %s\n", variable, p)
	if err := syscall.Kill(os.Getpid(), o.signal); err != nil {
		panic(err)
	}
	if o.signal == syscall.SIGKILL {
		select {} // the signal may take a moment
	}
}

func parse(s string) (order, error) {
	o := order{pass: 1, signal: syscall.SIGKILL}
	if s == "" {
		return order{}, nil
	}
	name, rest, _ := strings.Cut(s, ":")
	if o.point = Point(name); !slices.Contains(Points(), o.point) {
		return o, fmt.Errorf("no point %q; there are %v", name, Points())
	}
	for word := range strings.SplitSeq(rest, ":") {
		n, err := strconv.ParseInt(word, 10, 64)
		switch {
		case word == "":
		case word == "pause":
			o.signal = syscall.SIGSTOP
		case err != nil || n < 1:
			return o, fmt.Errorf("%q: want POINT[:N][:pause]", s)
		default:
			o.pass = n
		}
	}
	return o, nil
}
