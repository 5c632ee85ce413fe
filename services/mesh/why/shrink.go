package why

import (
	"bytes"
	"fmt"
	"net/netip"
	"slices"
	"strconv"
	"strings"

	"meshlog.dev/services/mesh/proxy"
	"meshlog.dev/services/mesh/world"
)

// bulkKinds are the kinds of which a mesh has many objects, and whose objects say by a host, a
// name or an address what they are about.
var bulkKinds = []string{
	world.ServiceKind, world.EndpointsKind, world.WorkloadKind, "ServiceEntry", "WorkloadEntry", "VirtualService", "DestinationRule", "HTTPRoute", "Secret",
}

// fewObjects is how many objects of a kind are few: all of them are tried.
const fewObjects = 64

// words are texts of which an object has one if it may be about something.
type words struct {
	texts [][]byte
	self  string // the name of the proxy's own workload
}

// mostWords is how many words are looked for: something that is about more of them is about
// the whole mesh.
const mostWords = 200

func (w *words) add(text string) {
	if text == "" || slices.ContainsFunc(w.texts, func(o []byte) bool { return string(o) == text }) {
		return
	}
	w.texts = append(w.texts, []byte(text))
}

// host adds the forms in which objects name a host: in full, its first label, and wildcards.
func (w *words) host(host string) {
	host = strings.ToLower(strings.Trim(host, ".*"))
	if ip, _, ok := strings.Cut(host, "_"); ok { // the name of a listener
		if _, err := netip.ParseAddr(ip); err == nil {
			host = ip
		}
	}
	if _, err := netip.ParseAddr(host); err == nil || !strings.Contains(host, ".") {
		w.add(host)
		return
	}
	label, rest, _ := strings.Cut(host, ".")
	w.add(label) // within its namespace a name suffices
	for rest != "" {
		w.add("*." + rest)
		_, rest, _ = strings.Cut(rest, ".")
	}
	w.add("\x01*") // the host * as a field of a message
}

// text adds the hosts, names and addresses in a text, such as the name of a cluster.
func (w *words) text(s string) {
	for _, token := range strings.FieldsFunc(s, func(r rune) bool { return strings.ContainsRune("|\"[]{}(),:; /~", r) }) {
		if strings.Contains(token, ".") && !isNumber(token) {
			w.host(token)
		}
	}
}

// isNumber reports whether a text is a number, or one of seconds such as 1.5s.
func isNumber(s string) bool {
	_, err := strconv.ParseFloat(strings.TrimSuffix(s, "s"), 64)
	return err == nil
}

// node adds what a proxy says of itself.
func (w *words) node(p *proxy.Proxy) {
	for _, ip := range p.Addresses() {
		w.add(ip.String())
	}
	if parts := strings.Split(p.ID, "~"); len(parts) == 4 {
		w.self, _, _ = strings.Cut(parts[2], ".")
	}
}

// names adds the names of the elements of lists on the way to a field.
func (w *words) names(n *node, field string) {
	for _, s := range steps(field) {
		if n == nil {
			return
		}
		if s[0] != '[' {
			n = n.field(strings.TrimPrefix(s, "."))
			continue
		}
		i, err := strconv.Atoi(strings.Trim(s, "[]"))
		if err != nil || i >= len(n.list) {
			return
		}
		n = n.list[i]
		w.text(n.name())
	}
}

// in reports whether an object has one of the words.
func (w *words) in(o world.Object) bool {
	name := []byte(o.Key.Name)
	return w.self != "" && o.Key.Name == w.self || slices.ContainsFunc(w.texts, func(word []byte) bool {
		return hasWord(name, word) || hasWord(o.Value.Bytes, word)
	})
}

// hasWord reports whether a text, or an encoded message, has a word that is not a part of
// another one: cart is in cart-v2 and in cart.shop, and not in carts. The byte before a string
// of a message is its length, and the one behind it begins the next field.
func hasWord(text, word []byte) bool {
	for {
		at := bytes.Index(text, word)
		if at < 0 {
			return false
		}
		end := at + len(word)
		whole := at > 0 && int(text[at-1]) == len(word)
		before := at == 0 || !isWord(text[at-1]) || !isWord(word[0])
		after := end == len(text) || !isWord(text[end]) || !isWord(word[len(word)-1])
		if whole || before && after {
			return true
		}
		text = text[at+1:]
	}
}

func isWord(c byte) bool { return '0' <= c && c <= '9' || 'a' <= c && c <= 'z' || 'A' <= c && c <= 'Z' }

// about returns a world without the objects of bulk kinds that have none of the words; nil: it
// would be no smaller.
func (w *words) about(all *world.World) (*world.World, error) {
	if len(w.texts) > mostWords {
		return nil, nil
	}
	var rows []world.RowChange
	for _, k := range bulkKinds {
		var others []world.Object
		n := 0
		for o := range all.Objects(k) {
			if n++; !w.in(o) {
				others = append(others, o)
			}
		}
		if n > fewObjects {
			rows = append(rows, removed(others)...)
		}
	}
	if len(rows) == 0 {
		return nil, nil
	}
	small, _, err := all.Apply(world.Change{Rows: rows})
	if err != nil {
		return nil, fmt.Errorf("try a smaller world: %w", err)
	}
	return small, nil
}

// shrink explains in a smaller world, of the objects that name what the field is about, if the
// field is the same there. Each try then costs what few objects cost (WHY-11).
func (e *explainer) shrink(target *node) error {
	var w words
	w.text(e.name)
	w.names(e.base, e.field)
	w.node(e.proxy)
	if target.leaves <= mostWords {
		target.leavesOf("", func(_ string, l *node) { w.text(l.text) })
	}
	small, err := w.about(e.world)
	if err != nil || small == nil {
		return err
	}
	s := newScene(small, e.proxy, e.t)
	base, err := e.docs.of(e.t, s.set.Find(e.name))
	if err != nil || base == nil || compare(e.base, base).touches(e.field) {
		return err
	}
	field, ok := follow(e.base, base, e.field)
	if !ok {
		return nil
	}
	s.docs = e.docs
	e.scene, e.base, e.field = s, base, field
	return nil
}

// follow returns the path of a field of one node in another one that has the same field, but in
// other places of lists.
func follow(from, to *node, field string) (path string, ok bool) {
	for rest := field; rest != ""; rest = strings.TrimPrefix(rest, ".") {
		if rest[0] != '[' {
			name := from.prefix(rest)
			from, to = from.field(name), to.field(name)
			if name == "" || from == nil || to == nil {
				return "", false
			}
			path, rest = join(path, name), rest[len(name):]
			continue
		}
		end := closing(rest)
		i, err := strconv.Atoi(rest[1:end])
		if err != nil || i >= len(from.list) {
			return "", false
		}
		is := from.list[i]
		j := slices.IndexFunc(to.list, func(n *node) bool { return n.hash == is.hash })
		if j < 0 {
			j = slices.IndexFunc(to.list, func(n *node) bool { return n.name() != "" && n.name() == is.name() })
		}
		if j < 0 {
			return "", false
		}
		from, to, path, rest = is, to.list[j], fmt.Sprintf("%s[%d]", path, j), rest[end+1:]
	}
	return path, true
}

// moved returns a path in the whole resource for one that is within the field, or around it, in
// the resource of a smaller world.
func moved(path, from, to string) string {
	if rest, ok := strings.CutPrefix(path, from); ok && within(path, from) {
		return to + rest
	}
	if !within(from, path) {
		return path
	}
	n := len(steps(path))
	return strings.TrimPrefix(strings.Join(steps(to)[:n], ""), ".")
}

// steps splits a path before each field and each index.
func steps(path string) (all []string) {
	depth, start := 0, 0
	for i, c := range path {
		if i > start && depth == 0 && (c == '.' || c == '[') {
			all, start = append(all, path[start:i]), i
		}
		switch c {
		case '[':
			depth++
		case ']':
			depth--
		}
	}
	if start < len(path) {
		all = append(all, path[start:])
	}
	return all
}

// moved puts the paths of an answer back into the whole resource.
func (a *Answer) moved(from string) {
	if from == a.Field {
		return
	}
	for i := range a.Causes {
		c := &a.Causes[i]
		if c.Path = moved(c.Path, from, a.Field); c.Within != "" {
			c.Within = moved(c.Within, from, a.Field)
		}
	}
	for i := range a.Objects {
		for j, f := range a.Objects[i].Fields {
			a.Objects[i].Fields[j] = moved(f, from, a.Field)
		}
	}
}

// shrink asks about a smaller world, of the objects that name the host of the call, if the call
// does the same there.
func (c *caller) shrink() (*caller, error) {
	var w words
	for _, h := range c.hosts {
		w.host(h)
	}
	w.node(c.Proxy)
	for _, line := range c.outcome.Lines() {
		w.text(line)
	}
	small, err := w.about(c.World)
	if err != nil || small == nil {
		return c, err
	}
	q := c.CallQuestion
	q.World = small
	s, err := newCaller(q)
	if err != nil || s.key != c.key || s.end != c.end || !slices.Equal(s.hosts, c.hosts) {
		return c, err
	}
	return s, nil
}
