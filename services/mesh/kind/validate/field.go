package validate

import (
	"fmt"
	"math"
	"net/netip"
	"path"
	"regexp/syntax"
	"slices"
	"strings"
	"time"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"

	registryv1 "meshlog.dev/proto/meshlog/registry/v1"
	"meshlog.dev/services/mesh/problem"
	"meshlog.dev/services/mesh/re2"
)

const (
	unixPrefix = "unix://"
	maxHost    = 255

	useName   = "use letters, digits and -"
	useRE2    = "write it in RE2 syntax, which has no look-around and no back references"
	keepOne   = "keep one of them"
	leaveOne  = "leave one of them"
	isEmpty   = "is empty"
	isMissing = "is missing"
	isTwice   = "%q is there twice"

	usePort  = "use a port from 1 to 65535"
	isNoPort = "%d is not a port"

	weightsOf100 = "give weights whose sum is 100"
	weightsAddUp = "the weights add up to %d"

	notWithFiles     = "does not go with certificates in files"
	useMutual        = "remove the certificates, or use mode MUTUAL"
	meshCertificates = "mode ISTIO_MUTUAL takes the certificates of the mesh"
)

// isName reports whether s is a name of at most that many letters, digits and
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

func isNamespace(s string) bool { return isHostLabel(s) && strings.ToLower(s) == s }

// IsLabel reports whether key and value can be a label of Kubernetes.
func IsLabel(key, value string) bool {
	if prefix, name, ok := strings.Cut(key, "/"); ok {
		if !isName(prefix, "-.", 253) {
			return false
		}
		key = name
	}
	return isName(key, "-_.", 63) && (value == "" || isName(value, "-_.", 63))
}

// isHeader reports whether s is a token as HTTP defines it.
func isHeader(s string) bool {
	const token = "-!#$%&'*+.^_`|~0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ"
	return s != "" && strings.Trim(s, token) == ""
}

// isHost reports whether s is a DNS name; if wildcard is true, its first label
// may be a star or begin with one.
func isHost(s string, wildcard bool) bool {
	s = strings.TrimSuffix(s, ".")
	if len(s) > maxHost {
		return false
	}
	if wildcard && isWildcard(s) {
		star, rest, more := strings.Cut(s, ".")
		if star != "*" && !isHostLabel(strings.TrimPrefix(star[1:], "-")) {
			return false
		}
		if !more {
			return true
		}
		s = rest
	}
	last := ""
	for last = range strings.SplitSeq(s, ".") {
		if !isHostLabel(last) {
			return false
		}
	}
	return strings.Trim(last, "0123456789") != "" // otherwise s is an address
}

func isWildcard(host string) bool { return strings.HasPrefix(host, "*") }

// isIP allocates for other strings: ask isHost first.
func isIP(s string) bool {
	_, err := netip.ParseAddr(s)
	return err == nil
}

func (c *checker) host(p *fieldPath, s string, wildcard bool) {
	switch {
	case s == "":
		c.errorf(p, "write the host's name", isEmpty)
	case isHost(s, wildcard):
	case wildcard:
		c.errorf(p, "write a name like reviews.prod.svc.cluster.local, or *.example.com", "%q is not a host name", s)
	default:
		c.errorf(p, "write a name like reviews.prod.svc.cluster.local", "%q is not a host name", s)
	}
}

// hostOrIP checks a host name or an IP address.
func (c *checker) hostOrIP(p *fieldPath, s string, wildcard bool) {
	if !isHost(s, wildcard) && !isIP(s) {
		c.host(p, s, wildcard)
	}
}

func (c *checker) ip(p *fieldPath, s string) {
	c.errorIf(!isIP(s), p, "write an IPv4 or IPv6 address", "%q is not an IP address", s)
}

// subnet checks an IP address or a CIDR block.
func (c *checker) subnet(p *fieldPath, s string) {
	ok := false
	if strings.Contains(s, "/") {
		_, err := netip.ParsePrefix(s)
		ok = err == nil
	} else {
		ok = isIP(s)
	}
	c.errorIf(!ok, p, "write an address, or a block like 10.0.0.0/8", "%q is neither an IP address nor a CIDR block", s)
}

// unix checks an address that begins with unix://.
func (c *checker) unix(p *fieldPath, s string) {
	socket := strings.TrimPrefix(s, unixPrefix)
	abstract := strings.HasPrefix(socket, "@") && len(socket) > 1
	c.errorIf(!abstract && (!path.IsAbs(socket) || strings.HasSuffix(socket, "/")), p,
		"write unix:///path/to/socket, or unix://@name", "%q names no socket", s)
}

func (c *checker) port(p *fieldPath, n uint32) {
	if n < 1 || n > math.MaxUint16 {
		c.errorf(p, usePort, isNoPort, n)
	}
}

// optionalPort checks a port that may be left out.
func (c *checker) optionalPort(p *fieldPath, n uint32) {
	if n != 0 {
		c.port(p, n)
	}
}

// longest is the longest duration that Envoy takes, 292 years: it counts in
// nanoseconds.
const longest = math.MaxInt64 / int64(time.Second)

// atLeast checks a duration, if there is one. As in Istio it has whole
// milliseconds, in which Envoy counts.
func (c *checker) atLeast(p *fieldPath, d *durationpb.Duration, least time.Duration) {
	if d == nil {
		return
	}
	switch err := d.CheckValid(); {
	case err != nil:
		c.errorf(p, "write it like 1.5s", "%v", err)
	case d.GetSeconds() >= longest:
		c.errorf(p, "use less than 292 years", "%d seconds are more than Envoy takes", d.GetSeconds())
	case d.AsDuration() < least:
		c.errorf(p, fmt.Sprintf("use %s or more", least), "%s is too short", d.AsDuration())
	case d.AsDuration()%time.Millisecond != 0:
		c.errorf(p, "use whole milliseconds", "%s has a fraction of a millisecond", d.AsDuration())
	}
}

// orZero checks a duration for which 0 means no limit.
func (c *checker) orZero(p *fieldPath, d *durationpb.Duration) {
	if d.GetSeconds() != 0 || d.GetNanos() != 0 {
		c.atLeast(p, d, time.Millisecond)
	}
}

func (c *checker) notNegative(p *fieldPath, n int32) {
	if n < 0 {
		c.errorf(p, "use 0 or more", "%d is negative", n)
	}
}

// percent checks a percentage; NaN is none.
func (c *checker) percent(p *fieldPath, v float64) {
	if !(v >= 0 && v <= 100) {
		c.errorf(p, "use 0 to 100", "%v is not a percentage", v)
	}
}

// re2 checks a regular expression in Envoy's syntax.
func (c *checker) re2(p *fieldPath, expr string) {
	if expr == "" {
		c.errorf(p, "write an expression", isEmpty)
	} else if _, err := syntax.Parse(expr, syntax.Perl); err != nil {
		c.errorf(p, useRE2, "%v", err)
	} else {
		c.regexSize(p, expr)
	}
}

// regexSize reports an expression that is larger than some Envoys take, or all.
func (c *checker) regexSize(p *fieldPath, expr string) {
	switch size, err := re2.Size(expr); {
	case err != nil: // no expression at all, which is reported elsewhere
	case size > re2.Raised:
		c.errorf(p, "write a shorter expression", "is a program of more than %d instructions for RE2, which Envoys refuse", re2.Raised)
	case size > re2.Stock:
		c.largeRegex(p, size, "set the runtime value and metadata RE2_MAX_PROGRAM_SIZE in the bootstraps, as deploy/envoy does",
			"Envoys without that answer with 503 what the expression might match")
	}
}

func (c *checker) largeRegex(p *fieldPath, size int, or, effect string) {
	c.problems = append(c.problems, problem.Diagnostic{
		Severity: problem.Warning, Code: "large-regex", Field: p.String(),
		Reason: fmt.Sprintf("is a program of %d instructions for RE2; an Envoy takes %d if its bootstrap does not set re2.max_program_size.error_level", size, re2.Stock),
		Advice: "write a shorter expression, or " + or, Effect: effect,
	})
}

func (c *checker) labels(p *fieldPath, labels map[string]string) {
	for k, v := range labels {
		c.errorIf(!IsLabel(k, v), p.entry(k), "use letters, digits, - _ and ., at most 63", "%q: %q is not a label", k, v)
	}
}

func (c *checker) header(p *fieldPath, name string) {
	c.errorIf(!isHeader(name), p, useName, "%q is not a header name", name)
	c.tooLong(p, name, maxHeader)
}

// The most bytes that Envoy takes.
const (
	maxHeader    = 16384 // of a header's name or value
	maxParameter = 1024  // of a query parameter's name
)

// oneLine checks a text that Envoy puts into a header.
func (c *checker) oneLine(p *fieldPath, s string) {
	c.errorIf(strings.ContainsAny(s, "\x00\r\n"), p, "write it on one line", "%q has a line break or a NUL in it", s)
	c.tooLong(p, s, maxHeader)
}

func (c *checker) tooLong(p *fieldPath, s string, most int) {
	if len(s) > most {
		c.errorf(p, fmt.Sprintf("use %d bytes at most", most), "has %d bytes", len(s))
	}
}

func (c *checker) namespace(p *fieldPath, s string) {
	c.errorIf(!isNamespace(s), p, "use lower case letters, digits and -", "%q is not a namespace name", s)
}

// OwnNamespaceTwice reports an error if m, an object of that namespace, is
// exported to it by name and as "." too: Istio refuses that as it refuses any
// name that is there twice.
func OwnNamespaceTwice(namespace string, m proto.Message) (d problem.Diagnostic, is bool) {
	exported, ok := m.(interface{ GetExportTo() []string })
	if !ok || namespace == "" {
		return problem.Diagnostic{}, false
	}
	i := slices.Index(exported.GetExportTo(), namespace)
	if i < 0 || !slices.Contains(exported.GetExportTo(), ".") {
		return problem.Diagnostic{}, false
	}
	at := root.field("exportTo")
	if _, isService := m.(*registryv1.Service); isService {
		at = serviceExportTo
	}
	c := checker{}
	c.errorf(at.item(i), leaveOne, "%q is the object's own namespace, which \".\" names too", namespace)
	return c.problems[0], true
}

// exportTo checks the namespaces that may see an object (VIS-1).
func (c *checker) exportTo(p *fieldPath, to []string) {
	for i, s := range to {
		at := p.item(i)
		switch {
		case slices.Contains(to[:i], s):
			c.errorf(at, leaveOne, isTwice, s)
		case s == "*" || s == "~":
			c.errorIf(len(to) > 1, at, "let it stand alone, or leave it out", "%q goes with nothing else", s)
		case s != ".":
			c.namespace(at, s)
		}
	}
}
