//go:build console

package web_test

import (
	"strings"
	"testing"

	"github.com/chromedp/chromedp"
	"github.com/chromedp/chromedp/kb"
)

// ink counts the pixels of a chart that a line has drawn, in the color of the page's mark.
const ink = `(function () {
  const rgb = document.createElement("canvas").getContext("2d");
  rgb.fillStyle = getComputedStyle(document.documentElement).getPropertyValue("--mark").trim();
  const want = [1, 3, 5].map(i => parseInt(rgb.fillStyle.substr(i, 2), 16));
  return Array.from(document.querySelectorAll(".chart canvas")).map(function (c) {
    const d = c.getContext("2d").getImageData(0, 0, c.width, c.height).data;
    let n = 0;
    for (let i = 0; i < d.length; i += 4) {
      if (d[i + 3] > 200 && want.every((v, k) => Math.abs(d[i + k] - v) < 8)) { n++; }
    }
    return n > 0;
  }).join(" ");
})()`

// The charts are drawn, in the colors of light and dark and as wide as the page, again when the
// page follows the mesh; and their numbers are in a table that the keyboard opens.
func testCharts(m *mesh, b *browser) {
	for _, dark := range []bool{false, true} {
		b.open("/", 1200, dark)
		b.do(chromedp.WaitReady(chromedp.CSS(".chart canvas")))
		if drawn := b.text(ink); drawn != "true true true true" {
			b.Errorf("dark %v: charts with a line: %s", dark, drawn)
		}
	}
	b.open("/", 390, false)
	if fits := b.text(`Array.from(document.querySelectorAll(".chart canvas")).every(c => c.getBoundingClientRect().right <= 390)`); fits != "true" {
		b.Error("at 390 pixels a chart is wider than the screen")
	}
	if said := b.said.take(); len(said) > 0 {
		b.Errorf("the browser complains:\n%s", strings.Join(said, "\n"))
	}
	b.tab("summary")
	b.do(chromedp.KeyEvent(kb.Enter), chromedp.WaitVisible(chromedp.CSS("#recorded")))
	if text := b.text(`document.querySelector("#recorded [data-column=half]").textContent`); text == "" || strings.Trim(text, "0123456789") != "" {
		b.Errorf("the table says %q of the time until half of the proxies had a version", text)
	}
	b.open("/", 1200, false)
	b.do(chromedp.Evaluate[chromedp.Void](`document.querySelector(".chart").dataset.old = "1"; 0`))
	m.write("another.yaml", cluster("for-the-chart"))
	b.do(chromedp.WaitReady(chromedp.CSS(".chart:not([data-old]) canvas")))
}

// Without the bus the pages of the past go on, say so, and stay free of violations.
func testWithoutBus(m *mesh, b *browser) {
	if err := m.Stop(); err != nil {
		b.Fatal(err)
	}
	m.until("/timeline", "What you see may be old")
	for _, path := range []string{"/", "/timeline", address("/version", "at", m.shifted), address("/object", "key", "VirtualService/demo/shop"), "/fleet"} {
		b.Run(path, func(t *testing.T) {
			b := *b
			b.T = t
			for _, dark := range []bool{false, true} {
				b.open(path, 1200, dark)
				if !strings.Contains(b.text(`document.querySelector(".stale").innerText`), "the newest version here is") {
					t.Error("it does not say how old it is")
				}
				if v := b.violations(); len(v) > 0 {
					t.Errorf("dark %v: axe-core finds\n%s", dark, strings.Join(v, "\n"))
				}
			}
		})
	}
}
