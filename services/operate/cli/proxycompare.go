package cli

import (
	"context"
	"fmt"
	"slices"
	"strings"

	"meshlog.dev/proto/ident"
	reportv1 "meshlog.dev/proto/meshlog/report/v1"
	"meshlog.dev/services/mesh/xds"
	"meshlog.dev/services/operate/past"
	"meshlog.dev/store"
)

// compareReply makes what the proxy should have, and says of each resource
// whether the stream has it.
func compareReply(ctx context.Context, p *past.Past, r *reportv1.ProxyReply) (configView, error) {
	at := store.VersionOf(r.GetVersion())
	v := configView{
		Proxy: r.GetReport().GetId(), Frontend: r.GetFrontend(), Stream: streamName(r.GetReport()),
		Version: at.String(), Types: []configType{},
	}
	if at.IsZero() || len(r.GetTypes()) == 0 {
		return v, nil // it was connected just now, and has asked for nothing
	}
	proxy, err := proxyOf(r)
	if err != nil {
		return v, err
	}
	w, err := past.World(ctx, p, at)
	if err != nil {
		return v, fmt.Errorf("what %s serves: %w", r.GetFrontend(), err)
	}
	served := servedTo(w, proxy)
	for _, c := range r.GetTypes() {
		t, ok := ident.ResourceTypeOf(c.GetTypeUrl())
		if !ok {
			continue // of a later version of meshlog
		}
		has := typeComparison{t: t, should: served.sets[t], quarantined: served.quarantined[t], current: sentAll(r, c.GetTypeUrl(), at)}
		v.Types = append(v.Types, has.compare(c))
	}
	return v, nil
}

// sentAll says whether the stream was sent everything up to a version.
func sentAll(r *reportv1.ProxyReply, typeURL string, at ident.Position) bool {
	return slices.ContainsFunc(r.GetReport().GetTypes(), func(t *reportv1.TypeReport) bool {
		return t.GetTypeUrl() == typeURL && store.VersionOf(t.GetSent()) == at
	})
}

// typeComparison compares what a stream should have of a type with what it has.
type typeComparison struct {
	t           ident.ResourceType
	should      *xds.Set
	quarantined []string
	current     bool // it was sent all there is
}

func (c *typeComparison) compare(content *reportv1.TypeContent) configType {
	view := configType{Type: c.t.String(), Resources: []configResource{}}
	has := map[string]*reportv1.ResourceContent{}
	for _, r := range content.GetResources() {
		has[r.GetName()] = r
	}
	for _, r := range c.should.Resources {
		h := has[r.Name]
		if h == nil && !content.GetWildcard() {
			view.NotAsked++
			continue
		}
		of := shouldHave(c.t, r)
		of.State, of.Sent = c.state(r, h), sentSum(h)
		view.Resources = append(view.Resources, of)
		delete(has, r.Name)
	}
	for name, h := range has {
		view.Resources = append(view.Resources, configResource{Name: name, State: c.state(nil, h), Sent: sentSum(h)})
	}
	slices.SortFunc(view.Resources, func(a, b configResource) int { return strings.Compare(a.Name, b.Name) })
	return view
}

func sentSum(h *reportv1.ResourceContent) string {
	if len(h.GetSum()) == 0 {
		return ""
	}
	return fmt.Sprintf("%x", h.GetSum())
}

// state says how a resource stands: r is what the stream should have of a name,
// nil if nothing; h what it has, nil if nothing is known of it.
func (c *typeComparison) state(r *xds.Resource, h *reportv1.ResourceContent) string {
	should := ""
	if r != nil {
		should = r.Sum.String()
	}
	switch {
	case h.GetHeldBack():
		return stateHeldBack
	case h.GetLingering():
		return stateLingering
	case h.GetSent() && sentSum(h) == should:
		switch {
		case slices.Contains(c.quarantined, h.GetName()):
			return stateQuarantined
		case !h.GetApplied():
			return stateSent
		case r == nil:
			return stateAbsent
		}
		return stateAcked
	case !c.current:
		return stateStale
	case r == nil && slices.Contains(c.quarantined, h.GetName()):
		return stateQuarantined
	}
	return stateDiffers
}
