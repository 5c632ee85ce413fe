package cli

import (
	"context"

	"github.com/spf13/cobra"

	"meshlog.dev/proto/ident"
	"meshlog.dev/services/mesh/proxy"
	"meshlog.dev/services/mesh/xds"
	"meshlog.dev/services/operate/past"
)

// flags binds the flags that say whose xDS is compared.
func (q *configQuery) flags(cmd *cobra.Command) {
	cmd.Flags().StringVar(&q.proxy, "proxy", "", "in place of objects, the xDS that this `proxy` would get")
	cmd.Flags().StringVar(&q.file, "node", "", "the same for a proxy that need not be connected: `file` with Envoy's bootstrap, or its node")
}

// given says whether the xDS of a proxy is asked for.
func (q *configQuery) given() bool { return q.proxy != "" || q.file != "" }

// diff says in which resources what a proxy would get differs between two
// moments.
func (q *configQuery) diff(cmd *cobra.Command, t *target, p *past.Past, from, to moment) (*diffView, error) {
	proxy, err := q.find(cmd, t, p)
	if err != nil {
		return nil, err
	}
	ctx := cmd.Context()
	before, err := servedAtMoment(ctx, p, proxy, from)
	if err != nil {
		return nil, err
	}
	after, err := servedAtMoment(ctx, p, proxy, to)
	if err != nil {
		return nil, err
	}
	v := &diffView{From: from.Version.String(), To: to.Version.String(), Proxy: proxy.ID, Changes: []objectChange{}}
	for t := range ident.ResourceTypes {
		v.Changes = append(v.Changes, diffSets(t, before.sets[t], after.sets[t])...)
	}
	return v, nil
}

func servedAtMoment(ctx context.Context, p *past.Past, proxy *proxy.Proxy, m moment) (servedSets, error) {
	w, err := past.World(ctx, p, m.Version)
	if err != nil {
		return servedSets{}, err
	}
	return servedTo(w, proxy), nil
}

// diffSets are the resources of a type that differ, sorted by name.
func diffSets(t ident.ResourceType, a, b *xds.Set) (changes []objectChange) {
	i, j := 0, 0
	for i < len(a.Resources) || j < len(b.Resources) {
		switch {
		case j == len(b.Resources) || i < len(a.Resources) && a.Resources[i].Name < b.Resources[j].Name:
			changes = append(changes, diffResource(t, a.Resources[i], nil))
			i++
		case i == len(a.Resources) || b.Resources[j].Name < a.Resources[i].Name:
			changes = append(changes, diffResource(t, nil, b.Resources[j]))
			j++
		default:
			if !a.Resources[i].Same(b.Resources[j]) {
				changes = append(changes, diffResource(t, a.Resources[i], b.Resources[j]))
			}
			i, j = i+1, j+1
		}
	}
	return changes
}

// diffResource is a resource that differs; nil: it is not there.
func diffResource(t ident.ResourceType, before, after *xds.Resource) objectChange {
	of := before
	if of == nil {
		of = after
	}
	c := objectChange{Object: t.Message() + " " + of.Name}
	var err error
	if before != nil {
		c.Before, err = resourceDocument(t, before)
	}
	if after != nil && err == nil {
		c.After, err = resourceDocument(t, after)
	}
	switch {
	case before == nil:
		c.Change = "added"
	case after == nil:
		c.Change = "removed"
	default:
		c.Change = "changed"
	}
	if err != nil {
		c.Before, c.After, c.Unreadable = nil, nil, err.Error()
		return c
	}
	if c.Change == "changed" {
		c.Fields = viewFields(past.DiffDocuments("", c.Before, c.After))
		c.Before, c.After = nil, nil
	}
	return c
}
