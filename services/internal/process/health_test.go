package process

import (
	"context"
	"errors"
	"io"
	"net"
	"strings"
	"testing"

	"github.com/spf13/pflag"
)

// required is a process that does not run without --data.
type required struct{ data string }

func (r *required) Flags(fs *pflag.FlagSet) { fs.StringVar(&r.data, "data", "", "") }

func (r *required) Check() error { return CheckData(r.data) }

// askProcess runs `test health` with further arguments.
func askProcess(t *testing.T, args ...string) (said string, err error) {
	t.Helper()
	cmd := Command(Spec{Use: "test", Settings: &required{}})
	cmd.SilenceErrors, cmd.SilenceUsage = true, true
	var out strings.Builder
	cmd.SetOut(&out)
	cmd.SetErr(io.Discard)
	cmd.SetArgs(append([]string{"health"}, args...))
	err = cmd.ExecuteContext(t.Context())
	return out.String(), err
}

func TestHealth(t *testing.T) {
	var ready error
	err := execute(t, Spec{Use: "test", Settings: none{}, Run: func(_ context.Context, p *Process) error {
		p.Admin.Ready("frontend", func() error { return ready })
		_, port, err := net.SplitHostPort(p.Admin.Addr())
		if err != nil {
			return err
		}
		everywhere := "0.0.0.0:" + port
		file := settingsFile(t, "admin: "+p.Admin.Addr()+"\ndata: /var/lib/meshlog\n")
		for _, args := range [][]string{
			{"--admin", p.Admin.Addr()},
			{"--admin", everywhere},
			{"--settings", file},
			{"--settings", file, "--data", "elsewhere"},
			{"--settings", file, "--live"},
		} {
			if said, err := askProcess(t, args...); err != nil || said != "ok\n" {
				t.Errorf("health %v = %q, %v", args, said, err)
			}
		}
		t.Setenv("MESHLOG_ADMIN", p.Admin.Addr())
		ready = errors.New("no version yet")
		if _, err := askProcess(t); err == nil || err.Error() != "not ready:\nfrontend: no version yet" {
			t.Errorf("health of a process that is not ready: %v", err)
		}
		if _, err := askProcess(t, "--live"); err != nil {
			t.Errorf("health --live of a process that is not ready: %v", err)
		}
		return nil
	}})
	if err != nil {
		t.Fatal(err)
	}
}

func TestHealthRefuses(t *testing.T) {
	gone, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	gone.Close()
	for _, c := range []struct {
		name  string
		args  []string
		usage bool
		want  string
	}{
		{"no server", []string{"--admin", gone.Addr().String()}, false, "no answer from " + gone.Addr().String() + ": dial tcp"},
		{"free port", []string{"--admin", "127.0.0.1:0"}, true, "the process took a free port"},
		{"no port", []string{"--admin", "here"}, true, `--admin "here": want HOST:PORT`},
		{"argument", []string{"x"}, true, `unexpected argument "x"`},
		{"settings", []string{"--settings", settingsFile(t, "dta: x\n")}, true, "dta: no such setting"},
	} {
		t.Run(c.name, func(t *testing.T) {
			_, err := askProcess(t, c.args...)
			if err == nil || !strings.Contains(err.Error(), c.want) {
				t.Fatalf("error %v does not say %q", err, c.want)
			}
			if errors.As(err, new(*UsageError)) != c.usage {
				t.Errorf("error %v is a usage error: %v, want %v", err, !c.usage, c.usage)
			}
		})
	}
}

func TestDialAddress(t *testing.T) {
	for listen, want := range map[string]string{
		"127.0.0.1:15014": "127.0.0.1:15014", ":15014": "127.0.0.1:15014", "0.0.0.0:15014": "127.0.0.1:15014",
		"[::]:15014": "[::1]:15014", "10.0.0.1:15014": "10.0.0.1:15014", "frontend-1:15014": "frontend-1:15014",
	} {
		if got, err := dialAddress(listen); err != nil || got != want {
			t.Errorf("dialAddress(%s) = %s, %v, want %s", listen, got, err, want)
		}
	}
}
