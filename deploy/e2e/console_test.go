package e2e

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"meshlog.dev/deploy/e2e/rig"
	"meshlog.dev/deploy/e2e/shop"
	"meshlog.dev/deploy/testkit/program"
	"meshlog.dev/deploy/testkit/testport"
)

// consoleOf is a console in a process of its own, with a data directory.
type consoleOf struct {
	*fixture
	*rig.Server
	url, data string
}

func (f *fixture) console() *consoleOf {
	f.Helper()
	port, err := testport.TCP()
	f.must(err)
	dir := f.TempDir()
	data := filepath.Join(dir, "data")
	address := fmt.Sprintf("127.0.0.1:%d", port)
	flags := append([]string{"console", "--data", data, "--console-listen", address}, f.mesh.NATS.Flags("console")...)
	s, err := rig.StartProgram(dir, "meshlog", "console", flags...)
	f.must(err)
	f.Cleanup(s.Kill)
	return &consoleOf{f, s, "http://" + address, data}
}

// page returns a page.
func (c *consoleOf) page(ctx context.Context, path string) (status int, body string, err error) {
	q, err := http.NewRequestWithContext(ctx, http.MethodGet, c.url+path, nil)
	if err != nil {
		return 0, "", err
	}
	r, err := http.DefaultClient.Do(q)
	if err != nil {
		return 0, "", err
	}
	defer r.Body.Close()
	b, err := io.ReadAll(r.Body)
	return r.StatusCode, string(b), err
}

// until waits until a page has a text, and returns the page.
func (c *consoleOf) until(path, want string) (body string) {
	c.Helper()
	c.must(program.Until(c.ctx, path+" to have "+want, func(ctx context.Context) error {
		status, got, err := c.page(ctx, path)
		if err == nil && (status != http.StatusOK || !strings.Contains(got, want)) {
			err = fmt.Errorf("status %d:\n%s", status, got)
		}
		body = got
		return err
	}))
	return body
}

var (
	versionOf  = regexp.MustCompile(`href="/version\?at=([0-9.]+)"`)
	lastRecord = regexp.MustCompile(`(?m)^meshlog_console_copy_last_record ([0-9.e+]+)$`)
)

const stale = "What you see may be old"

// The console has a copy of its own: when the server of the bus is killed, each page that read
// the past before goes on, marked as old, also after the console was killed and started again.
// When the bus is back, the mark is gone and the console has what came meanwhile.
func TestConsoleWithoutBus(t *testing.T) {
	f := start(t, apart(1, 1))
	c := f.console()
	c.until("/", "leads")
	f.shift(50, 50)
	f.shift(0, 100)
	f.share(shop.V2, 100)
	c.until("/fleet", "1 stream")
	timeline := c.until("/timeline?kind=VirtualService", "routes.yaml")
	c.must(program.Until(c.ctx, "a version on the timeline that was recorded", func(ctx context.Context) error {
		_, body, err := c.page(ctx, "/timeline")
		if err == nil && !regexp.MustCompile(`<td class="number">[0-9.]+m?s</td><td class="number">[0-9.]+m?s</td><td class="number">0</td>`).MatchString(body) {
			err = errors.New(body)
		}
		return err
	}))
	versions := versionOf.FindAllStringSubmatch(timeline, -1)
	newest, first := versions[0][1], versions[len(versions)-1][1]
	at := func(path string, parameters ...string) string {
		q := url.Values{}
		for i := 0; i < len(parameters); i += 2 {
			q.Set(parameters[i], parameters[i+1])
		}
		return path + "?" + q.Encode()
	}
	cluster := regexp.MustCompile(`aria-label="Why (outbound[^"]+)"`).FindStringSubmatch(c.until(at("/proxy", "id", node, "type", "CDS"), "ACKED"))
	if cluster == nil {
		t.Fatal("the page of the proxy names no cluster")
	}
	pages := map[string]string{ // and a text of each
		"/timeline":                                                               newest,
		"/timeline?kind=VirtualService":                                           "routes.yaml",
		at("/version", "at", newest):                                              "weight",
		at("/version", "at", newest, "proxy", node):                               "RouteConfiguration",
		at("/object", "key", "VirtualService/demo/shop"):                          "weight: 100",
		at("/object", "key", "VirtualService/demo/shop", "at", first):             "routes.yaml",
		"/objects?kind=VirtualService":                                            ">shop</a>",
		"/sources":                                                                "file/default",
		at("/problems", "at", first):                                              "Problems",
		at("/proxy", "id", node, "type", "CDS", "at", first):                      cluster[1],
		at("/why", "proxy", node, "resource", "cluster/"+cluster[1], "at", first): "shop.yaml",
		at("/why", "proxy", node, "resource", "cluster/"+cluster[1]):              "shop.yaml",
	}
	for path, want := range pages {
		if body := c.until(path, want); strings.Contains(body, stale) {
			t.Errorf("%s is marked as old", path)
		}
	}
	seq := newest[strings.Index(newest, ".")+1:]
	c.must(program.Until(c.ctx, "the copy of record "+seq, func(ctx context.Context) error {
		r, err := http.Get(fmt.Sprintf("http://127.0.0.1:%d/metrics", c.Admin))
		if err != nil {
			return err
		}
		defer r.Body.Close()
		b, err := io.ReadAll(r.Body)
		if has := lastRecord.FindStringSubmatch(string(b)); err == nil && (has == nil || len(has[1]) < len(seq) || has[1] < seq) {
			err = fmt.Errorf("it ends at %q", has)
		}
		return err
	}))

	f.mesh.NATS.Kill()
	old := func(when string) {
		t.Helper()
		c.until("/timeline", stale)
		for path, want := range pages {
			status, body, err := c.page(c.ctx, path)
			c.must(err)
			if status != http.StatusOK || !strings.Contains(body, want) || !strings.Contains(body, stale) || !strings.Contains(body, "the newest version here is "+newest) {
				t.Errorf("%s, %s: status %d, want %q and the position:\n%s", when, path, status, want, body)
			}
		}
	}
	old("without the bus")
	if !strings.Contains(c.until("/fleet", stale), node) {
		t.Error("the fleet lacks the proxy")
	}
	c.Kill()
	c.must(c.Restart())
	old("after a restart without the bus")
	if _, body, _ := c.page(c.ctx, "/timeline"); !regexp.MustCompile(`<td class="number">1 of 1</td><td class="number">[0-9.]+m?s</td>`).MatchString(body) {
		t.Errorf("what was recorded is lost:\n%s", body)
	}

	c.must(f.mesh.NATS.Restart(c.ctx))
	c.must(program.Until(c.ctx, "a page that is not old", func(ctx context.Context) error {
		_, body, err := c.page(ctx, "/")
		if err == nil && (strings.Contains(body, stale) || !strings.Contains(body, "leads")) {
			err = errors.New(body)
		}
		return err
	}))
	f.shift(100, 0)
	f.share(shop.V1, 100)
	c.must(program.Until(c.ctx, "a new version on the timeline", func(ctx context.Context) error {
		_, body, err := c.page(ctx, "/timeline?kind=VirtualService")
		if v := versionOf.FindStringSubmatch(body); err == nil && (v == nil || v[1] == newest) {
			err = errors.New(body)
		}
		return err
	}))
	// Its files are a place to ask the past, like an archive.
	out, err := rig.Meshlog(c.ctx, "history", "VirtualService/demo/shop", "--data", c.data)
	c.must(err)
	if !strings.Contains(out, "weight: 100 (new)") {
		t.Errorf("history of the console's files:\n%s", out)
	}
}
