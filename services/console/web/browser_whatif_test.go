//go:build console

package web_test

import (
	"strings"

	"github.com/chromedp/chromedp"
	"github.com/chromedp/chromedp/kb"
)

// A person without a mouse pastes an object, and reads what it would do.
func testWhatIfByKeyboard(b *browser) {
	b.accessible("", "/what-if")
	for _, dark := range []bool{true, false} {
		b.open("/what-if", 1200, dark)
		b.tab("#objects")
		b.do(chromedp.KeyEvent(strings.ReplaceAll(route(10, 90), "\n", kb.Enter)))
		b.tab(".draft button")
		b.do(chromedp.KeyEvent(kb.Enter), chromedp.WaitReady(chromedp.CSS("#result")))
		if text := b.text(`document.querySelector("#main").innerText`); !strings.Contains(text, "-> 10") || !strings.Contains(text, "RouteConfiguration 80") {
			b.Errorf("the page shows\n%s", text)
		}
		if v := b.violations(); len(v) > 0 {
			b.Errorf("dark %v: axe-core finds\n%s", dark, strings.Join(v, "\n"))
		}
	}
	b.picture("what-if", false)
	b.do(chromedp.EmulateViewport(390, 900))
	if width := b.text("document.documentElement.scrollWidth"); width != "390" {
		b.Errorf("at 390 pixels the page is %s wide", width)
	}
	if v := b.violations(); len(v) > 0 {
		b.Errorf("at 390 pixels axe-core finds\n%s", strings.Join(v, "\n"))
	}
	for _, s := range b.said.take() {
		b.Errorf("the browser complains: %s", s)
	}
}
