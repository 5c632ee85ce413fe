package inspect

import (
	"context"
	"fmt"
	"iter"
	"time"

	"meshlog.dev/proto/ident"
	"meshlog.dev/services/internal/bus"
	"meshlog.dev/services/operate/command"
	"meshlog.dev/services/operate/past"
	"meshlog.dev/store"
)

// Proxies returns all streams in reports, sorted by proxy. chain yields the manifests, newest
// first; unread is why it could not be read as far back as the oldest version of a proxy.
func Proxies(reports *bus.Reports, chain iter.Seq2[*store.Manifest, error], now time.Time) (views []ProxyView, unread error) {
	views, unread, err := viewProxies(reports, proxyFilter{}, chain, now)
	if err != nil { // of filters only
		return nil, err
	}
	return views, unread
}

// Has returns what each stream of a connected proxy has.
func Has(ctx context.Context, t *command.Target, p *past.Past, id string) ([]ConfigView, error) {
	q := configQuery{ProxyQuery: command.ProxyQuery{ID: id}}
	return q.has(ctx, t, p)
}

// WouldHave returns what a connected proxy would be served at a version.
func WouldHave(ctx context.Context, t *command.Target, p *past.Past, id, version string) ([]ConfigView, error) {
	q := configQuery{ProxyQuery: command.ProxyQuery{ID: id}}
	return q.wouldHave(ctx, t, p, version)
}

// Cell shows the status of one type of the stream.
func (v *ProxyView) Cell(t ident.ResourceType, now time.Time) command.Cell {
	return v.cell(t.URL(), now)
}

// State returns in a word how the stream is: rejecting, behind, lacking or in sync.
func (v *ProxyView) State() string {
	switch {
	case v.rejects():
		return "rejecting"
	case v.Behind != nil:
		return "behind"
	case v.lacks():
		return "lacking"
	}
	return "in sync"
}

// Lag returns how far the stream is behind the newest version.
func (v *ProxyView) Lag() string { return v.Behind.String() }

// Problems returns what is wrong with the stream, each with the names that it is about.
func (v *ProxyView) Problems(now time.Time) (all []string) {
	for _, t := range v.Types {
		all = append(all, t.details(now)...)
	}
	return all
}

// Facts returns the certificates, policies and roots of the mesh in words.
func (v *StatusView) Facts() (identities, policies, roots string) {
	return fmt.Sprint(v.Identities), fmt.Sprint(v.Policies), rootsLine(v.Roots)
}
