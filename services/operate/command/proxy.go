package command

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"strings"
	"sync"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	"golang.org/x/sync/errgroup"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoregistry"
	"sigs.k8s.io/yaml"

	"meshlog.dev/proto/ident"
	reportv1 "meshlog.dev/proto/meshlog/report/v1"
	"meshlog.dev/services/builder/ledger"
	"meshlog.dev/services/internal/bus"
	"meshlog.dev/services/mesh/anytype"
	"meshlog.dev/services/mesh/index"
	"meshlog.dev/services/mesh/proxy"
	"meshlog.dev/services/mesh/xds"
	"meshlog.dev/services/nearest"
	"meshlog.dev/services/operate/past"
	"meshlog.dev/store"
)

// ProxyQuery names a proxy: by the id of one that is connected, or by a file
// with its node.
type ProxyQuery struct {
	ID   string
	File string
}

// Find returns the proxy of the file or, as a frontend reports it, of the id.
func (q *ProxyQuery) Find(ctx context.Context, t *Target, p *past.Past) (*proxy.Proxy, error) {
	if q.File != "" {
		node, err := readNode(q.File, q.ID)
		if err != nil {
			return nil, err
		}
		return proxy.New(node)
	}
	if p.Nodes != nil {
		return q.archived(ctx, p)
	}
	replies, _, err := q.Ask(ctx, t, p)
	if err != nil {
		return nil, err
	}
	return ProxyOf(replies[0])
}

// archived returns the proxy of the id from an archive.
func (q *ProxyQuery) archived(ctx context.Context, p *past.Past) (*proxy.Proxy, error) {
	nodes, err := p.Nodes(ctx)
	if errors.Is(err, past.ErrNoNodes) {
		return nil, NotFound("proxy %q: %w; give --node FILE with its bootstrap", q.ID, err)
	}
	if err != nil {
		return nil, err
	}
	names := make([]string, len(nodes))
	for i, r := range nodes {
		if names[i] = r.GetReport().GetId(); names[i] == q.ID {
			return ProxyOf(r)
		}
	}
	advice := "no proxy was connected when it was written"
	if near, ok := nearest.Name(q.ID, names); ok {
		advice = "did you mean " + near + "?"
	} else if len(names) > 0 {
		advice = "it holds " + Some(names)
	}
	return nil, NotFound("proxy %q: was not connected when %s was written: %s; --node FILE takes its bootstrap", q.ID, p.Name, advice)
}

// Nodes returns the proxies that are connected, each once for each of its streams, without their
// resources.
func (t *Target) Nodes(ctx context.Context) ([]*reportv1.ProxyReply, error) {
	fleet, err := t.Fleet()
	if err != nil {
		return nil, err
	}
	reports, err := t.Reports(ctx, bus.Proxies)
	if err != nil {
		return nil, err
	}
	var all []*reportv1.ProxyReply
	var mu sync.Mutex
	g, ctx := errgroup.WithContext(ctx)
	g.SetLimit(askedAtOnce)
	for _, f := range reports.Frontends {
		for _, p := range f.GetProxies() {
			g.Go(func() error {
				replies, err := fleet.Proxy(ctx, p.GetId(), []string{f.GetFrontend()})
				mu.Lock()
				defer mu.Unlock()
				for _, r := range replies {
					r.Types = nil
					all = append(all, r)
				}
				return err
			})
		}
	}
	return all, g.Wait()
}

// askedAtOnce is how many proxies Nodes asks for at a time.
const askedAtOnce = 4

// ProxyOf returns the proxy that a frontend describes.
func ProxyOf(r *reportv1.ProxyReply) (*proxy.Proxy, error) {
	node := new(corev3.Node)
	if err := proto.Unmarshal(r.GetNode(), node); err != nil {
		return nil, fmt.Errorf("node of %s: %w", r.GetReport().GetId(), err)
	}
	p, err := proxy.New(node)
	if err == nil {
		p.Delta = r.GetReport().GetDelta() // quarantines depend on it
	}
	return p, err
}

// Ask asks all frontends for the proxy, and returns the build of each frontend.
func (q *ProxyQuery) Ask(ctx context.Context, t *Target, p *past.Past) ([]*reportv1.ProxyReply, map[string]string, error) {
	if !p.Live {
		return nil, nil, Usage("%s: no proxy is connected there; give --node FILE with its bootstrap", p.Name)
	}
	fleet, frontends, builds, err := t.Frontends(ctx)
	if err != nil {
		return nil, nil, err
	}
	replies, err := fleet.Proxy(ctx, q.ID, frontends)
	if err == nil && len(replies) == 0 {
		err = NotConnected(q.ID, frontends)
	}
	return replies, builds, err
}

// Frontends returns the frontends that answer, and the build of each. No frontend is an
// error.
func (t *Target) Frontends(ctx context.Context) (fleet *bus.Fleet, ids []string, builds map[string]string, err error) {
	if fleet, err = t.Fleet(); err != nil {
		return nil, nil, nil, err
	}
	reports, err := fleet.Reports(ctx, bus.Summary)
	if err != nil {
		return nil, nil, nil, err
	}
	t.WarnSilent(reports)
	builds = map[string]string{}
	for _, f := range reports.Frontends {
		ids = append(ids, f.GetFrontend())
		builds[f.GetFrontend()] = f.GetBuild()
	}
	if len(ids) == 0 {
		return nil, nil, nil, ErrNoFrontend
	}
	return fleet, ids, builds, nil
}

// NotConnected returns the error for a proxy that no frontend serves.
func NotConnected(id string, frontends []string) error {
	return NotFound("proxy %q: not connected to any frontend (%s); `meshlog proxy-status` lists the proxies that are", id, strings.Join(frontends, ", "))
}

// Served holds the resources that a frontend would serve to a proxy.
type Served struct {
	Sets        [ident.ResourceTypes]*xds.Set
	Quarantined [ident.ResourceTypes][]string // names that are replaced or left out
	TrustDomain string                        // of the mesh
}

// ServedTo makes the resources that a frontend would serve to a proxy at a version.
func ServedTo(ctx context.Context, p *past.Past, at ident.Position, to *proxy.Proxy) (s Served, err error) {
	content, err := past.At(ctx, p, at)
	if err != nil {
		return s, err
	}
	return ServedOf(content.Snapshot, to)
}

// ServedOf makes the resources that a frontend would serve to a proxy of a content.
func ServedOf(content *store.Snapshot, to *proxy.Proxy) (s Served, err error) {
	w, err := ledger.World(content)
	if err != nil {
		return s, err
	}
	pc := index.NewPushContext(w)
	catalog, class := xds.NewCatalog(pc), index.Classify(pc, to)
	s.TrustDomain = pc.Read().TrustDomains()[0]
	for t := range ident.ResourceTypes {
		made := catalog.Set(class.Only(t), t)
		s.Sets[t], s.Quarantined[t] = catalog.Replace(t, made, pc.Replacements(t, class.Release(t)))
	}
	return s, nil
}

// Resource decodes a resource, and prints it as Envoy's config dump does.
func Resource(t ident.ResourceType, r *xds.Resource) (proto.Message, json.RawMessage, error) {
	m, err := decode(t, r)
	var b []byte
	if err == nil {
		b, err = printed(m)
	}
	if err != nil {
		return nil, nil, fmt.Errorf("%s %s: %w", t.Message(), r.Name, err)
	}
	return m, b, nil
}

func decode(t ident.ResourceType, r *xds.Resource) (proto.Message, error) {
	of, err := protoregistry.GlobalTypes.FindMessageByURL(t.URL())
	if err != nil {
		return nil, err
	}
	m := of.New().Interface()
	return m, proto.Unmarshal(r.Value(), m)
}

func printed(m proto.Message) ([]byte, error) {
	return protojson.MarshalOptions{UseProtoNames: true, Resolver: anytype.Types}.Marshal(m)
}

// documentsOf prints two messages; nil: one of them cannot be printed. With trim, virtual hosts
// that are the same are left out, first of them at the beginning.
func documentsOf(a, b proto.Message, trim bool) (docs [2]json.RawMessage, first int) {
	if trim {
		a, b, first = trimmed(a, b)
	}
	for i, m := range []proto.Message{a, b} {
		if text, err := printed(m); err == nil {
			docs[i] = text
		}
	}
	return docs, first
}

// CompareResources returns the change from before to after, and their messages; nil: there
// is none, or this build cannot read it.
func CompareResources(t ident.ResourceType, before, after *xds.Resource) (past.ObjectChange, [2]proto.Message) {
	var messages [2]proto.Message
	var errs [2]error
	for i, r := range []*xds.Resource{before, after} {
		if r != nil {
			messages[i], errs[i] = decode(t, r)
		}
	}
	c := past.ObjectChange{Object: t.Message() + " " + cmp.Or(before, after).Name}
	if before != nil && after != nil && errs[0] == nil && errs[1] == nil {
		docs, first := documentsOf(messages[0], messages[1], true)
		if docs[0] != nil && docs[1] != nil {
			c.Compare("", docs[0], docs[1], nil)
			shifted(c.Fields, first)
			return c, messages
		}
	}
	var docs [2]json.RawMessage
	for i, r := range []*xds.Resource{before, after} {
		if r == nil {
			continue
		}
		if messages[i], docs[i], errs[i] = Resource(t, r); errs[i] != nil {
			docs[i] = json.RawMessage("null")
		}
	}
	c.Compare("", docs[0], docs[1], cmp.Or(errs[0], errs[1]))
	return c, messages
}

// readNode reads a file with Envoy's bootstrap, whose field "node" it takes, or
// with the node itself; YAML or JSON. An id that is not empty replaces the
// node's.
func readNode(file, id string) (*corev3.Node, error) {
	b, err := os.ReadFile(file)
	if err != nil {
		return nil, Usage("--node: %w", err)
	}
	node, err := parseNode(b)
	if err != nil {
		return nil, Usage("--node %s: %w", file, err)
	}
	if id != "" {
		node.Id = id
	}
	if node.GetId() == "" {
		return nil, Usage("--node %s: it has no id; give the id of the proxy before the flags, as --service-node gives it to Envoy", file)
	}
	return node, nil
}

func parseNode(b []byte) (*corev3.Node, error) {
	j, err := yaml.YAMLToJSON(b)
	if err != nil {
		return nil, err
	}
	var bootstrap struct {
		Node json.RawMessage `json:"node"`
	}
	if err := json.Unmarshal(j, &bootstrap); err != nil {
		return nil, fmt.Errorf("is neither Envoy's bootstrap nor a node: %w", err)
	}
	if bootstrap.Node != nil {
		j = bootstrap.Node
	}
	node := new(corev3.Node)
	if err := (protojson.UnmarshalOptions{DiscardUnknown: bootstrap.Node != nil}).Unmarshal(j, node); err != nil {
		return nil, fmt.Errorf("is neither Envoy's bootstrap with a node nor a node: %w", err)
	}
	return node, nil
}
