package history

import (
	"context"
	"time"

	"meshlog.dev/proto/ident"
	"meshlog.dev/services/mesh/proxy"
	"meshlog.dev/services/operate/command"
	"meshlog.dev/services/operate/past"
	"meshlog.dev/store"
)

// Content is the content of a version, as `meshlog show` reads it. It is immutable.
type Content = content

// Explain adds to each change the record that caused it, in words.
func (v *VersionView) Explain(ctx context.Context, p *past.Past) {
	explain := explainer(ctx, p)
	for i, c := range v.Changes {
		v.Changes[i].Cause = explain(c.Seq)
	}
}

// Objects compares the objects of two moments, those of only.
func Objects(ctx context.Context, p *past.Past, from, to command.Moment, only *command.Objects) (*DiffView, error) {
	v := &DiffView{From: from.Version, To: to.Version, Changes: []causedChange{}}
	return v, v.objects(ctx, p, from, to, only)
}

// Resources compares the xDS resources of a proxy at two moments.
func Resources(ctx context.Context, p *past.Past, from, to command.Moment, of *proxy.Proxy) (*DiffView, error) {
	v := &DiffView{From: from.Version, To: to.Version, Proxy: of.ID, Changes: []causedChange{}}
	return v, v.resources(ctx, p, from, to, of)
}

// Before returns the version before a moment.
func Before(ctx context.Context, p *past.Past, to command.Moment) (command.Moment, error) {
	from, _, err := before(ctx, p, to)
	return from, err
}

// Open reads the content of a moment.
func Open(ctx context.Context, p *past.Past, m command.Moment) (*Content, error) {
	return openContent(ctx, p, m)
}

// Moment returns the moment.
func (c *content) Moment() command.Moment { return c.moment }

// Time returns when the version was published; zero for a position that was not.
func (c *content) Time() time.Time { return command.Stamp(command.PublishedAt(c.moment.Manifest)) }

// Keys returns the keys of the objects, in no order.
func (c *content) Keys() []ident.Key { return c.keys() }

// Over returns the ids of the overlays over an object.
func (c *content) Over(k ident.Key) []string { return c.over[k] }

// Served reports whether the object is served.
func (c *content) Served(k ident.Key) bool { return c.world.Served(k) != nil }

// Rows returns the rows of the content.
func (c *content) Rows() *store.Snapshot { return c.rows }

// Standing returns one object in full.
func (c *content) Standing(ctx context.Context, k ident.Key) (*Standing, error) {
	only := &command.Objects{Kinds: []string{k.Kind}, Names: []string{k.Name}, Sources: []string{k.Source}, Instances: []string{k.Instance}}
	if k.Namespace != "" {
		only.Namespaces = []string{k.Namespace}
	}
	return c.one(ctx, command.Slashed(k), only)
}

// Document returns an object in the form of a configuration file.
func (v *Standing) Document() (string, error) {
	doc := v.Value
	if !v.Served && v.Offered != nil {
		doc = v.Offered
	}
	if doc == nil {
		return "", nil
	}
	b, err := documentYAML(v.Key, doc)
	return string(b), err
}
