package envoytest

import (
	"context"
	"net"
	"testing"
	"time"

	bootstrapv3 "github.com/envoyproxy/go-control-plane/envoy/config/bootstrap/v3"
	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	listenerv3 "github.com/envoyproxy/go-control-plane/envoy/config/listener/v3"

	"meshlog.dev/deploy/testkit/program"
)

// Run runs an Envoy with listeners on unix sockets until the test ends, and waits until
// each accepts connections.
func Run(t testing.TB, dir string, listeners []*listenerv3.Listener) {
	t.Helper()
	config := Write(t, dir, &bootstrapv3.Bootstrap{
		Node: &corev3.Node{Id: "attacked", Cluster: "attacked"}, StaticResources: &bootstrapv3.Bootstrap_StaticResources{Listeners: listeners},
	})
	envoy, err := program.Start("envoy", dir, []string{Envoy(t), "-c", config, "--disable-hot-restart", "--concurrency", "1", "-l", "warning"})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(envoy.Kill)
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	for _, l := range listeners {
		if err := envoy.UntilAlive(ctx, "listener "+l.GetName(), func(context.Context) error {
			c, err := net.Dial("unix", l.GetAddress().GetPipe().GetPath())
			if err != nil {
				return err
			}
			return c.Close()
		}); err != nil {
			t.Fatalf("%v\n%s", err, envoy.Tail(10))
		}
	}
}
