package ca

import (
	"bytes"
	"cmp"
	"crypto/sha256"
	"crypto/x509"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"slices"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	registryv1 "meshlog.dev/proto/meshlog/registry/v1"
	"meshlog.dev/services/ca/signer"
	"meshlog.dev/services/internal/seal"
)

// State is the state of a root (CA-10). A root is announced, then active, then retiring,
// then removed; only the active one signs.
type state string

const (
	announced state = "announced"
	active    state = "active"
	retiring  state = "retiring"
)

var protoStates = map[state]registryv1.RootState{
	announced: registryv1.RootState_ROOT_STATE_ANNOUNCED,
	active:    registryv1.RootState_ROOT_STATE_ACTIVE,
	retiring:  registryv1.RootState_ROOT_STATE_RETIRING,
}

// root is a root and its state since a time.
type root struct {
	cert  *x509.Certificate
	state state
	since time.Time
	// ready: an announced root may sign, because all live proxies have applied it, or
	// because an operator said so.
	ready bool
	// longest is the longest time for which a certificate was issued under it.
	longest time.Duration
}

// lastEnds returns when the last certificate under a retiring root has ended: replicas
// stop to sign within seconds, and clocks may differ.
func (r root) lastEnds() time.Time {
	return r.since.Add(r.longest + min(r.longest, time.Hour))
}

// next returns the states after known, for an authority and the roots in its files at a
// time. A root signs as soon as the authority does under it; accept has refused what is
// too early.
func next(known []root, a *signer.Authority, given []*x509.Certificate, longest time.Duration, now time.Time) []root {
	var all []root
	for _, r := range known {
		was := r.state
		switch signs := r.cert.Equal(a.Root()); {
		case signs:
			r.state = active
		case was == active:
			r.state = retiring
		case was == announced && !has(given, r.cert),
			was == retiring && !has(given, r.cert) && !now.Before(r.lastEnds()),
			now.After(r.cert.NotAfter):
			continue
		}
		if r.state != was {
			r.since, r.ready = now, false
		}
		if r.state == active {
			r.longest = max(r.longest, longest)
		}
		all = append(all, r)
	}
	for _, g := range given {
		switch {
		case slices.ContainsFunc(all, func(r root) bool { return r.cert.Equal(g) }):
		case g.Equal(a.Root()):
			all = append(all, root{cert: g, state: active, since: now, longest: longest})
		case !now.After(g.NotAfter):
			all = append(all, root{cert: g, state: announced, since: now})
		}
	}
	return all
}

func has(all []*x509.Certificate, c *x509.Certificate) bool {
	return slices.ContainsFunc(all, c.Equal)
}

// roots keeps the states of the authority's roots in a file, sealed if the key is. It
// writes the file before it tells the states.
type roots struct {
	path        string
	seal        *seal.Key // nil: the file is in clear
	trustDomain string
	longest     time.Duration // for which certificates are issued
	any         bool          // roots may sign that were not announced
	log         *slog.Logger

	mu   sync.Mutex
	all  []root
	news chan struct{} // closed when all changes; nil until a reader asks
}

// rootFile is the file.
type rootFile struct {
	Roots []rootEntry `json:"roots"`
}

type rootEntry struct {
	Certificate string    `json:"certificate"` // PEM
	State       state     `json:"state"`
	Since       time.Time `json:"since"`
	Ready       bool      `json:"ready,omitempty"`
	Longest     string    `json:"longest,omitempty"`
}

// maxRoots is how many bytes the file may have.
const maxRoots = 1 << 20

// read returns the states in the file; none if it is missing. Only a file that the seal
// key opens counts: all proxies would trust a root that an attacker adds.
func (r *roots) read() ([]root, error) {
	b, err := seal.ReadAtMost(r.path, maxRoots)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return nil, nil
	case err != nil:
		return nil, err
	case r.seal != nil:
		b, err = r.seal.Open(b)
	case seal.IsSealed(b):
		err = errors.New("is sealed: give the key that sealed it with --seal-key-file")
	}
	var f rootFile
	if err == nil {
		err = json.Unmarshal(b, &f)
	}
	if err != nil {
		return nil, wrongSeal(r.path, err)
	}
	var all []root
	for _, e := range f.Roots {
		certs, err := signer.ParseCertificates([]byte(e.Certificate))
		if _, known := protoStates[e.State]; err != nil || len(certs) != 1 || !known {
			return nil, fmt.Errorf("states of the roots: %s: an entry is damaged: restore the file from a copy", r.path)
		}
		longest, err := time.ParseDuration(cmp.Or(e.Longest, signer.MaxTTL.String()))
		if err != nil {
			return nil, fmt.Errorf("states of the roots: %s: an entry is damaged: restore the file from a copy", r.path)
		}
		all = append(all, root{certs[0], e.State, e.Since, e.Ready, longest})
	}
	return all, nil
}

func (r *roots) write(all []root) error {
	var f rootFile
	for _, c := range all {
		f.Roots = append(f.Roots, rootEntry{signer.Encode(c.cert), c.state, c.since.UTC(), c.ready, c.longest.String()})
	}
	b, err := json.MarshalIndent(f, "", "  ")
	if err != nil {
		return err
	}
	if r.seal != nil {
		err = r.seal.WriteFile(r.path, b)
	} else {
		err = seal.WriteFile(r.path, b)
	}
	if err != nil {
		return fmt.Errorf("states of the roots: %w; give a file that this process may write with --roots-file", err)
	}
	return nil
}

// none returns an error if there are states although the key is missing.
func (r *roots) none(key string) error {
	known, err := r.read()
	if err != nil || len(known) == 0 || r.any {
		return err
	}
	return fmt.Errorf("%s is missing, and proxies trust the root %s, as %s says: restore the key from a copy. To begin with a new root that no proxy trusts yet, give --unannounced-root once",
		key, named(known[0].cert), r.path)
}

// accept returns why an authority must not sign yet: proxies may not trust its root (CA-10).
func (r *roots) accept(a *signer.Authority) error {
	known, err := r.read()
	if err != nil || r.any || len(known) == 0 {
		return err
	}
	i := slices.IndexFunc(known, func(k root) bool { return k.cert.Equal(a.Root()) })
	if i < 0 {
		return fmt.Errorf("no proxy knows the root %s yet: first add it to root-cert.pem beside the roots before, under the key and the certificate before; in an emergency, give --unannounced-root once", named(a.Root()))
	}
	if known[i].state == announced && !known[i].ready {
		return fmt.Errorf("the root %s is announced, and not all proxies trust it yet: `meshlog ca status` lists those that do not; in an emergency, `meshlog ca rotate --force` lets it sign", named(a.Root()))
	}
	return nil
}

// clear lets announced roots sign for which waiting returns no reason to wait. force: it
// is not asked.
func (r *roots) clear(waiting func([sha256.Size]byte) []string, force bool) error {
	unlock, err := lock(r.path)
	if err != nil {
		return err
	}
	defer unlock()
	known, err := r.read()
	if err != nil {
		return err
	}
	changed := false
	for i, c := range known {
		if c.state != announced || c.ready || !force && len(waiting(sumOf(c.cert))) > 0 {
			continue
		}
		known[i].ready, changed = true, true
		r.log.Info("an announced root of the mesh may sign", "root", named(c.cert), "forced", force)
	}
	if !changed {
		return nil
	}
	if err := r.write(known); err != nil {
		return err
	}
	r.set(known)
	return nil
}

// ready returns the announced root that may sign; nil: none.
func (r *roots) ready() (*x509.Certificate, error) {
	known, err := r.read()
	for _, c := range known {
		if c.state == announced && c.ready {
			return c.cert, err
		}
	}
	return nil, err
}

func sumOf(c *x509.Certificate) [sha256.Size]byte { return sha256.Sum256(c.Raw) }

// follow moves the states on, and writes them if they change. Other replicas may share the
// file, so it is read each time.
func (r *roots) follow(a *signer.Authority, given []*x509.Certificate, now time.Time) error {
	unlock, err := lock(r.path)
	if err != nil {
		return err
	}
	defer unlock()
	known, err := r.read()
	if err != nil {
		return err
	}
	all := next(known, a, given, r.longest, now)
	if !same(known, all) {
		if err := r.write(all); err != nil {
			return err
		}
		for _, c := range all {
			if i := slices.IndexFunc(known, func(k root) bool { return k.cert.Equal(c.cert) }); i < 0 || known[i].state != c.state {
				r.log.Info("a root of the mesh", "root", named(c.cert), "state", string(c.state), "ends", c.cert.NotAfter)
			}
		}
	}
	r.set(all)
	return nil
}

// set keeps the states for readers, and wakes them.
func (r *roots) set(all []root) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if !same(r.all, all) && r.news != nil {
		close(r.news)
		r.news = nil
	}
	r.all = all
}

func same(a, b []root) bool {
	return slices.EqualFunc(a, b, func(a, b root) bool {
		return a.cert.Equal(b.cert) && a.state == b.state && a.ready == b.ready && a.longest == b.longest
	})
}

// bundle returns what proxies shall trust, and a channel that is closed when that changes.
func (r *roots) bundle() (*registryv1.TrustBundle, <-chan struct{}) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.news == nil {
		r.news = make(chan struct{})
	}
	b := &registryv1.TrustBundle{TrustDomain: r.trustDomain}
	for _, c := range r.all {
		b.Roots = append(b.Roots, &registryv1.Root{Certificate: signer.Encode(c.cert), State: protoStates[c.state]})
	}
	// The order of the file is no meaning: of two replicas both publish the same bytes.
	slices.SortFunc(b.Roots, func(x, y *registryv1.Root) int {
		return bytes.Compare([]byte(x.GetCertificate()), []byte(y.GetCertificate()))
	})
	return b, r.news
}

// list returns the roots.
func (r *roots) list() []root {
	r.mu.Lock()
	defer r.mu.Unlock()
	return slices.Clone(r.all)
}

// rootReport is a root on /debug/ca.
type rootReport struct {
	Root  string    `json:"root"`
	State state     `json:"state"`
	Since time.Time `json:"since"`
	Ready bool      `json:"ready,omitempty"` // it is announced, and may sign
	Ends  time.Time `json:"ends"`
}

func (r *roots) report() (all []rootReport) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, c := range r.all {
		all = append(all, rootReport{named(c.cert), c.state, c.since, c.ready, c.cert.NotAfter})
	}
	return all
}

// metric returns the number of roots in each state.
func (r *roots) metric() prometheus.Collector { return rootsMetric{r} }

type rootsMetric struct{ *roots }

var rootsDesc = prometheus.NewDesc("meshlog_ca_roots", "Roots that proxies shall trust, by state: announced (not signing yet), active (signs), retiring (has signed; removed when its last certificate has ended and it is not in the files).", []string{"state"}, nil)

// Describe implements prometheus.Collector.
func (m rootsMetric) Describe(ch chan<- *prometheus.Desc) { ch <- rootsDesc }

// Collect implements prometheus.Collector.
func (m rootsMetric) Collect(ch chan<- prometheus.Metric) {
	count := map[state]float64{announced: 0, active: 0, retiring: 0}
	for _, c := range m.report() {
		count[c.State]++
	}
	for s, n := range count {
		ch <- prometheus.MustNewConstMetric(rootsDesc, prometheus.GaugeValue, n, string(s))
	}
}

// named names a certificate for people: two roots may have one subject.
func named(c *x509.Certificate) string {
	sum := sha256.Sum256(c.Raw)
	return fmt.Sprintf("%q (SHA-256 %s...)", c.Subject, hex.EncodeToString(sum[:4]))
}
