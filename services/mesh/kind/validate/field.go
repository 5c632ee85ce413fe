package validate

import (
	"fmt"
	"maps"
	"math"
	"net/netip"
	"path"
	"regexp/syntax"
	"slices"
	"strconv"
	"strings"
	"time"

	"google.golang.org/protobuf/types/known/durationpb"

	"meshlog.dev/services/mesh/problem"
)

const unixPrefix = "unix://"

const maxHost = 255

// root is where the fields of an object begin.
var root = &fieldPath{name: "spec"}

func (p *fieldPath) field(name string) *fieldPath { return &fieldPath{up: p, name: name} }
func (p *fieldPath) item(i int) *fieldPath        { return &fieldPath{up: p, index: i} }
func (p *fieldPath) entry(key string) *fieldPath  { return &fieldPath{up: p, key: strconv.Quote(key)} }

// at adds what is wrong with a field.
func (c *checker) at(p *fieldPath, advice, reason string, args ...any) {
	c.problems = append(c.problems, problem.Problem{Field: p.String(), Reason: fmt.Sprintf(reason, args...), Advice: advice})
}

// warn adds what is odd about a field; the object counts all the same.
func (c *checker) warn(p *fieldPath, advice, reason string, args ...any) {
	c.problems = append(c.problems, problem.Problem{Field: p.String(), Reason: fmt.Sprintf(reason, args...), Advice: advice, Warning: true})
}

// isName says whether s is a name of at most that many letters, digits and
// characters of inner, which do not stand at its ends.
func isName(s, inner string, most int) bool {
	for i := range len(s) {
		c := s[i]
		alphanumeric := c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z' || c >= '0' && c <= '9'
		if !alphanumeric && (i == 0 || i == len(s)-1 || strings.IndexByte(inner, c) < 0) {
			return false
		}
	}
	return s != "" && len(s) <= most
}

func isHostLabel(s string) bool { return isName(s, "-", 63) }

func isLabel(key, value string) bool {
	if prefix, name, ok := strings.Cut(key, "/"); ok {
		if !isName(prefix, "-.", 253) {
			return false
		}
		key = name
	}
	return isName(key, "-_.", 63) && (value == "" || isName(value, "-_.", 63))
}

// isHost says whether s is a DNS name; with wildcard also one whose first
// label is or begins with a star.
func isHost(s string, wildcard bool) bool {
	s = strings.TrimSuffix(s, ".")
	labels := strings.Split(s, ".")
	if len(s) > maxHost || s == "" {
		return false
	}
	for i, l := range labels {
		if i == 0 && wildcard && isWildcard(l) {
			if l == "*" {
				continue
			}
			l = strings.TrimPrefix(l[1:], "-")
		}
		if !isHostLabel(l) {
			return false
		}
	}
	_, err := strconv.Atoi(labels[len(labels)-1]) // then it is an address
	return err != nil
}

func isWildcard(host string) bool { return strings.HasPrefix(host, "*") }

func isIP(s string) bool {
	_, err := netip.ParseAddr(s)
	return err == nil
}

func (c *checker) host(p *fieldPath, s string, wildcard bool) {
	switch {
	case s == "":
		c.at(p, "write the host's name", "is empty")
	case isHost(s, wildcard):
	case wildcard:
		c.at(p, "write a name like reviews.prod.svc.cluster.local, or *.example.com", "%q is no host name", s)
	default:
		c.at(p, "write a name like reviews.prod.svc.cluster.local", "%q is no host name", s)
	}
}

func (c *checker) ip(p *fieldPath, s string) {
	if !isIP(s) {
		c.at(p, "write an IPv4 or IPv6 address", "%q is no IP address", s)
	}
}

// subnet checks an address or a CIDR block.
func (c *checker) subnet(p *fieldPath, s string) {
	if _, err := netip.ParsePrefix(s); err != nil && !isIP(s) {
		c.at(p, "write an address, or a block like 10.0.0.0/8", "%q is no IP address and no CIDR block", s)
	}
}

// unix checks an address that begins with unix://.
func (c *checker) unix(p *fieldPath, s string) {
	socket := strings.TrimPrefix(s, unixPrefix)
	if abstract := strings.HasPrefix(socket, "@") && len(socket) > 1; !abstract && (!path.IsAbs(socket) || strings.HasSuffix(socket, "/")) {
		c.at(p, "write unix:///path/to/socket, or unix://@name", "%q names no socket", s)
	}
}

func (c *checker) port(p *fieldPath, n uint32) {
	if n < 1 || n > math.MaxUint16 {
		c.at(p, "use a port from 1 to 65535", "%d is no port", n)
	}
}

// atLeast checks a duration that is set.
func (c *checker) atLeast(p *fieldPath, d *durationpb.Duration, least time.Duration) {
	if d == nil {
		return
	}
	if err := d.CheckValid(); err != nil {
		c.at(p, "write it like 1.5s", "%v", err)
	} else if d.AsDuration() < least {
		c.at(p, fmt.Sprintf("use %s or more", least), "%s is too short", d.AsDuration())
	}
}

// orZero checks a duration of which 0 means that there is no limit.
func (c *checker) orZero(p *fieldPath, d *durationpb.Duration) {
	if d.GetSeconds() != 0 || d.GetNanos() != 0 {
		c.atLeast(p, d, time.Millisecond)
	}
}

func (c *checker) notNegative(p *fieldPath, n int32) {
	if n < 0 {
		c.at(p, "use 0 or more", "%d is negative", n)
	}
}

// percent checks a share of 100; NaN is none.
func (c *checker) percent(p *fieldPath, v float64) {
	if !(v >= 0 && v <= 100) {
		c.at(p, "use 0 to 100", "%v is no percentage", v)
	}
}

// re2 checks an expression in the syntax that Envoy uses.
func (c *checker) re2(p *fieldPath, expr string) {
	if expr == "" {
		c.at(p, "write an expression", "is empty")
	} else if _, err := syntax.Parse(expr, syntax.Perl); err != nil {
		c.at(p, "write it in RE2 syntax, which has no look-around and no back references", "%v", err)
	}
}

func (c *checker) labels(p *fieldPath, labels map[string]string) {
	for _, k := range sortedKeys(labels) {
		if v := labels[k]; !isLabel(k, v) {
			c.at(p.entry(k), "use letters, digits, - _ and ., at most 63", "%q: %q is no label", k, v)
		}
	}
}

func (c *checker) namespace(p *fieldPath, s string) {
	if !label.MatchString(s) {
		c.at(p, "use lower case letters, digits and -", "%q is no name of a namespace", s)
	}
}

// exportTo checks who may see an object (VIS-1).
func (c *checker) exportTo(p *fieldPath, to []string) {
	for i, s := range to {
		at := p.item(i)
		switch {
		case slices.Contains(to[:i], s):
			c.at(at, "leave one of them", "%q is there twice", s)
		case s == "*" || s == "~":
			if len(to) > 1 {
				c.at(at, "let it stand alone, or leave it out", "%q goes with nothing else", s)
			}
		case s != ".":
			c.namespace(at, s)
		}
	}
}

func sortedKeys[V any](m map[string]V) []string { return slices.Sorted(maps.Keys(m)) }
