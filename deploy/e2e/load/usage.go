package main

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"os"
	"strconv"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// tick is the unit of processor time in /proc; the kernel reports the same unit
// on every machine.
const tick = 10 * time.Millisecond

// cpuOf returns the processor time that a process has used. A process's clock is
// exact, unlike the ticks in /proc.
func cpuOf(pid int) (time.Duration, error) {
	var used unix.Timespec
	if err := unix.ClockGettime(int32(^pid<<3|2), &used); err != nil { // see clock_getcpuclockid(3)
		return 0, fmt.Errorf("processor time of process %d: %w", pid, err)
	}
	return time.Duration(used.Nano()), nil
}

// ownCPU returns the processor time that this process has used.
func ownCPU() time.Duration {
	var u syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &u); err != nil {
		return 0 // cannot fail for SELF
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}

// machineCPU returns the processor time that all processes have used.
func machineCPU() (time.Duration, error) {
	b, err := os.ReadFile("/proc/stat")
	if err != nil {
		return 0, err
	}
	var name string
	var user, nice, system, idle, iowait, irq, softirq int64
	if _, err := fmt.Sscan(string(b), &name, &user, &nice, &system, &idle, &iowait, &irq, &softirq); err != nil {
		return 0, fmt.Errorf("/proc/stat: %w", err)
	}
	return time.Duration(user+nice+system+irq+softirq) * tick, nil
}

// usage is the processor time and traffic of a stretch of the run.
type usage struct {
	server, own, machine time.Duration // of processors
	bytes                int64         // sent to all proxies
}

// others returns the processor time of all processes other than the server and
// the proxies. If it is large, the figures are worth little.
func (u usage) others() time.Duration { return max(0, u.machine-u.both()) }

// both returns the processor time of the server and the proxies.
func (u usage) both() time.Duration { return u.server + u.own }

// usage returns the usage so far.
func (t target) usage(bytes int64) (usage, error) {
	server, err := cpuOf(t.pid)
	if err != nil {
		return usage{}, err
	}
	machine, err := machineCPU()
	return usage{server, ownCPU(), machine, bytes}, err
}

// since returns the usage since then.
func (t target) since(then usage, bytes int64) (usage, error) {
	now, err := t.usage(bytes)
	return usage{now.server - then.server, now.own - then.own, now.machine - then.machine, now.bytes - then.bytes}, err
}

// memory is the memory of a process, in bytes.
type memory struct{ resident, peak int64 }

func memoryOf(pid int) (m memory, err error) {
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	if err != nil {
		return m, err
	}
	for line := range strings.Lines(string(b)) {
		name, value, _ := strings.Cut(line, ":")
		into := map[string]*int64{"VmRSS": &m.resident, "VmHWM": &m.peak}[name]
		if into == nil {
			continue
		}
		kb, err := strconv.ParseInt(strings.TrimSpace(strings.TrimSuffix(strings.TrimSpace(value), "kB")), 10, 64)
		if err != nil {
			return m, fmt.Errorf("/proc/%d/status: %s: %w", pid, name, err)
		}
		*into = kb << 10
	}
	return m, nil
}

// resetPeak resets the peak of a process's memory to its present size.
func resetPeak(pid int) error {
	return os.WriteFile(fmt.Sprintf("/proc/%d/clear_refs", pid), []byte("5"), 0)
}

// How memory settles: the run collects garbage in steps, until some steps in a
// row have not shrunk memory by a percent. One collection is not enough: a
// sync.Pool is empty only after the second, and a collection decides how much
// memory the next one returns.
const (
	settleSteps = 6  // without shrinking
	settleMax   = 32 // in all
)

// settled returns the server's memory once it has returned what it does not need.
// An idle Go process collects garbage every two minutes; this asks it to do so
// now.
func (t target) settled(ctx context.Context, step time.Duration) (memory, error) {
	last, err := memoryOf(t.pid)
	for n, still := 0, 0; err == nil && n < settleMax && still < settleSteps; n++ {
		if err := collect(ctx, t.admin); err != nil {
			return memory{}, err
		}
		if err := wait(ctx, step); err != nil {
			return memory{}, err
		}
		var now memory
		now, err = memoryOf(t.pid)
		still++
		if now.resident < last.resident*99/100 {
			still = 0
		}
		last = now
	}
	return last, err
}

// collect asks a process for a heap profile, which collects garbage.
func collect(ctx context.Context, admin int) error {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, fmt.Sprintf("http://127.0.0.1:%d/debug/pprof/heap?gc=1", admin), nil)
	if err != nil {
		return err
	}
	return do(req)
}

// do sends a request and checks only that it succeeds.
func do(req *http.Request) error { return doWith(http.DefaultClient, req) }

func doWith(client *http.Client, req *http.Request) error {
	res, err := client.Do(req)
	if err != nil {
		return err
	}
	defer res.Body.Close()
	if _, err := io.Copy(io.Discard, res.Body); err != nil {
		return err
	}
	if res.StatusCode != http.StatusOK {
		return fmt.Errorf("%s: %s", req.URL, res.Status)
	}
	return nil
}

// wait waits for a duration, or until ctx ends.
func wait(ctx context.Context, d time.Duration) error {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}
