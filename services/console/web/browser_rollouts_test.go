//go:build console

package web_test

import (
	"strings"
	"testing"

	"github.com/chromedp/chromedp"
	"github.com/chromedp/chromedp/kb"
)

// An operator without a mouse promotes a rollout to its second step, and stops it there.
func testRolloutsInBrowser(t *testing.T) {
	m, id := staged(t)
	b := m.browser()
	b.accessible("", "/rollouts")
	b.open("/rollouts", 1200, false)
	b.tab(`#main a[href="/act/promote?id=` + id + `"]`)
	b.do(chromedp.KeyEvent(kb.Enter), chromedp.WaitReady(chromedp.CSS(".confirm")))
	if text := b.text(`document.querySelector("#main").innerText`); !strings.Contains(text, "1 object changes for the proxies that step 2 adds") || !strings.Contains(text, "weight: 70 -> 50") {
		b.Errorf("the page to promote shows\n%s", text)
	}
	b.tab(".confirm button")
	b.do(chromedp.KeyEvent(kb.Enter), chromedp.WaitReady(chromedp.CSS(".notice.good")))
	b.acted("promotion", "")
	m.until("/rollouts", "step 2 began and reached 90% of all")
	b.accessible("rollouts", "/rollouts")
	b.accessible("", "/act/promote?id="+id)

	b.open("/rollouts", 1200, false)
	b.tab(`#main a[href^="/act/abort"]`)
	b.do(chromedp.KeyEvent(kb.Enter), chromedp.WaitReady(chromedp.CSS("#reason")))
	b.tab("#reason")
	b.do(chromedp.KeyEvent("errors in the canary"), chromedp.KeyEvent(kb.Enter), chromedp.WaitReady(chromedp.CSS(".notice.good")))
	b.acted("stop", "errors in the canary")
	m.until("/rollouts", "Stopped by alice")
	b.accessible("", "/rollouts")
	for _, s := range b.said.take() {
		b.Errorf("the browser complains: %s", s)
	}
}
