package process

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/spf13/pflag"
)

type values struct {
	Name   string
	Wait   time.Duration
	Shards []string
}

func flagSet(v *values) *pflag.FlagSet {
	fs := pflag.NewFlagSet("test", pflag.ContinueOnError)
	fs.String("settings", "", "")
	fs.StringVar(&v.Name, "the-name", "default", "")
	fs.DurationVar(&v.Wait, "wait", time.Second, "")
	fs.StringSliceVar(&v.Shards, "shards", nil, "")
	return fs
}

func settingsFile(t *testing.T, content string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "settings.yaml")
	if err := os.WriteFile(path, []byte(content), 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

func TestApplySettings(t *testing.T) {
	file := "# a comment\nthe-name: file\nwait: 5s\nshards: [a, b]\n"
	for _, c := range []struct {
		name, file string
		args       []string
		env        map[string]string
		want       values
	}{
		{"default", "", nil, nil, values{Name: "default", Wait: time.Second}},
		{"empty file", "", nil, nil, values{Name: "default", Wait: time.Second}},
		{"file", file, nil, nil, values{"file", 5 * time.Second, []string{"a", "b"}}},
		{"environment over file", file, nil, map[string]string{"MESHLOG_THE_NAME": "env"}, values{"env", 5 * time.Second, []string{"a", "b"}}},
		{
			"flag over all", file,
			[]string{"--the-name=flag", "--wait=1m"},
			map[string]string{"MESHLOG_THE_NAME": "env", "MESHLOG_SHARDS": "c"},
			values{"flag", time.Minute, []string{"c"}},
		},
	} {
		t.Run(c.name, func(t *testing.T) {
			var got values
			fs := flagSet(&got)
			if err := fs.Parse(append(c.args, "--settings", settingsFile(t, c.file))); err != nil {
				t.Fatal(err)
			}
			err := ApplySettings(fs, func(k string) (string, bool) { v, ok := c.env[k]; return v, ok })
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(c.want, got); diff != "" {
				t.Error(diff)
			}
		})
	}
}

func TestApplySettingsRefuses(t *testing.T) {
	for _, c := range []struct {
		name, file string
		env        map[string]string
		want       []string
	}{
		{"unknown key", "the-name: x\nnmae: y\n", nil, []string{"settings.yaml:2: nmae: no such setting"}},
		{"settings within", "settings: x\n", nil, []string{"settings.yaml:1: settings: no such setting"}},
		{"wrong type", "wait: soon\n", nil, []string{`settings.yaml:1: wait: "soon"`, "invalid duration"}},
		{"map", "wait: {a: b}\n", nil, []string{"settings.yaml:1: wait: want a plain value"}},
		{"nested list", "shards: [[a]]\n", nil, []string{"settings.yaml:1: shards: want a list of plain values"}},
		{"no map", "- a\n", nil, []string{"settings.yaml:1: want a map"}},
		{"no YAML", "the-name: x\na: b: c\n", nil, []string{"settings.yaml: yaml: line 2"}},
		{"several", "x: 1\ny: 2\n", nil, []string{":1: x:", ":2: y:"}},
		{"environment", "", map[string]string{"MESHLOG_WAIT": "soon"}, []string{`MESHLOG_WAIT="soon"`, "invalid duration"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			fs := flagSet(new(values))
			if err := fs.Parse([]string{"--settings", settingsFile(t, c.file)}); err != nil {
				t.Fatal(err)
			}
			err := ApplySettings(fs, func(k string) (string, bool) { v, ok := c.env[k]; return v, ok })
			if !errors.As(err, new(*UsageError)) {
				t.Fatalf("ApplySettings = %v, want a UsageError", err)
			}
			for _, w := range c.want {
				if !strings.Contains(err.Error(), w) {
					t.Errorf("error %q does not say %q", err, w)
				}
			}
		})
	}
}
