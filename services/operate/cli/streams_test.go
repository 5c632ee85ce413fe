package cli

import (
	"strings"
	"testing"
)

// --apply changes no setting without a flag, however often it is given. The log's age
// is derived from the history and longer than it.
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
		{[]string{"--audit-mib", "64", "--audit-history", "240h"}, "MESHLOG_AUDIT  max_msgs_per_subject  262144      16384"},
		{[]string{"--audit-mib", "64", "--audit-history", "240h", "--apply"}, "MESHLOG_AUDIT"},
		{nil, "All 6 streams are as they should be"},
	} {
		if got := m.must(t, nil, append([]string{"streams"}, step.args...)...); !strings.Contains(got, step.want) {
			t.Errorf("meshlog streams %s:\n%swant %q", strings.Join(step.args, " "), got, step.want)
		}
	}
}
