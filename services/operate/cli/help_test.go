package cli

import (
	"bytes"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/spf13/cobra"
	"golang.org/x/tools/txtar"

	"meshlog.dev/proto/ident"
)

// TestHelp holds the help of every command against testdata/help.golden, so
// that whoever changes one reads it.
func TestHelp(t *testing.T) {
	var ar txtar.Archive
	var visit func(*cobra.Command)
	visit = func(c *cobra.Command) {
		if c.Hidden || !c.IsAvailableCommand() && c.HasParent() {
			return
		}
		var b bytes.Buffer
		c.SetOut(&b)
		if err := c.Help(); err != nil {
			t.Fatal(err)
		}
		ar.Files = append(ar.Files, txtar.File{Name: c.CommandPath(), Data: b.Bytes()})
		if c.Short == "" || c.Long == "" || c.Example == "" {
			t.Errorf("%s: it has no short text, no long one or no examples", c.CommandPath())
		}
		for line := range strings.Lines(b.String()) {
			if n := len([]rune(strings.TrimRight(line, "\n"))); n > 110 {
				t.Errorf("%s: a line of %d characters: %s", c.CommandPath(), n, line)
			}
		}
		for _, sub := range c.Commands() {
			visit(sub)
		}
	}
	visit(New())
	got := txtar.Format(&ar)
	path := filepath.Join("testdata", "help.golden")
	if *update {
		if err := os.WriteFile(path, got, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(path)
	if err != nil {
		t.Fatalf("%v; `go test -update` writes it", err)
	}
	if diff := cmp.Diff(string(want), string(got)); diff != "" {
		t.Errorf("%s (`go test -update` rewrites it; read it): %s", path, diff)
	}
}

func TestCompletion(t *testing.T) {
	t.Parallel()
	m := start(t, map[string]string{"shop.yaml": cluster("shop")})
	e := connectEnvoy(t, m.xds)
	e.ask(t, ident.CDS.URL(), nil)
	e.answer(t, "")
	for line, want := range map[string]string{
		"proxy-status --data DIR e":           "envoy-1",
		"proxy-config --data DIR envoy-1 l":   "listeners",
		"diff --data DIR latest 1":            ".",
		"history --data DIR Resource/":        "Resource/default/shop",
		"show --data DIR latest Resource/d":   "Resource/default/shop",
		"sources remove --data DIR f":         "file/default",
		"proxy-status --data DIR --frontend ": "up",
		"diagnostics --data DIR --severity w": "warning",
		"log --kind Virt":                     "VirtualService",
		"proxy-status --data /nowhere ":       "",
		"proxy-status --data DIR envoy-1 x":   "",
		"approve --data DIR ":                 "",
		"diff --data DIR --proxy en":          "envoy-1",
		"wait --data DIR lat":                 "latest",
		"completion z":                        "zsh",
		"sour":                                "sources",
	} {
		cmd := New()
		var out bytes.Buffer
		cmd.SetOut(&out)
		cmd.SetErr(&bytes.Buffer{})
		cmd.SetArgs(append([]string{cobra.ShellCompNoDescRequestCmd}, strings.Split(strings.ReplaceAll(line, "DIR", m.data), " ")...))
		if err := cmd.ExecuteContext(t.Context()); err != nil {
			t.Errorf("%s: %v", line, err)
		}
		first, _, _ := strings.Cut(out.String(), "\n")
		if want == "" && strings.HasPrefix(first, ":") {
			continue
		}
		if want == "" || !strings.Contains(first, want) {
			t.Errorf("%q completes to %q, want %q", line, out.String(), want)
		}
	}
	for _, shell := range []string{"bash", "zsh", "fish"} {
		cmd := New()
		var out bytes.Buffer
		cmd.SetOut(&out)
		cmd.SetArgs([]string{"completion", shell})
		if err := cmd.ExecuteContext(t.Context()); err != nil || !strings.Contains(out.String(), "meshlog") {
			t.Errorf("completion %s: %v, %d bytes", shell, err, out.Len())
		}
	}
}

func TestUnknown(t *testing.T) {
	for line, want := range map[string]string{
		"proxy-stats":                       `unknown command "proxy-stats"; did you mean proxy-status?`,
		"verson":                            `did you mean`,
		"proxy-stats --data x --frontend=y": `did you mean proxy-status?`,
		"nonsense":                          `unknown command "nonsense"`,
		"completion tcsh":                   `shell "tcsh": want bash, zsh or fish`,
	} {
		cmd := New()
		cmd.SilenceErrors, cmd.SilenceUsage = true, true
		cmd.SetArgs(strings.Fields(line))
		if err := cmd.ExecuteContext(t.Context()); err == nil || !strings.Contains(err.Error(), want) || exitCode(err) != 2 {
			t.Errorf("meshlog %s: %v, want %q", line, err, want)
		}
	}
}
