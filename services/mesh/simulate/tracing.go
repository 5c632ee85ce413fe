package simulate

import (
	"slices"
	"strconv"

	hcmv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/network/http_connection_manager/v3"

	"meshlog.dev/proto/ident"
	"meshlog.dev/services/mesh/xds/piece"
)

// traced notes where a trace of the request is reported, and how many percent of requests are
// traced if their callers have not decided.
func (o *Outcome) traced(t *hcmv3.HttpConnectionManager_Tracing) {
	if t == nil {
		return
	}
	to := t.GetProvider().GetName()
	facts := piece.FactsOf(ident.LDS, t.GetProvider())
	if len(facts.Clusters) > 0 {
		to = slices.Max(facts.Clusters)
	}
	o.note("traced by %s, %s %%", to, strconv.FormatFloat(t.GetRandomSampling().GetValue(), 'g', -1, 64))
	for _, tag := range t.GetCustomTags() {
		o.note("tag %s", tag.GetTag())
	}
}
