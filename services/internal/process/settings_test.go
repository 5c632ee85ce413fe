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
	fs.Bool("check", false, "")
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
		{"comments", "# wait: 5s\n", nil, nil, values{Name: "default", Wait: time.Second}},
		{"empty value", `the-name: ""`, nil, nil, values{Wait: time.Second}},
		{"check is none", "", nil, map[string]string{"MESHLOG_CHECK": "true"}, values{Name: "default", Wait: time.Second}},
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
		{"unknown key", "the-name: x\ncolour: y\n", nil, []string{"settings.yaml:2: colour: no such setting; --help lists them"}},
		{"misspelt key", "the_nmae: y\n", nil, []string{"settings.yaml:1: the_nmae: no such setting; did you mean the-name?"}},
		{"key twice", "wait: 1s\nthe-name: x\nwait: 2s\n", nil, []string{"settings.yaml:3: wait: is already set in line 1"}},
		{"no value", "the-name:\n", nil, []string{"settings.yaml:1: the-name: has no value"}},
		{"two documents", "the-name: x\n---\nwait: 2s\n", nil, []string{"settings.yaml: only the first document is read"}},
		{"settings within", "settings: x\n", nil, []string{"settings.yaml:1: settings: no such setting"}},
		{"wrong type", "wait: soon\n", nil, []string{`settings.yaml:1: wait: "soon"`, "invalid duration"}},
		{"map", "wait: {a: b}\n", nil, []string{"settings.yaml:1: wait: want a plain value"}},
		{"nested list", "shards: [[a]]\n", nil, []string{"settings.yaml:1: shards: want a list of plain values"}},
		{"no map", "- a\n", nil, []string{"settings.yaml:1: want a map"}},
		{"no YAML", "the-name: x\na: b: c\n", nil, []string{"settings.yaml: yaml: line 2"}},
		{"several", "x: 1\ny: 2\n", map[string]string{"MESHLOG_WAIT": "soon"}, []string{":1: x:", ":2: y:", "MESHLOG_WAIT"}},
		{"environment", "", map[string]string{"MESHLOG_WAIT": "soon"}, []string{`environment: MESHLOG_WAIT: "soon"`, "invalid duration"}},
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
			if wait := fs.Lookup("wait").Value.String(); wait != "1s" {
				t.Errorf("wait is %s after an error, want the default", wait)
			}
			for _, w := range c.want {
				if !strings.Contains(err.Error(), w) {
					t.Errorf("error %q does not say %q", err, w)
				}
			}
		})
	}
}

func TestUnknownVariables(t *testing.T) {
	misspelt, others := unknownVariables(flagSet(new(values)), []string{
		"HOME=/", "MESHLOG_WAIT=1s", "MESHLOG_SETTINGS=x", "MESHLOG_THE_NMAE=x", "MESHLOG_FRONTEND_SERVICE_HOST=10.0.0.1",
	})
	if diff := cmp.Diff([]string{"MESHLOG_THE_NMAE is not a setting of this process; did you mean MESHLOG_THE_NAME?"}, misspelt); diff != "" {
		t.Error(diff)
	}
	if diff := cmp.Diff([]string{"MESHLOG_FRONTEND_SERVICE_HOST is not a setting of this process"}, others); diff != "" {
		t.Error(diff)
	}
}

// An error about a setting names the origin of its value.
func TestLocated(t *testing.T) {
	var v values
	fs := flagSet(&v)
	fs.String("other", "", "")
	path := settingsFile(t, "wait: 5s\n")
	if err := fs.Parse([]string{"--settings", path, "--shards", "a"}); err != nil {
		t.Fatal(err)
	}
	env := map[string]string{"MESHLOG_THE_NAME": "x"}
	if err := ApplySettings(fs, func(k string) (string, bool) { v, ok := env[k]; return v, ok }); err != nil {
		t.Fatal(err)
	}
	cause := errors.New("cause")
	err := located(errors.Join(
		Invalid("wait", "want less"), Invalid("the-name", "want another: %w", cause), Invalid("shards", "want more"),
		errors.Join(Invalid("other", "is missing")), errors.New("whatever"),
	), fs)
	want := path + `:1: wait: "5s": want less
environment: MESHLOG_THE_NAME: "x": want another: cause
--shards [a]: want more
--other is missing
whatever`
	if diff := cmp.Diff("settings "+want, err.Error()); diff != "" {
		t.Error(diff)
	}
	if !errors.Is(err, cause) {
		t.Error("the cause is lost")
	}
}

func TestReportSettings(t *testing.T) {
	var v values
	fs := flagSet(&v)
	path := settingsFile(t, "wait: 5s\n")
	if err := fs.Parse([]string{"--settings", path, "--shards", "a,b"}); err != nil {
		t.Fatal(err)
	}
	env := map[string]string{"MESHLOG_THE_NAME": "nats://me:secret@one:4222,nats://token@two:4222,three"}
	if err := ApplySettings(fs, func(k string) (string, bool) { v, ok := env[k]; return v, ok }); err != nil {
		t.Fatal(err)
	}
	want := []settingReport{
		{"settings", path, "--settings"}, {"shards", "[a,b]", "--shards"},
		{"the-name", "nats://xxxxx@one:4222,nats://xxxxx@two:4222,three", "environment: MESHLOG_THE_NAME"},
		{"wait", "5s", "settings " + path + ":1: wait"},
	}
	if diff := cmp.Diff(want, reportSettings(fs)); diff != "" {
		t.Error(diff)
	}
}
