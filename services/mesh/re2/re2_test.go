package re2_test

import (
	"regexp"
	"strings"
	"testing"

	"meshlog.dev/services/mesh/re2"
)

// locales is an expression as an Istio user wrote it: Istio's Envoys take it, stock
// ones do not.
const locales = `^/(en-US|en-GB|de-DE|de-AT|de-CH|fr-FR|fr-BE|fr-CH|it-IT|it-CH|es-ES|es-MX|pt-PT|pt-BR|nl-NL|nl-BE|sv-SE|da-DK|nb-NO|fi-FI|pl-PL|cs-CZ|sk-SK|hu-HU|ro-RO|bg-BG|el-GR|tr-TR|ru-RU|uk-UA)/shop/[^/]+$`

// suite/envoytest compares the sizes of many expressions with those that a real
// Envoy finds.
func TestSize(t *testing.T) {
	for _, c := range []struct {
		expr string
		fits bool
	}{
		{"/shop/.*", true},
		{"", true},
		{locales, false},
		{"(?:[a-z]{10}){11}", false},
		{"(", false},
	} {
		n, err := re2.Size(c.expr)
		if got := re2.Fits(c.expr, re2.Stock); got != c.fits {
			t.Errorf("%q: %d (%v) fits: %t", c.expr, n, err, got)
		}
		if err == nil && !re2.Fits(c.expr, re2.Raised) {
			t.Errorf("%q: %d does not fit a raised limit", c.expr, n)
		}
	}
}

// A wider expression fits, and matches all that the expression matches.
func TestWiden(t *testing.T) {
	for _, c := range []struct {
		expr, matches, not string // not: what even the wider expression does not match
	}{
		{locales, "/de-CH/shop/x", "/de-CH/basket"},
		{"/x/(?:" + strings.Repeat("abc|def|", 40) + "z)", "/x/abc", "/y/abc"},
		{"(?:[a-z]{10}){11}", strings.Repeat("abcdefghij", 11), ""},
		{"(?i)" + strings.Repeat("a[bc]", 60), strings.Repeat("ab", 60), ""},
		{"/(?:" + strings.Repeat("é|ß|", 60) + "z)/x", "/ß/x", "/ß/y"},
		{strings.Repeat("x", 9000), strings.Repeat("x", 9000), ""},
	} {
		wide := re2.Widen(c.expr, re2.Stock)
		if !re2.Fits(wide, re2.Stock) {
			t.Errorf("%.80q is widened to %.80q, which does not fit", c.expr, wide)
		}
		full := regexp.MustCompile("^(?:" + wide + ")$")
		if !full.MatchString(c.matches) {
			t.Errorf("%.80q is widened to %.80q, which does not match %q", c.expr, wide, c.matches)
		}
		if c.not != "" && full.MatchString(c.not) {
			t.Errorf("%.80q is widened to %.80q, which matches %q", c.expr, wide, c.not)
		}
	}
	if wide := re2.Widen("/a.*", re2.Stock); wide != "/a.*" {
		t.Errorf("an expression that fits is widened to %q", wide)
	}
}
