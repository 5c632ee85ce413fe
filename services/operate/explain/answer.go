package explain

import (
	"context"

	"meshlog.dev/proto/ident"
	"meshlog.dev/services/mesh/proxy"
	"meshlog.dev/services/mesh/why"
	"meshlog.dev/services/mesh/world"
	"meshlog.dev/services/operate/command"
	"meshlog.dev/services/operate/past"
)

// WhyAt says why a proxy has a resource at a moment: TYPE/NAME as `meshlog why` takes it. field
// may be empty.
func WhyAt(ctx context.Context, p *past.Past, m command.Moment, of *proxy.Proxy, resource, field string) (*Answer, error) {
	t, name, err := resourceOf(resource)
	if err != nil {
		return nil, err
	}
	g := &ground{past: p, moment: m, proxy: of, covers: map[ident.Key]string{}, overlays: map[string]world.Overlay{}}
	if g.rows, err = m.Content(ctx, p); err != nil {
		return nil, err
	}
	g.problems = command.Diagnostics(m.Manifest.GetDiagnostics(), "")
	if err := g.flatten(); err != nil {
		return nil, err
	}
	return g.why(ctx, why.Question{World: g.world, Proxy: of, Type: t, Resource: name, Field: field})
}

// ResourceWord returns the word of `meshlog why` for a type of resources; empty: it explains
// none of them.
func ResourceWord(t ident.ResourceType) string {
	for word, of := range types {
		if of == t {
			return word
		}
	}
	return ""
}

// By says what set the field, in lines.
func (f *fieldView) By() []string { return f.by() }
