package ca

import (
	"bytes"
	"context"
	"crypto/sha256"
	"crypto/x509"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	"meshlog.dev/services/internal/audit"
	"meshlog.dev/services/internal/bus"
	"meshlog.dev/services/internal/process"
	"meshlog.dev/services/internal/seal"
	"meshlog.dev/services/mesh/credential"
	"meshlog.dev/services/mesh/kind"
	"meshlog.dev/services/roles/watcher"
)

// readEvery is the time between two reads of the roots of an authority elsewhere.
const readEvery = 5 * time.Second

var errElsewhere = errors.New("the authority of this mesh runs elsewhere, and this process has no key (--signer none): rotate the root there, and export its roots again")

// elsewhere keeps the roots of an authority that runs elsewhere, such as SPIRE, as a file
// or the files of a directory have them (CA-3). All of them are active: that authority
// decides which one signs, and proxies trust each. Files that are broken, or without a
// root that is valid, do not replace good ones.
type elsewhere struct {
	path  string
	roots *roots

	trouble atomic.Pointer[error] // why the current files are not used; nil if they are
	sum     [sha256.Size]byte     // of the files at the read before; used by reload only
	doubted string                // the error of the read before; used by reload only
}

// openElsewhere reads the roots for the first time.
func (s *Settings) openElsewhere(now time.Time, log *slog.Logger) (*elsewhere, error) {
	e := &elsewhere{path: s.TrustBundle, roots: &roots{trustDomain: s.TrustDomain, log: log}}
	certs, sum, err := e.read(now)
	if err != nil {
		return nil, process.Invalid("trust-bundle", "%w", err)
	}
	e.sum = sum
	e.use(certs, now)
	return e, nil
}

// read returns the roots in the files that are valid, and the digest of the files.
func (e *elsewhere) read(now time.Time) ([]*x509.Certificate, [sha256.Size]byte, error) {
	var sum [sha256.Size]byte
	paths, err := e.files()
	if err != nil {
		return nil, sum, err
	}
	hash := sha256.New()
	var all []*x509.Certificate
	ended := 0
	for _, path := range paths {
		content, err := seal.ReadAtMost(path, maxRoots)
		if err != nil {
			return nil, sum, err
		}
		fmt.Fprintf(hash, "%s %d\n", path, len(content))
		hash.Write(content)
		if len(bytes.TrimSpace(content)) == 0 {
			return nil, sum, fmt.Errorf("%s: is empty", path)
		}
		verdict := credential.TrustBundle(string(content), "")
		if len(verdict.Problems) > 0 {
			return nil, sum, fmt.Errorf("%s: %s: %s", path, verdict.Problems[0].Reason, verdict.Problems[0].Advice)
		}
		for _, c := range verdict.CAs {
			switch {
			case now.After(c.NotAfter):
				ended++
			case !has(all, c):
				all = append(all, c)
			}
		}
	}
	hash.Sum(sum[:0])
	if len(all) == 0 {
		return nil, sum, fmt.Errorf("%s: has no root that is valid (%d have ended)", e.path, ended)
	}
	return all, sum, e.valid(all)
}

// valid returns an error if the log would not take the roots.
func (e *elsewhere) valid(certs []*x509.Certificate) error {
	try := &roots{trustDomain: e.roots.trustDomain}
	try.set(areActive(certs, nil, time.Time{}))
	b, _ := try.bundle()
	k, _ := kind.ByName("TrustBundle")
	if problems := k.Validate("", b); len(problems) > 0 {
		return fmt.Errorf("%s: %s: %s", e.path, problems[0].Error(), problems[0].Advice)
	}
	return nil
}

// files returns the files with roots: all of a directory, but hidden ones, as Kubernetes
// has them beside the files of a volume.
func (e *elsewhere) files() ([]string, error) {
	info, err := os.Stat(e.path)
	if err != nil {
		return nil, err
	}
	if !info.IsDir() {
		return []string{e.path}, nil
	}
	entries, err := os.ReadDir(e.path)
	if err != nil {
		return nil, err
	}
	var all []string
	for _, entry := range entries {
		if !strings.HasPrefix(entry.Name(), ".") {
			all = append(all, filepath.Join(e.path, entry.Name()))
		}
	}
	if len(all) == 0 {
		return nil, fmt.Errorf("%s: has no files", e.path)
	}
	return all, nil
}

// areActive returns the states of roots; known are those before.
func areActive(certs []*x509.Certificate, known []root, now time.Time) []root {
	var all []root
	for _, c := range certs {
		r := root{cert: c, state: active, since: now}
		if i := slices.IndexFunc(known, func(k root) bool { return k.cert.Equal(c) }); i >= 0 {
			r.since = known[i].since
		}
		all = append(all, r)
	}
	return all
}

// use publishes roots.
func (e *elsewhere) use(certs []*x509.Certificate, now time.Time) {
	before := e.roots.list()
	all := areActive(certs, before, now)
	for _, r := range all {
		if !slices.ContainsFunc(before, func(b root) bool { return b.cert.Equal(r.cert) }) {
			e.roots.log.Info("a root of the mesh", "root", named(r.cert), "state", string(r.state), "ends", r.cert.NotAfter)
		}
	}
	for _, b := range before {
		if !has(certs, b.cert) {
			e.roots.log.Info("a root of the mesh was removed", "root", named(b.cert), "ends", b.cert.NotAfter)
		}
	}
	e.roots.set(all)
}

// reload reads the files again. Other processes may be writing them, so new content, and
// an error, count only if the next read finds the same.
func (e *elsewhere) reload(now time.Time) {
	certs, sum, err := e.read(now)
	settled := sum == e.sum
	e.sum = sum
	switch {
	case err != nil && err.Error() == e.doubted:
		err = fmt.Errorf("%w; the roots before stay published", err)
		e.trouble.Store(&err)
	case err != nil:
		e.doubted = err.Error()
	case !settled:
		e.doubted = ""
	default:
		e.doubted = ""
		e.trouble.Store(nil)
		e.use(certs, now)
	}
}

// problem returns why the current files are not used, or nil.
func (e *elsewhere) problem() error {
	if err := e.trouble.Load(); err != nil {
		return *err
	}
	return nil
}

// ends returns a warning if the last root ends soon. SPIRE makes the next one long before:
// at half of the time of a root, or 30 days before its end.
func (e *elsewhere) ends(now time.Time) error {
	last := slices.MaxFunc(e.roots.list(), func(a, b root) int { return a.cert.NotAfter.Compare(b.cert.NotAfter) }).cert
	if last.NotAfter.Sub(now) >= min(last.NotAfter.Sub(last.NotBefore)/4, 14*24*time.Hour) {
		return nil
	}
	return fmt.Errorf("the last root in %s, %s, ends at %s: export the roots again", e.path, named(last), last.NotAfter.UTC().Format(time.RFC3339))
}

// run reads the files again until ctx is done. It logs each new error once.
func (e *elsewhere) run(ctx context.Context) error {
	tick := time.NewTicker(readEvery)
	defer tick.Stop()
	logged := ""
	for {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case now := <-tick.C:
			e.reload(now)
		}
		if err := e.problem(); err == nil {
			logged = ""
		} else if err.Error() != logged {
			logged = err.Error()
			e.roots.log.Warn("the roots of the mesh stay as they are", "error", err)
		}
	}
}

// publish runs with --signer none: without a key, a port and authenticators.
func (a *authority) publish(ctx context.Context) error {
	e, err := a.openElsewhere(time.Now(), a.log)
	if err != nil {
		return err
	}
	a.roots = e.roots
	a.signer = signing{trouble: e.problem, rotate: func(time.Time) error { return errElsewhere }}
	nc, err := a.Connect(ctx)
	if err != nil {
		return err
	}
	defer nc.Close()
	if a.records, err = audit.NewWriter(nc, audit.WriterOptions{Domain: a.Domain, Role: bus.Watcher(Shard), Process: a.ID, Log: a.log}); err != nil {
		return err
	}
	admin := a.Process.Admin
	admin.Register(append(bus.ConnMetrics("ca", nc), a.records, a.roots.metric())...)
	admin.Ready("ca", func() error { return bus.Ready(nc) })
	admin.Warn("ca files", e.problem)
	admin.Warn("ca end", func() error { return e.ends(time.Now()) })
	admin.Report("ca", func() any { return e.report() })
	a.log.Info("publishing the roots of an authority elsewhere", "roots", len(e.roots.list()), "trust_domain", a.TrustDomain)
	fleet := bus.NewFleet(nc, a.Domain, a.log)
	return process.RunStages(ctx, process.Stage{
		a.records.Run,
		e.run,
		func(ctx context.Context) error { return fleet.ServeAuthority(ctx, a.ID, Shard, a.act) },
		a.watch,
	})
}

// watch publishes the roots as the watcher of their source.
func (a *authority) watch(ctx context.Context) error {
	return watcher.Run(ctx, watcher.Options{
		Domain: a.Domain, Shard: Shard, Holder: a.ID, Watcher: &source{a.TrustDomain, a.roots}, Connect: a.Connect, Process: a.Process,
	})
}

// published is what /debug/ca shows with --signer none.
type published struct {
	TrustDomain string       `json:"trustDomain"`
	From        string       `json:"from"`
	Roots       []rootReport `json:"roots"`
	Trouble     string       `json:"trouble,omitempty"`
}

func (e *elsewhere) report() published {
	r := published{TrustDomain: e.roots.trustDomain, From: e.path, Roots: e.roots.report()}
	if err := e.problem(); err != nil {
		r.Trouble = err.Error()
	}
	return r
}
