package process

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"runtime/debug"
	"strings"
	"syscall"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/spf13/pflag"

	reportv1 "meshlog.dev/proto/meshlog/report/v1"
)

func get(t *testing.T, a *Admin, path string) (code int, body string) {
	t.Helper()
	resp, err := http.Get("http://" + a.Addr() + path)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	b, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatal(err)
	}
	return resp.StatusCode, string(b)
}

// none has no settings.
type none struct{ err error }

func (none) Flags(*pflag.FlagSet) {}
func (n none) Check() error       { return n.err }

func execute(t *testing.T, spec Spec, args ...string) error {
	t.Helper()
	cmd := Command(spec)
	cmd.SilenceErrors, cmd.SilenceUsage = true, true
	cmd.SetErr(io.Discard)
	cmd.SetArgs(append([]string{"--admin", "127.0.0.1:0"}, args...))
	ctx, stop := untilSignal(t.Context())
	defer stop()
	return cmd.ExecuteContext(ctx)
}

func TestAdmin(t *testing.T) {
	down := errors.New("no version yet")
	count := prometheus.NewCounter(prometheus.CounterOpts{Name: "meshlog_test_total"})
	err := execute(t, Spec{Use: "test", Settings: none{}, Run: func(_ context.Context, p *Process) error {
		if code, body := get(t, p.Admin, "/readyz"); code != 503 || body != "starting\n" {
			t.Errorf("GET /readyz at first = %d %q, want 503", code, body)
		}
		ready := down
		p.Admin.Ready("frontend", func() error { return ready })
		p.Admin.Ready("bus", func() error { return nil })
		p.Admin.Report("frontend", func() any { return &reportv1.FrontendReport{Frontend: "f1"} })
		p.Admin.Report("other", func() any { return map[string]int{"a": 1} })
		p.Admin.Register(count)
		for _, c := range []struct {
			path string
			code int
			want string
		}{
			{"/healthz", 200, "ok\n"},
			{"/readyz", 503, "frontend: no version yet\n"},
			{"/metrics", 200, "meshlog_test_total 0\n"},
			{"/metrics", 200, "go_goroutines"},
			{"/debug/frontend", 200, `"f1"`},
			{"/debug/other", 200, `"a": 1`},
			{"/debug/settings", 200, `"setting": "admin"`},
			{"/debug/nothing", 404, ""},
			{"/debug/pprof/", 404, ""},
			{"/debug/log", 200, `"all": "info"`},
			{"/", 200, `<a href="/debug/frontend">`},
			{"/nothing", 404, ""},
		} {
			if code, body := get(t, p.Admin, c.path); code != c.code || !strings.Contains(body, c.want) {
				t.Errorf("GET %s = %d %q, want %d with %q", c.path, code, body, c.code, c.want)
			}
		}
		ready = nil
		if code, body := get(t, p.Admin, "/readyz"); code != 200 {
			t.Errorf("GET /readyz = %d %q, want 200", code, body)
		}
		return nil
	}})
	if err != nil {
		t.Fatal(err)
	}
}

func TestCommandEnds(t *testing.T) {
	broken := errors.New("broken")
	for _, c := range []struct {
		name string
		run  func(context.Context, *Process) error
		want error
	}{
		{"by itself", func(context.Context, *Process) error { return nil }, nil},
		{"by failure", func(context.Context, *Process) error { return broken }, broken},
		{"by signal", func(ctx context.Context, p *Process) error {
			if err := syscall.Kill(syscall.Getpid(), syscall.SIGTERM); err != nil {
				return err
			}
			<-ctx.Done()
			if code, _ := get(t, p.Admin, "/healthz"); code != 200 {
				t.Error("the admin server ended before the process")
			}
			return ctx.Err()
		}, nil},
	} {
		t.Run(c.name, func(t *testing.T) {
			err := execute(t, Spec{Use: "test", Settings: none{}, Run: c.run})
			if !errors.Is(err, c.want) {
				t.Errorf("ended with %v, want %v", err, c.want)
			}
		})
	}
}

// KEY-1: a process that crashes, and one that it starts, leave no core dump with private keys.
func TestNoCoreDumps(t *testing.T) {
	err := execute(t, Spec{Use: "test", Settings: none{}, Run: func(context.Context, *Process) error {
		var core syscall.Rlimit
		if err := syscall.Getrlimit(syscall.RLIMIT_CORE, &core); err != nil {
			return err
		}
		if core.Cur != 0 || core.Max != 0 {
			t.Errorf("the limit of core dumps is %+v", core)
		}
		return nil
	}})
	if err != nil {
		t.Error(err)
	}
}

func TestCommandRefuses(t *testing.T) {
	taken, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer taken.Close()
	for _, c := range []struct {
		name  string
		check error
		args  []string
		usage bool
		want  string
	}{
		{"check", errors.New("--bus is missing"), nil, true, "--bus is missing"},
		{"argument", nil, []string{"x"}, true, `unexpected argument "x"`},
		{"level", nil, []string{"--log-level", "loud"}, true, `--log-level loud: no level "loud": want debug`},
		{"format", nil, []string{"--log-format", "xml"}, true, `--log-format xml: want text`},
		{"port in use", nil, []string{"--admin", taken.Addr().String()}, false, "admin server: listen tcp " + taken.Addr().String()},
	} {
		t.Run(c.name, func(t *testing.T) {
			err := execute(t, Spec{Use: "test", Settings: none{c.check}, Run: func(context.Context, *Process) error {
				t.Error("the process ran")
				return nil
			}}, c.args...)
			if err == nil || !strings.Contains(err.Error(), c.want) {
				t.Fatalf("error %v does not say %q", err, c.want)
			}
			if errors.As(err, new(*UsageError)) != c.usage {
				t.Errorf("error %v is a usage error: %v, want %v", err, !c.usage, c.usage)
			}
		})
	}
}

func TestRevision(t *testing.T) {
	const rev = "0123456789abcdef0123"
	for _, c := range []struct {
		name string
		in   []debug.BuildSetting
		want string
	}{
		{"none", nil, ""},
		{"clean", []debug.BuildSetting{{Key: "vcs.revision", Value: rev}, {Key: "vcs.modified", Value: "false"}}, "0123456789ab"},
		{"modified", []debug.BuildSetting{{Key: "vcs.revision", Value: rev}, {Key: "vcs.modified", Value: "true"}}, ""},
		{"tags", []debug.BuildSetting{{Key: "-tags", Value: "faults"}, {Key: "vcs.revision", Value: rev}, {Key: "vcs.modified", Value: "false"}}, ""},
	} {
		if diff := cmp.Diff(c.want, revision(c.in)); diff != "" {
			t.Errorf("%s: %s", c.name, diff)
		}
	}
	build, err := Build()
	if err != nil || !strings.HasPrefix(build, Version+"+") {
		t.Errorf("Build = %q, %v", build, err)
	}
}

// checked runs --check of a process with a Verify function.
func checked(t *testing.T, verify error, args ...string) (said string, err error) {
	t.Helper()
	cmd := Command(Spec{
		Use: "test", Settings: &required{},
		Verify: func(_ context.Context, w io.Writer) error {
			fmt.Fprintln(w, "warning  routes.yaml:1: odd")
			return verify
		},
		Run: func(context.Context, *Process) error {
			t.Error("the process ran")
			return nil
		},
	})
	cmd.SilenceErrors, cmd.SilenceUsage = true, true
	var out strings.Builder
	cmd.SetOut(&out)
	cmd.SetArgs(append([]string{"--check"}, args...))
	err = cmd.ExecuteContext(t.Context())
	return out.String(), err
}

func TestCheck(t *testing.T) {
	said, err := checked(t, nil, "--data", "d")
	if want := "warning  routes.yaml:1: odd\nok\n"; err != nil || said != want {
		t.Errorf("--check printed %q, %v, want %q", said, err, want)
	}
	t.Setenv("MESHLOG_DTA", "x")
	t.Setenv("MESHLOG_DRAIN", "1s") // a setting of another process
	path := settingsFile(t, "log-level: loud\nlogform: json\n")
	said, err = checked(t, errors.Join(Invalid("admin", "in use"), errors.New("tls.pem: broken")), "--settings", path, "--admin", "here")
	if !errors.As(err, new(*UsageError)) {
		t.Fatalf("--check = %v, want a UsageError", err)
	}
	want := `settings PATH:2: logform: no such setting; did you mean log-format?
--data is missing: give a directory; the process creates it if necessary
--admin here: want HOST:PORT
settings PATH:1: log-level: "loud": no level "loud": want debug, info, warn or error, or COMPONENT=LEVEL
--admin here: in use
tls.pem: broken`
	if diff := cmp.Diff(want, strings.ReplaceAll(err.Error(), path, "PATH")); diff != "" {
		t.Error(diff)
	}
	want = `warning  environment: MESHLOG_DTA is not a setting of this process; did you mean MESHLOG_DATA?
warning  environment: MESHLOG_DRAIN is not a setting of this process
warning  routes.yaml:1: odd
`
	if diff := cmp.Diff(want, said); diff != "" {
		t.Error(diff)
	}
}

func TestVerifyData(t *testing.T) {
	dir := t.TempDir()
	file := settingsFile(t, "")
	for path, want := range map[string]string{
		dir:                            "",
		dir + "/new/deep":              "",
		file:                           "is not a directory",
		file + "/x":                    "not a directory",
		"/proc/self/fdinfo":            "cannot write in /proc/self/fdinfo",
		"/proc/self/fdinfo/new/deeper": "cannot write in /proc/self/fdinfo",
	} {
		err := VerifyData(path)
		if want == "" && err != nil || want != "" && (err == nil || !strings.Contains(err.Error(), want)) {
			t.Errorf("VerifyData(%s) = %v, want %q", path, err, want)
		}
	}
	if left, err := os.ReadDir(dir); err != nil || len(left) > 0 {
		t.Errorf("left behind: %v, %v", left, err)
	}
}
