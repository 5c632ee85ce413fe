package kube

import (
	"errors"
	"fmt"
	"maps"
	"meshlog.dev/services/mesh/kind"
	"meshlog.dev/services/watcher/kube/apiserver"
	"slices"
	"time"
)

// This file is about which kinds can be spoken of.

// needs are the kinds without which others would be converted to something
// else than before: they are not spoken of either.
func (c *Config) needs(name string) []string {
	switch {
	case name == sliceKind && len(c.Namespaces) > 0:
		return []string{podKind} // a Role gives no nodes
	case name == sliceKind:
		return []string{podKind, nodeKind}
	case name == podKind && len(c.Namespaces) == 0:
		return []string{nodeKind}
	}
	return nil
}

// needy are the kinds that have needs, those that others need first.
var needy = []string{podKind, sliceKind}

// readable are the kinds that can be spoken of: all that is there of them is
// known. Of those that are not to be watched there is nothing.
func (r *run) readable() map[string]bool {
	is := map[string]bool{}
	for _, k := range kind.All() {
		is[k.Name] = !r.cfg.wants(k) || r.feedsOf(k) > 0
	}
	for _, f := range r.feeds {
		is[f.Kind.Name] = is[f.Kind.Name] && f.Synced && f.Frozen == ""
	}
	for _, name := range needy {
		for _, need := range r.cfg.needs(name) {
			is[name] = is[name] && is[need]
		}
	}
	if len(r.cfg.DiscoverySelectors) > 0 && !is[namespaceKind] {
		for _, k := range kind.All() { // it is not known which count
			is[k.Name] = is[k.Name] && !k.Namespaced
		}
	}
	maps.DeleteFunc(is, func(_ string, can bool) bool { return !can })
	return is
}

func (r *run) feedsOf(k *kind.Kind) (n int) {
	for _, f := range r.feeds {
		if f.Kind == k {
			n++
		}
	}
	return n
}

// nothing is an error if no resource can be read.
func (r *run) nothing(now time.Time) error {
	why := errors.New("it serves nothing that can be watched")
	for _, name := range slices.Sorted(maps.Keys(r.feeds)) {
		f := r.feeds[name]
		if f.Synced && f.Frozen == "" {
			return nil
		}
		if d, ok := f.Problem(now); ok {
			why = fmt.Errorf("%s: %s; %s", d.Origin, d.Reason, d.Advice)
		}
	}
	return fmt.Errorf("nothing can be read of the API server; %w", why)
}

// useless says that the API server answers, but nothing that is of use: it says
// itself that it is not ready, and each resource has failed for some time.
func (r *run) useless(now time.Time) bool {
	return r.unready != nil && !slices.ContainsFunc(r.all(), func(f *apiserver.Feed) bool {
		return f.Frozen == "" && (f.Err == nil || now.Before(f.Since.Add(r.limits.Down)))
	})
}

// outdated says that a new listing would speak for other kinds than the last
// one did: one can be read that could not, or one cannot be read any more and
// will not be by itself.
func (r *run) outdated(now time.Time) bool {
	if r.covered == nil {
		return false
	}
	for name := range r.readable() {
		if !r.covered[name] {
			return true
		}
	}
	for _, f := range r.feeds {
		switch f.Trouble(now) {
		case apiserver.Gone, apiserver.Unserved, apiserver.Forbidden:
			if r.covered[f.Kind.Name] {
				return true
			}
		}
	}
	return false
}
