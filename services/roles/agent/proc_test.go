package agent_test

import (
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"strings"
)

func dial(dir string) (net.Conn, error) { return net.Dial("unix", filepath.Join(dir, "sds.sock")) }

// pid returns the process of an epoch of this agent's Envoy, or 0.
func (r *running) pid(epoch int) int {
	want := fmt.Sprintf("%s/envoy-%d.json", r.settings.Dir, epoch)
	procs, err := filepath.Glob("/proc/[0-9]*/cmdline")
	must(r.T, err)
	for _, p := range procs {
		b, err := os.ReadFile(p)
		if err == nil && strings.Contains(string(b), want) {
			n, err := strconv.Atoi(filepath.Base(filepath.Dir(p)))
			must(r.T, err)
			return n
		}
	}
	return 0
}

// nodeID returns the id of the agent's node.
func nodeID(ips []string) string {
	return "sidecar~" + ips[0] + "~cart-1.shop~shop.svc.cluster.local"
}
