package envoytest_test

import (
	"bytes"
	"context"
	"fmt"
	"math/rand/v2"
	"os/exec"
	"regexp"
	"regexp/syntax"
	"strconv"
	"strings"
	"testing"
	"time"

	bootstrapv3 "github.com/envoyproxy/go-control-plane/envoy/config/bootstrap/v3"
	routev3 "github.com/envoyproxy/go-control-plane/envoy/config/route/v3"
	matcherv3 "github.com/envoyproxy/go-control-plane/envoy/type/matcher/v3"
	"google.golang.org/protobuf/types/known/structpb"

	"meshlog.dev/services/mesh/re2"
	"meshlog.dev/services/suite/envoytest"
)

// measured finds what a real Envoy logs about the size of an expression.
var measured = regexp.MustCompile(`regex '(?s:(.*?))' RE2 program size of (\d+) > max program size`)

// sizes returns the sizes that a real Envoy finds. The expressions have no line
// breaks.
func sizes(t *testing.T, exprs []string) map[string]int {
	t.Helper()
	routes := &routev3.RouteConfiguration{Name: "r", VirtualHosts: []*routev3.VirtualHost{{Name: "v", Domains: []string{"*"}}}}
	for _, e := range exprs {
		routes.VirtualHosts[0].Routes = append(routes.VirtualHosts[0].Routes, &routev3.Route{
			Match:  &routev3.RouteMatch{PathSpecifier: &routev3.RouteMatch_SafeRegex{SafeRegex: &matcherv3.RegexMatcher{Regex: e}}},
			Action: &routev3.Route_DirectResponse{DirectResponse: &routev3.DirectResponseAction{Status: 200}},
		})
	}
	b := envoytest.Config{Routes: []*routev3.RouteConfiguration{routes}}.Bootstrap(t)
	levels, err := structpb.NewStruct(map[string]any{"re2.max_program_size.error_level": 1e9, "re2.max_program_size.warn_level": 0})
	if err != nil {
		t.Fatal(err)
	}
	b.LayeredRuntime = &bootstrapv3.LayeredRuntime{Layers: []*bootstrapv3.RuntimeLayer{{
		Name: "sizes", LayerSpecifier: &bootstrapv3.RuntimeLayer_StaticLayer{StaticLayer: levels},
	}}}
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	out, err := exec.CommandContext(ctx, envoytest.Envoy(t), "--mode", "validate", "-l", "warning", "-c", envoytest.Write(t, t.TempDir(), b)).CombinedOutput()
	if err != nil {
		t.Fatalf("%v: ...%s", err, out[max(0, len(out)-2000):])
	}
	found := map[string]int{}
	for line := range bytes.Lines(out) {
		if m := measured.FindSubmatch(line); m != nil {
			n, err := strconv.Atoi(string(m[2]))
			if err != nil {
				t.Fatal(err)
			}
			found[string(m[1])] = n
		}
	}
	return found
}

// writer writes random expressions as people write them in routes: paths, lists of
// words, classes, repetitions.
type writer struct{ *rand.Rand }

func (w writer) pick(all ...string) string { return all[w.IntN(len(all))] }

func (w writer) word() string {
	var b strings.Builder
	for range 1 + w.IntN(8) {
		b.WriteByte("abcdefghijklmnopqrstuvwxyzABC0123456789-_"[w.IntN(41)])
	}
	return b.String()
}

func (w writer) class() string {
	return w.pick(".", "[a-z]", "[A-Za-z0-9]", "[^/]", "[^a-z/]", `\d`, `\w`, `\s`, `\D`, `\W`, "[a-zA-Z0-9_-]", "[é-ü]", "[^é]", "[α-ω]", "[[:alpha:]]", "[0-9a-fA-F]", "[一-龥]", "[k-s]")
}

func (w writer) atom(depth int) string {
	switch n := w.IntN(10); {
	case n < 4:
		return regexp.QuoteMeta(w.pick("/", "/", ".", "-", "") + w.word())
	case n < 6:
		return w.class()
	case n < 7 && depth > 0:
		return w.pick("(", "(?:", "(?:", "(?i:") + w.expr(depth-1) + ")"
	case n < 9 && depth > 0:
		var words []string
		for range 2 + w.IntN(24) {
			words = append(words, w.pick(w.word(), w.word(), w.pick("en", "de", "fr")+"-"+strings.ToUpper(w.word()), w.class()))
		}
		return w.pick("(", "(?:") + strings.Join(words, "|") + ")"
	default:
		return w.pick(`\.`, "ä", "日本", "x", `\b`, "/", "")
	}
}

func (w writer) expr(depth int) string {
	var b strings.Builder
	for range 1 + w.IntN(5) {
		a := w.atom(depth)
		if w.IntN(3) == 0 && a != "" && a != `\b` {
			a = "(?:" + a + ")" + w.pick("*", "+", "?", "{2}", "{1,3}", "{2,}", "*?", "+?", "{8}", "{0,4}")
		}
		b.WriteString(a)
	}
	return b.String()
}

func (w writer) regex() string {
	e := w.expr(3)
	if w.IntN(4) == 0 {
		e += "|" + w.expr(2)
	}
	return w.pick("", "", "^", "^", "(?i)", "^/"+w.word()) + e + w.pick("", "", "$", ".*")
}

// The size that is computed is never less than the one that a real Envoy finds, so
// no Envoy is sent an expression that it refuses, and it is rarely more (section 5,
// item 1).
func TestRegexSizes(t *testing.T) {
	w := writer{rand.New(rand.NewPCG(13, 5))}
	var exprs []string
	seen := map[string]bool{}
	for len(exprs) < 10_000 {
		e := w.regex()
		if _, err := syntax.Parse(e, syntax.Perl); err != nil || e == "" || seen[e] || len(e) > 2000 {
			continue
		}
		if n, err := re2.Size(e); err != nil || n > re2.Raised {
			continue
		}
		seen[e] = true
		exprs = append(exprs, e)
	}
	is := sizes(t, exprs)
	var wide []string
	for _, e := range exprs {
		if len(wide) < 50 && is[e] > re2.Stock {
			wide = append(wide, re2.Widen(e, re2.Stock))
		}
	}
	for e, n := range sizes(t, wide) {
		if n > re2.Stock {
			t.Errorf("the widened expression %q has %d", e, n)
		}
	}
	var exact, more, refused, falseAlarms, below int
	for _, e := range exprs {
		envoy, ok := is[e]
		if !ok {
			t.Errorf("Envoy says nothing of %q", e)
			continue
		}
		n, err := re2.Size(e)
		if err != nil {
			t.Fatal(err)
		}
		switch {
		case n < envoy:
			if below++; below < 20 {
				t.Errorf("%q: computed %d, Envoy has %d", e, n, envoy)
			}
		case n == envoy:
			exact++
		default:
			more++
			if testing.Verbose() && more < 20 {
				t.Logf("%q: computed %d, Envoy has %d", e, n, envoy)
			}
		}
		if envoy > re2.Stock {
			refused++
		} else if n > re2.Stock {
			falseAlarms++
		}
	}
	text := fmt.Sprintf("of %d expressions %d are exact, %d computed larger, %d smaller; a stock Envoy refuses %d, and %d more count as refused", len(exprs), exact, more, below, refused, falseAlarms)
	t.Log(text)
	if falseAlarms*20 > len(exprs)-refused || refused < 1000 {
		t.Error(text)
	}
}
