// Package processtest compares the settings files in deploy/config with the flags of the
// processes, and the tables of metrics in deploy/observability with what they export.
package processtest

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/google/go-cmp/cmp"
	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	"go.yaml.in/yaml/v3"

	"meshlog.dev/services/internal/process"
)

// SettingsFile checks that a settings file has all flags of a process with their
// texts and defaults, commented out, and that the process accepts the file
// without the comment signs. With update, SettingsFile writes the file.
func SettingsFile(t *testing.T, command func() *cobra.Command, path string, update bool) {
	t.Helper()
	want := render(t, command())
	if update {
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(want), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	got, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(want, string(got)); diff != "" {
		t.Errorf("%s differs from the flags; run with -update (-want +got):\n%s", path, diff)
	}
	accepted(t, command, want)
}

// accepted checks that the file without comment signs sets every flag to its
// default.
func accepted(t *testing.T, command func() *cobra.Command, file string) {
	t.Helper()
	var live strings.Builder
	for line := range strings.Lines(file) {
		if setting, ok := strings.CutPrefix(line, "#"); ok && !strings.HasPrefix(setting, " ") && strings.TrimSpace(setting) != "" {
			line = setting
		}
		live.WriteString(line)
	}
	path := filepath.Join(t.TempDir(), "settings.yaml")
	if err := os.WriteFile(path, []byte(live.String()), 0o600); err != nil {
		t.Fatal(err)
	}
	plain, cmd := command().Flags(), command()
	flags := cmd.Flags()
	if err := flags.Set("settings", path); err != nil {
		t.Fatal(err)
	}
	if err := process.ApplySettings(flags, func(string) (string, bool) { return "", false }); err != nil {
		t.Fatal(err)
	}
	n := 0
	flags.VisitAll(func(f *pflag.Flag) {
		if f.Changed && f.Name != "settings" {
			n++
			if before := plain.Lookup(f.Name).DefValue; f.Value.String() != before {
				t.Errorf("%s: %q in the file, by default %q", f.Name, f.Value, before)
			}
		}
	})
	if n == 0 {
		t.Error("the file has no settings")
	}
}

const width = 80

// render returns the settings file of a process.
func render(t *testing.T, cmd *cobra.Command) string {
	t.Helper()
	program, _, _ := strings.Cut(strings.TrimSpace(cmd.Example), " --")
	var out strings.Builder
	comment(&out, fmt.Sprintf("Settings of %s: `%s --settings FILE`.", program, program))
	out.WriteString("#\n")
	comment(&out, "Each setting is shown with its default; remove the # to change it. "+
		"A flag or a variable of the same name overrides it: --log-level, MESHLOG_LOG_LEVEL. "+
		"Durations are written 500ms, 30s, 10m, 8h. --check checks the settings without starting the process.")
	cmd.Flags().VisitAll(func(f *pflag.Flag) {
		if slices.Contains([]string{"settings", "check", "help"}, f.Name) || f.Hidden {
			return
		}
		_, usage := pflag.UnquoteUsage(f)
		if usage == "" {
			t.Fatalf("--%s has no text", f.Name)
		}
		out.WriteString("\n")
		comment(&out, sentence(usage))
		fmt.Fprintf(&out, "#%s: %s\n", f.Name, value(t, f))
	})
	return out.String()
}

// sentence adds a capital letter and a period.
func sentence(s string) string {
	_, n := utf8.DecodeRuneInString(s)
	return strings.ToUpper(s[:n]) + s[n:] + "."
}

func comment(out *strings.Builder, text string) {
	line := "#"
	for _, word := range strings.Fields(text) {
		if len(line)+1+len(word) > width {
			out.WriteString(line + "\n")
			line = "#"
		}
		line += " " + word
	}
	out.WriteString(line + "\n")
}

// value returns the default of a setting as YAML.
func value(t *testing.T, f *pflag.Flag) string {
	t.Helper()
	switch f.Value.Type() {
	case "string":
		b, err := yaml.Marshal(f.DefValue)
		if err != nil {
			t.Fatal(err)
		}
		return strings.TrimSpace(string(b))
	case "duration":
		d, err := time.ParseDuration(f.DefValue)
		if err != nil {
			t.Fatal(err)
		}
		s := d.String()
		for _, zero := range []string{"m0s", "h0m"} {
			if strings.HasSuffix(s, zero) {
				s = s[:len(s)-2]
			}
		}
		return s
	}
	return f.DefValue
}
