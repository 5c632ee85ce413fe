package watcher

import (
	"context"
	"errors"
	"strconv"
	"strings"

	"meshlog.dev/proto/ident"
	"meshlog.dev/services/internal/bus"
	"meshlog.dev/services/internal/process"
	"meshlog.dev/services/watcher"
	"meshlog.dev/services/watcher/registry"
)

// Place is where the watcher of a registry runs.
type Place struct {
	Domain string
	// Holder names the process, stable over restarts.
	Holder  string
	Connect func(context.Context) (*bus.Conn, error)
	Process *process.Process
	// LogShare is how much of the log the records of the registry may take, in percent.
	LogShare int
	// Optional: the process is ready while the registry is down.
	Optional bool
}

// Run runs the watcher of a shard there. identity names what it reads, and status is what
// it tells about the registry.
func (p Place) Run(ctx context.Context, shard ident.Shard, identity string, w watcher.Watcher, status *registry.Status) error {
	return Run(ctx, Options{
		Domain: p.Domain, Shard: shard, Holder: p.Holder, Identity: identity, Watcher: w, Registry: status,
		Connect: p.Connect, Process: p.Process, LogShare: p.LogShare, Optional: p.Optional,
	})
}

// PortRules parses the rules of a setting: NAME=PORT, where * in a name stands for any
// characters, or PORT for all services. The error has all errors.
func PortRules(setting string, rules []string) (all []registry.PortRule, err error) {
	var errs []error
	for _, text := range rules {
		glob, number, named := strings.Cut(text, "=")
		if !named {
			glob, number = "*", text
		}
		n, err := strconv.ParseUint(number, 10, 16)
		if err != nil || n == 0 || glob == "" {
			errs = append(errs, process.Invalid(setting, "%q: want NAME=PORT or PORT", text))
			continue
		}
		all = append(all, registry.PortRule{Services: glob, Port: uint32(n)})
	}
	return all, errors.Join(errs...)
}
