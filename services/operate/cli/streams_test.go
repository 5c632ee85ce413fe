package cli

import (
	"strings"
	"testing"
)

// Settings without a flag stay, however often --apply is given, although the log is
// kept longer than the history from which its age is derived.
func TestStreams(t *testing.T) {
	m := start(t, nil)
	for _, step := range []struct {
		args []string
		want string
	}{
		{nil, "as they should be"},
		{[]string{"--history", "100h", "--apply"}, "MESHLOG_EVENTS"},
		{[]string{"--apply"}, "nothing to change"},
		{[]string{"--history", "100h"}, "as they should be"},
		{[]string{"--history", "200h"}, "150h0m0s  300h0m0s"},
	} {
		if got := m.must(t, nil, append([]string{"streams"}, step.args...)...); !strings.Contains(got, step.want) {
			t.Errorf("meshlog streams %s:\n%swant %q", strings.Join(step.args, " "), got, step.want)
		}
	}
}
