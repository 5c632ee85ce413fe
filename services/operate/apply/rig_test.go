package apply

import (
	"errors"
	"log/slog"
	"path/filepath"
	"testing"

	"meshlog.dev/events/natslog"
	"meshlog.dev/services/internal/bus"
	"meshlog.dev/services/internal/process"
	"meshlog.dev/services/operate/operatetest"
	"meshlog.dev/store/natsfeed"
)

func asCode(err error, into *interface{ ExitCode() int }) bool { return errors.As(err, into) }

func asUsage(err error, into **process.UsageError) bool { return errors.As(err, into) }

// connect connects to the bus of a mesh as an operator.
func connect(t *testing.T, m *operatetest.Mesh) *bus.Conn {
	t.Helper()
	nc, err := bus.Connect(bus.ConnectOptions{
		URL: filepath.Join(m.Data, bus.FileName), Role: bus.Operator(), Name: "test", Log: slog.New(slog.DiscardHandler),
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(nc.Close)
	return nc
}

func openLog(t *testing.T, m *operatetest.Mesh) *natslog.Log {
	t.Helper()
	log, err := natslog.Open(t.Context(), connect(t, m), natslog.Options{Domain: process.DefaultDomain})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { log.Close() })
	return log
}

func openChain(t *testing.T, m *operatetest.Mesh) *natsfeed.Feed {
	t.Helper()
	chain, err := natsfeed.Open(t.Context(), connect(t, m), natsfeed.Options{Domain: process.DefaultDomain})
	if err != nil {
		t.Fatal(err)
	}
	return chain
}

// versions returns how many versions the chain has.
func versions(t *testing.T, m *operatetest.Mesh) (n int) {
	t.Helper()
	for _, err := range openChain(t, m).History(t.Context()) {
		if err != nil {
			t.Fatal(err)
		}
		n++
	}
	return n
}
