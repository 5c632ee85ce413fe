package keys

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

// Status describes a Store, for a debug page. It holds no key.
type Status struct {
	Keys []KeyStatus `json:"keys,omitempty"` // in the order of their objects
	// Disk says where the keys are besides memory.
	Disk string `json:"disk"`
	// Trouble is the error of Store.Trouble.
	Trouble string `json:"trouble,omitempty"`
}

// KeyStatus describes a key.
type KeyStatus struct {
	Object string    `json:"object"`
	Field  string    `json:"field"`
	HMAC   string    `json:"hmac"` // in hex
	State  string    `json:"state"`
	Sealed bool      `json:"sealed"`         // a sealed file has it
	Since  time.Time `json:"since,omitzero"` // when it came to be wanted; zero: it was read at the start
}

// Status returns a description of the Store.
func (s *Store) Status() Status {
	st := Status{Disk: "memory only: without --seal-key-file no key is on disk, and after a restart all are asked for again"}
	if s.cfg.Seal != nil {
		st.Disk = fmt.Sprintf("sealed files in %s, with the seal key %s", s.cfg.Dir, s.cfg.Seal.ID())
	}
	if err := s.Trouble(); err != nil {
		st.Trouble = err.Error()
	}
	s.mu.Lock()
	now := time.Now()
	for k, e := range s.entries {
		st.Keys = append(st.Keys, KeyStatus{k.object(), k.Field, hexSum(k), e.state(now).String(), e.sealed, e.since})
	}
	s.mu.Unlock()
	slices.SortFunc(st.Keys, func(a, b KeyStatus) int {
		return cmp.Or(cmp.Compare(a.Object, b.Object), cmp.Compare(a.Field, b.Field), cmp.Compare(a.HMAC, b.HMAC))
	})
	return st
}

// Trouble returns what an operator has to repair, or nil: a directory that cannot be
// used, files that cannot be opened, keys that are left out.
func (s *Store) Trouble() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	var errs []error
	if s.noDisk != nil {
		errs = append(errs, fmt.Errorf("private keys in memory only: %d; the frontend tries to seal them every minute: %w", s.unsealed(), s.noDisk))
	}
	if n := len(s.unopened); n > 0 {
		errs = append(errs, fmt.Errorf("sealed files of private keys that cannot be opened, and are left as they are: %d: %w", n, s.firstUnopened()))
	}
	if s.leftOut > 0 {
		errs = append(errs, fmt.Errorf("private keys that are not served: %d: a frontend keeps %d at most; spread the proxies that need them over more frontends", s.leftOut, maxKeys))
	}
	if s.noSum > 0 {
		errs = append(errs, fmt.Errorf("private keys without a valid HMAC in the served versions: %d; they cannot be asked for: give all watchers --secret-key-file", s.noSum))
	}
	return errors.Join(errs...)
}

// unsealed returns how many keys are in memory only. The caller holds mu.
func (s *Store) unsealed() (n int) {
	for _, e := range s.entries {
		if e.content != nil && !e.sealed {
			n++
		}
	}
	return n
}

var (
	keysDesc     = prometheus.NewDesc("meshlog_frontend_keys", "Private keys that served versions name and proxies have asked for, by state: here, coming (asked for since less than 4 s), gone (not here; proxies are told that the secret is unknown). Gone above 0: /debug/keys names them, and the log says why no watcher gives them.", []string{"state"}, nil)
	unsealedDesc = prometheus.NewDesc("meshlog_frontend_keys_unsealed", "Private keys that are in memory only. With --seal-key-file above 0: /readyz says why the disk does not take them. Without it, a restarted frontend has to ask for them again.", nil, nil)
	unopenedDesc = prometheus.NewDesc("meshlog_frontend_key_files_unopened", "Sealed files of private keys that cannot be opened. Above 0: /readyz says which seal key they need.", nil, nil)
	missingDesc  = prometheus.NewDesc("meshlog_frontend_keys_missing_seconds", "Seconds since which proxies ask for the oldest private key that is not here; 0: all are here. Above 4: /debug/keys names it, and the log says why no watcher gives it.", nil, nil)
	answersDesc  = prometheus.NewDesc("meshlog_frontend_key_requests_total", "Requests for private keys, by outcome: given, gone, changed, refused and busy are the answers of watchers, unanswered: none came, unfit: an answer had another key than the version names. Unfit above 0: compare --secret-key-file of watchers and frontends; if they are equal, a watcher gives wrong keys.", []string{"outcome"}, nil)
)

// Describe implements prometheus.Collector.
func (s *Store) Describe(ch chan<- *prometheus.Desc) {
	ch <- keysDesc
	ch <- unsealedDesc
	ch <- unopenedDesc
	ch <- missingDesc
	ch <- answersDesc
}

// Collect implements prometheus.Collector.
func (s *Store) Collect(ch chan<- prometheus.Metric) {
	s.mu.Lock()
	defer s.mu.Unlock()
	gauge := func(d *prometheus.Desc, n int, labels ...string) {
		ch <- prometheus.MustNewConstMetric(d, prometheus.GaugeValue, float64(n), labels...)
	}
	states := map[State]int{Here: 0, Coming: 0, Gone: 0}
	now := time.Now()
	missing := time.Duration(0)
	for _, e := range s.entries {
		states[e.state(now)]++
		if e.content == nil {
			missing = max(missing, now.Sub(e.since))
		}
	}
	ch <- prometheus.MustNewConstMetric(missingDesc, prometheus.GaugeValue, missing.Seconds())
	for state, n := range states {
		gauge(keysDesc, n, state.String())
	}
	gauge(unsealedDesc, s.unsealed())
	gauge(unopenedDesc, len(s.unopened))
	for outcome, n := range s.answers {
		ch <- prometheus.MustNewConstMetric(answersDesc, prometheus.CounterValue, float64(n), outcome)
	}
}
