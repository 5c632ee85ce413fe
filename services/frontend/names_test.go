package frontend_test

import (
	"bufio"
	"fmt"
	"log/slog"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"meshlog.dev/proto/ident"
	"meshlog.dev/services/frontend"
	. "meshlog.dev/services/mesh/meshtest"
)

// absent returns names that do not exist; other names for each i.
func absent(i, n int) (names []string) {
	for k := range n {
		names = append(names, fmt.Sprintf("absent-%d-%d", i, k))
	}
	return names
}

// The names that the clients of one address ask for may take so much memory in all.
// Those of a client that leaves make room. Equal sets of names count once, and names
// that exist little (XDS-1).
func TestNamesOfAddress(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		mesh := newMesh(t)
		var exist []string
		var changes []Change
		for i := range 500 {
			name := fmt.Sprint("c", i)
			exist = append(exist, name)
			changes = append(changes, Put(name, Cluster(name, 1)), Put(name+"-endpoints", Endpoints(name, 1)))
		}
		mesh.Publish(changes...)
		f := start(t, "f1", mesh, withLimits(func(l *frontend.Limits) { l.StreamsPerAddress = 5 })) // 80 KiB for absent names
		ask := func(id string, conn *grpc.ClientConn, names ...string) codes.Code {
			e := connect(t, conn, node(id, "web"))
			e.ask(ident.EDS, names...)
			_, err := e.stream.Recv()
			return status.Code(err)
		}
		first := f.dial(nil)
		for i := range 3 {
			if got := ask(fmt.Sprint("same-", i), first, exist...); got != codes.OK {
				t.Errorf("500 names that exist: %v", got)
			}
		}
		if bytes := f.counted("meshlog_frontend_name_bytes"); bytes < 500*2 || bytes > 500*64 {
			t.Errorf("equal sets of 500 names count as %v bytes", bytes)
		}
		if got := ask("absent-0", first, absent(0, 80)...); got != codes.OK {
			t.Errorf("80 names that do not exist: %v", got)
		}
		second := f.dial(nil)
		if got := ask("absent-1", second, absent(1, 80)...); got != codes.ResourceExhausted {
			t.Errorf("80 more: %v, want RESOURCE_EXHAUSTED", got)
		}
		if n := f.counted("meshlog_frontend_requests_refused_total"); n != 1 {
			t.Errorf("%v refused requests are counted, want 1", n)
		}
		_ = first.Close()
		synctest.Wait()
		if got := ask("absent-2", second, absent(1, 80)...); got != codes.OK {
			t.Errorf("after the others left: %v", got)
		}
		_ = second.Close()
		synctest.Wait()
		if bytes := f.counted("meshlog_frontend_name_bytes"); bytes != 0 {
			t.Errorf("%v bytes are counted without a stream", bytes)
		}
	})
}

// A client that resumes with versions of many resources that do not exist is refused
// as well (XDS-1).
func TestVersionsOfAddress(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := start(t, "f1", shop(t), withLimits(func(l *frontend.Limits) { l.StreamsPerAddress = 4 }))
		e := f.connectDelta(deltaADS, node("web-1", "web"))
		versions := map[string]string{}
		for _, name := range absent(0, 200) {
			versions[name] = "1"
		}
		e.has[ident.CDS] = versions
		e.ask(ident.CDS)
		if _, err := e.stream.Recv(); status.Code(err) != codes.ResourceExhausted {
			t.Errorf("got %v, want RESOURCE_EXHAUSTED", err)
		}
	})
}

// lines counts log lines by their messages.
type lines struct{ text strings.Builder }

func (l *lines) count() map[string]int {
	n := map[string]int{}
	for s := bufio.NewScanner(strings.NewReader(l.text.String())); s.Scan(); {
		_, message, _ := strings.Cut(s.Text(), "msg=")
		message, _, _ = strings.Cut(strings.TrimPrefix(message, `"`), `"`)
		n[message]++
	}
	return n
}

// However often clients are refused, come and go, or reject, the log has a bounded
// number of lines a second for each reason, with the number of those left out, and
// the metrics count all (XDS-1, XDS-2, XDS-4).
func TestLogIsBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var log lines
		f := start(t, "f1", shop(t), withLimits(func(l *frontend.Limits) { l.StreamsPerAddress = 50 }), func(c *frontend.Config) {
			c.Logger = slog.New(slog.NewTextHandler(&log.text, nil))
		})
		conn := f.dial(nil)
		began := time.Now()
		const clients = 100
		for i := range clients {
			s := openRaw(t, conn, ads)
			s.send(rawRequest(rawNode(), field(nil, 3, []byte("\xff"))))
			if err := s.ended(); status.Code(err) != codes.InvalidArgument {
				t.Fatal(err)
			}
			e := connect(t, conn, node(fmt.Sprint("web-", i), "web"))
			e.ask(ident.CDS)
			e.nack(e.receive(), "rejected")
			if err := e.stream.CloseSend(); err != nil {
				t.Fatal(err)
			}
			for err := error(nil); err == nil; _, err = e.stream.Recv() {
			}
		}
		if time.Since(began) >= time.Second {
			t.Fatal("the clients took longer than a second of the test's clock")
		}
		for message, most := range map[string]int{
			"refusing a request: malformed": 1, "the proxy rejected a response": 1, "proxy connected": 10, "proxy disconnected": 10,
		} {
			if n := log.count()[message]; n != most {
				t.Errorf("%q is logged %d times, want %d", message, n, most)
			}
		}
		<-time.After(time.Second)
		s := openRaw(t, conn, ads)
		s.send(rawRequest(rawNode(), field(nil, 3, []byte("\xff"))))
		_ = s.ended()
		if want := fmt.Sprintf("left_out=%d", clients-1); !strings.Contains(log.text.String(), want) {
			t.Errorf("the log lacks %s:\n%s", want, log.text.String())
		}
		for metric, want := range map[string]float64{
			"meshlog_frontend_requests_refused_total": clients + 1, "pilot_total_xds_rejects": clients,
		} {
			if got := f.counted(metric); got != want {
				t.Errorf("%s is %v, want %v", metric, got, want)
			}
		}
	})
}

// A connection that ends without a stream is counted (XDS-2).
func TestUnusedConnections(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := start(t, "f1", shop(t))
		for range 3 {
			c, err := f.pipes.dial(t.Context(), nil)
			if err != nil {
				t.Fatal(err)
			}
			_, _ = c.Write([]byte("GET / HTTP/1.1\r\nHost: frontend\r\n\r\n")) // it is closed meanwhile
			_ = c.Close()
		}
		e := f.connect(node("web-1", "web"))
		e.ask(ident.CDS)
		e.ack(e.receive())
		synctest.Wait()
		if n := f.counted("meshlog_frontend_connections_unused_total"); n != 3 {
			t.Errorf("%v unused connections are counted, want 3", n)
		}
	})
}
