package cli

import (
	"bytes"
	"encoding/json"
	"errors"
	"strings"
	"testing"
	"time"

	"meshlog.dev/services/internal/process"
	"meshlog.dev/services/operate/command"
	"meshlog.dev/services/operate/operatetest"
)

func TestMain(m *testing.M) { operatetest.Main(m) }

// mesh is a `meshlog up` that runs in this process.
type mesh struct{ *operatetest.Mesh }

func start(t *testing.T, files map[string]string) *mesh {
	t.Helper()
	return &mesh{operatetest.Start(t, files)}
}

// exitCode returns the code with which a process ends.
func exitCode(err error) int {
	var coded interface{ ExitCode() int }
	switch {
	case err == nil:
		return 0
	case errors.As(err, new(*process.UsageError)):
		return 2
	case errors.As(err, &coded):
		return coded.ExitCode()
	}
	return 1
}

// meshlogAt runs a command and returns its output.
func meshlogAt(t *testing.T, args ...string) (stdout, stderr string, err error) {
	t.Helper()
	cmd := New()
	cmd.SilenceErrors, cmd.SilenceUsage = true, true
	var out, errs bytes.Buffer
	cmd.SetArgs(args)
	cmd.SetOut(&out)
	cmd.SetErr(&errs)
	err = cmd.ExecuteContext(t.Context())
	return out.String(), errs.String(), err
}

// meshlog runs a command on the mesh. With into, it decodes its JSON.
func (m *mesh) meshlog(t *testing.T, into any, args ...string) (stdout, stderr string, err error) {
	t.Helper()
	args = append(args, "--data", m.Data)
	if into != nil {
		args = append(args, "-o", "json")
	}
	stdout, stderr, err = meshlogAt(t, args...)
	if into != nil && err == nil {
		if err := json.Unmarshal([]byte(stdout), into); err != nil {
			t.Fatalf("meshlog %s: %v in %s", strings.Join(args, " "), err, stdout)
		}
	}
	return stdout, stderr, err
}

// must runs a command that has to succeed.
func (m *mesh) must(t *testing.T, into any, args ...string) string {
	t.Helper()
	stdout, stderr, err := m.meshlog(t, into, args...)
	if err != nil {
		t.Fatalf("meshlog %s: %v\n%s%s", strings.Join(args, " "), err, stdout, stderr)
	}
	return stdout
}

// sources opens the sources as commands do.
func (m *mesh) sources(t *testing.T) *command.Sources {
	t.Helper()
	target := &command.Target{Data: m.Data, Bus: process.DefaultBus()}
	t.Cleanup(func() {
		if err := target.Close(); err != nil {
			t.Error(err)
		}
	})
	s, err := target.Sources(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// The fields of the commands' JSON that tests read. The decoder matches names in any
// case.
type (
	recordView struct {
		What   string
		Object *struct {
			Key    struct{ Name string }
			Origin string
			Spec   json.RawMessage
		}
		Overlay struct{ ID string }
	}
	changeView struct {
		Object, Cause, Change string
		Removed               bool
		Seq                   uint64
	}
	versionView struct {
		Version string
		Changes []changeView
	}
	diffView struct {
		Proxy   string
		Changes []changeView
	}
	diagnosticView struct{ Severity, Origin, Reason, Advice string }
	holdView       struct {
		ID, Source string
		Keys       int
	}
	approvedView struct {
		Version string
		Seq     uint64
	}
	proxyView struct {
		ID, Frontend string
		Types        []struct{ Type, Status string }
	}
	waitView struct {
		Reached bool
		Version string
	}
	configView struct {
		Types []struct {
			Type      string
			Resources []struct {
				Name, State string
				Config      json.RawMessage
			}
		}
	}
	verifyView struct {
		Holds     bool
		SameOther int
		Findings  []struct{ Verdict string }
	}
	keyEventView struct{ Effect string }
	statusView   struct {
		Leader, Head                string
		Sources, Frontends, Streams int
		Wrong                       []string
	}
	frozenKindView struct {
		Kind    string
		Objects int
	}
	sourceView struct {
		Source, Instance, State, Holder string
		Objects                         int
		Frozen, Synced                  bool
		FrozenKinds                     []frozenKindView
		Listed, Heard                   *time.Time
	}
	removeView struct {
		Objects, Approved []string
		Unserved          int
		Removed           bool
	}
)
