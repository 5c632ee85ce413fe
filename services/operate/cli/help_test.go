package cli

import (
	"bytes"
	"strings"
	"testing"

	"github.com/spf13/cobra"

	"meshlog.dev/proto/ident"
)

func TestCompletion(t *testing.T) {
	t.Parallel()
	m := start(t, map[string]string{"shop.yaml": cluster("shop")})
	e := connectEnvoy(t, m.XDS)
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
		cmd.SetArgs(append([]string{cobra.ShellCompNoDescRequestCmd}, strings.Split(strings.ReplaceAll(line, "DIR", m.Data), " ")...))
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
