package dns

import "testing"

// SetPort makes the servers of resolv.conf, whose port is always 53, have another one.
func SetPort(t *testing.T, port string) {
	t.Helper()
	before := upstreamPort
	upstreamPort = port
	t.Cleanup(func() { upstreamPort = before })
}
