//go:build console

package web_test

import (
	"context"
	_ "embed"
	"encoding/json"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/chromedp/cdproto/cdp"
	"github.com/chromedp/cdproto/emulation"
	"github.com/chromedp/cdproto/log"
	"github.com/chromedp/cdproto/runtime"
	"github.com/chromedp/chromedp"
	"github.com/chromedp/chromedp/kb"

	"meshlog.dev/services/roles/console"
)

var screenshots = flag.Bool("screenshots", false, "write the pictures of the README")

//go:embed testdata/axe-4.14.1.min.js
var axe string

// browser is a Chromium whose complaints are collected.
type browser struct {
	*testing.T
	ctx  context.Context
	base string
	said *said
}

// said has the errors of scripts, and of the security policy.
type said struct {
	mu  sync.Mutex
	all []string
}

func (s *said) add(text string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.all = append(s.all, text)
}

// take returns what was said since the last call.
func (s *said) take() []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	all := s.all
	s.all = nil
	return all
}

func (m *mesh) browser() *browser {
	m.Helper()
	path, err := exec.LookPath("chromium")
	if err != nil {
		m.Fatal("chromium is not installed: apt-get install chromium")
	}
	options := append(slices.Clone(chromedp.DefaultExecAllocatorOptions[:]), chromedp.ExecPath(path), chromedp.NoSandbox, chromedp.DisableGPU,
		chromedp.UserDataDir(m.TempDir()), chromedp.WSURLReadTimeout(time.Minute))
	ctx, end := chromedp.NewExecAllocator(m.Context(), options...)
	m.Cleanup(end)
	ctx, endTab := chromedp.NewContext(ctx)
	m.Cleanup(endTab)
	b := &browser{T: m.T, ctx: ctx, base: m.url, said: &said{}}
	err = chromedp.Listen(ctx, func(event any) {
		switch e := event.(type) {
		case *runtime.EventExceptionThrown:
			b.said.add(e.ExceptionDetails.Text + " " + e.ExceptionDetails.URL)
		case *log.EventEntryAdded:
			if e.Entry.Level == log.EntryLevelError {
				b.said.add(e.Entry.Text + " " + e.Entry.URL)
			}
		}
	})
	if err != nil {
		m.Fatal(err)
	}
	b.do(command(log.Enable, cdp.Empty{}), command(runtime.Enable, cdp.Empty{}))
	return b
}

// command is an action that sends a command to the browser.
func command[P, R any](c cdp.Command[P, R], p P) chromedp.Action[chromedp.Void] {
	return chromedp.Func(func(ctx context.Context, t *chromedp.Target) error {
		_, err := cdp.Call(ctx, t, c, p)
		return err
	})
}

func (b *browser) do(actions ...chromedp.Action[chromedp.Void]) {
	b.Helper()
	if err := chromedp.Do(b.ctx, actions...); err != nil {
		b.Fatal(err)
	}
}

// open opens a page of a width, in the dark or not.
func (b *browser) open(path string, width int64, dark bool) {
	b.Helper()
	scheme := "light"
	if dark {
		scheme = "dark"
	}
	b.do(
		command(emulation.SetEmulatedMedia, emulation.SetEmulatedMediaParams{Features: []*emulation.MediaFeature{{Name: "prefers-color-scheme", Value: scheme}}}),
		chromedp.EmulateViewport(width, 900), chromedp.Navigate(b.base+path), chromedp.WaitReady(chromedp.CSS("#main")),
	)
}

// violations returns what axe-core finds.
func (b *browser) violations() (all []string) {
	b.Helper()
	b.do(chromedp.Evaluate[chromedp.Void](axe + ";0"))
	found, err := chromedp.Run(b.ctx, chromedp.Evaluate[string](`axe.run().then(r => JSON.stringify(r.violations.map(v => v.id + ": " + v.help + ": " + v.nodes.slice(0, 3).map(n => n.html + " " + n.failureSummary).join(" | "))))`, chromedp.EvalAwaitPromise))
	if err != nil {
		b.Fatal(err)
	}
	if err := json.Unmarshal([]byte(found), &all); err != nil {
		b.Fatal(err)
	}
	return all
}

func (b *browser) text(expression string) string {
	b.Helper()
	s, err := chromedp.Run(b.ctx, chromedp.Evaluate[string]("String("+expression+")"))
	if err != nil {
		b.Fatal(err)
	}
	return s
}

// Each page in a real browser: nothing breaks the security policy, axe-core finds no violation in
// light and dark, and at 390 pixels nothing but tables is wider than the screen.
func TestBrowser(t *testing.T) {
	m := start(t)
	const app = "sidecar~10.0.0.9~app.demo~demo.svc.cluster.local"
	acting := console.DefaultSettings()
	acting.OperatorKey = m.key
	m.url = m.console(acting, t.TempDir())
	m.until("/problems", "Held back by the guard")
	b := m.browser()
	pages := []struct{ name, path string }{
		{"overview", "/"},
		{"timeline", "/timeline"},
		{"version", address("/version", "at", m.shifted, "proxy", app)},
		{"objects", "/objects"},
		{"object", address("/object", "key", "VirtualService/demo/shop")},
		{"fleet", "/fleet"},
		{"groups", "/fleet?group=version"},
		{"proxy", address("/proxy", "id", app, "type", "CDS")},
		{"rejecting", address("/proxy", "id", evil)},
		{"why", address("/why", "proxy", app, "resource", "cluster/outbound|80|v1|shop.internal")},
		{"routes", address("/routes", "proxy", app)},
		{"act", address("/act/rollback", "version", m.first, "object", "VirtualService/demo/shop")},
		{"act to fill in", "/act/pin"},
		{"envoy", address("/envoy", "proxy", app, "admin", envoy(t, app, nil))},
		{"sources", "/sources"},
		{"problems", "/problems"},
		{"error", "/nothing"},
		{"login", "/login"},
	}
	for _, p := range pages {
		t.Run(p.name, func(t *testing.T) {
			b := *b
			b.T = t
			b.accessible(p.name, p.path)
			if p.name == "overview" {
				b.picture("phone", false)
			}
			if b.text("document.title") == "owned" {
				t.Error("the script of a proxy ran")
			}
			said := b.said.take()
			if p.name == "error" {
				before := len(said)
				if said = slices.DeleteFunc(said, func(s string) bool { return strings.Contains(s, "404") }); len(said) == before {
					t.Error("the browser does not complain about a page that is missing")
				}
			}
			for _, s := range said {
				t.Errorf("the browser complains: %s", s)
			}
		})
	}
	t.Run("what-if", func(t *testing.T) { b := *b; b.T = t; testWhatIfByKeyboard(&b) })
	t.Run("acts by keyboard", func(t *testing.T) { b := *b; b.T = t; testActsByKeyboard(m, &b) })
	t.Run("rollouts", testRolloutsInBrowser)
	t.Run("keyboard", func(t *testing.T) { b := *b; b.T = t; testKeyboard(&b) })
	t.Run("live", func(t *testing.T) { b := *b; b.T = t; testLive(m, &b) })
	t.Run("charts", func(t *testing.T) { b := *b; b.T = t; testCharts(m, &b) })
	t.Run("without scripts", func(t *testing.T) { b := *b; b.T = t; testWithoutScripts(&b) })
	t.Run("without the bus", func(t *testing.T) { b := *m.browser(); b.T = t; testWithoutBus(m, &b) })
}

// accessible demands that axe-core finds no violation in a page, in light and dark and at 390 pixels,
// where nothing but tables is wider than the screen.
func (b *browser) accessible(name, path string) {
	b.Helper()
	for _, dark := range []bool{false, true} {
		b.open(path, 1200, dark)
		if v := b.violations(); len(v) > 0 {
			b.Errorf("dark %v: axe-core finds\n%s", dark, strings.Join(v, "\n"))
		}
		b.picture(name, dark)
	}
	b.open(path, 390, false)
	if width := b.text("document.documentElement.scrollWidth"); width != "390" {
		b.Errorf("at 390 pixels the page is %s wide", width)
	}
	if v := b.violations(); len(v) > 0 {
		b.Errorf("at 390 pixels axe-core finds\n%s", strings.Join(v, "\n"))
	}
}

// picture writes a screenshot, for the README.
func (b *browser) picture(name string, dark bool) {
	b.Helper()
	of := map[string]bool{"overview": false, "timeline": false, "version": true, "why": false, "fleet": true, "problems": false, "phone": false, "routes": false, "act": true, "rollouts": false, "what-if": false}
	if want, ok := of[name]; !*screenshots || !ok || want != dark {
		return
	}
	png, err := chromedp.Run(b.ctx, chromedp.CaptureScreenshot())
	if err != nil {
		b.Fatal(err)
	}
	path := filepath.Join("..", "screenshots", name+".png")
	if err := os.WriteFile(path, png, 0o600); err != nil {
		b.Fatal(err)
	}
}

// tab presses the key until what has the focus matches; each press moves it.
func (b *browser) tab(selector string) {
	b.Helper()
	for range 60 {
		b.do(chromedp.KeyEvent(kb.Tab))
		if b.text(fmt.Sprintf("document.activeElement.matches(%q)", selector)) == "true" {
			return
		}
	}
	b.Fatalf("the key Tab never reaches %s", selector)
}

// A person without a mouse finds the version that changed a route, and goes back in time.
func testKeyboard(b *browser) {
	b.open("/", 1200, false)
	b.tab(".skip")
	b.tab(`nav a[href="/timeline"]`)
	b.do(chromedp.KeyEvent(kb.Enter), chromedp.WaitReady(chromedp.CSS("#kind")))
	b.tab("#kind")
	b.do(chromedp.KeyEvent("VirtualService"), chromedp.KeyEvent(kb.Enter), chromedp.WaitReady(chromedp.CSS("table")))
	b.tab("tbody th a")
	b.do(chromedp.KeyEvent(kb.Enter), chromedp.WaitReady(chromedp.CSS(".change")))
	if text := b.text(`document.querySelector("#main").innerText`); !strings.Contains(text, "spec.http[0].route[0].weight: 90 -> 50") {
		b.Errorf("the version shows\n%s", text)
	}
	b.tab(`nav a[href^="/fleet?at="]`)
	b.tab("#at")
	b.do(chromedp.KeyEvent(kb.End))
	if outline := b.text("getComputedStyle(document.activeElement).outlineStyle"); outline != "solid" {
		b.Errorf("the focus is not to be seen: its outline is %s", outline)
	}
	b.tab("#main .past a, .past a")
	b.do(chromedp.KeyEvent(kb.Enter), chromedp.WaitNotPresent(chromedp.CSS(".past")))
}

// An operator without a mouse approves the loss, and rolls an object back: each act shows what
// it would change, and asks once more.
func testActsByKeyboard(m *mesh, b *browser) {
	b.open("/problems", 1200, false)
	b.tab(`#main a[href^="/act/approve"]`)
	b.do(chromedp.KeyEvent(kb.Enter), chromedp.WaitReady(chromedp.CSS(".confirm")))
	if text := b.text(`document.querySelector("#main").innerText`); !strings.Contains(text, "10 objects change") {
		b.Errorf("the page to approve shows\n%s", text)
	}
	b.tab(".confirm button")
	b.do(chromedp.KeyEvent(kb.Enter), chromedp.WaitReady(chromedp.CSS(".notice.good")))
	b.acted("approval", "")

	b.open(address("/object", "key", "VirtualService/demo/shop", "at", m.first), 1200, false)
	b.tab(`#main a[href^="/act/rollback"]`)
	b.do(chromedp.KeyEvent(kb.Enter), chromedp.WaitReady(chromedp.CSS("#reason")))
	b.tab("#reason")
	b.do(chromedp.KeyEvent("503 since the weights"), chromedp.KeyEvent(kb.Enter), chromedp.WaitReady(chromedp.CSS(".notice.good")))
	b.acted("rollback", "503 since the weights")
	if v := b.violations(); len(v) > 0 {
		b.Errorf("axe-core finds\n%s", strings.Join(v, "\n"))
	}
}

// acted demands that the page shows a record of alice.
func (b *browser) acted(what, reason string) {
	b.Helper()
	text := b.text(`document.querySelector("#main").innerText`)
	for _, want := range []string{"is on the log", "alice, signed", reason} {
		if !strings.Contains(text, want) {
			b.Errorf("after the %s the page lacks %q:\n%s", what, want, text)
		}
	}
	for _, s := range b.said.take() {
		b.Errorf("the browser complains: %s", s)
	}
}

// A page of the present follows the mesh.
func testLive(m *mesh, b *browser) {
	b.open("/objects?kind=Resource", 1200, false)
	m.write("late-one.yaml", cluster("came-later"))
	b.do(chromedp.WaitReady(`//th[contains(., "came-later")]`))
}

// Everything reads without JavaScript.
func testWithoutScripts(b *browser) {
	b.do(command(emulation.SetScriptExecutionDisabled, emulation.SetScriptExecutionDisabledParams{Value: true}))
	b.do(chromedp.Navigate(b.base+"/fleet"), chromedp.WaitReady(chromedp.CSS("tbody th a")), chromedp.Click(chromedp.CSS("tbody th a")), chromedp.WaitReady(chromedp.CSS(".facts")))
}
