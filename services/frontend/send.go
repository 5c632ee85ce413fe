package frontend

import (
	"math/rand/v2"
	"sync"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"meshlog.dev/proto/ident"
	"meshlog.dev/services/frontend/stream"
	"meshlog.dev/services/internal/failpoint"
	"meshlog.dev/services/mesh/xds"
	"meshlog.dev/services/mesh/xds/secret"
)

// changed notes that there is another view and wakes the stream. It does not
// block.
func (c *conn) changed() {
	c.behind.Store(true)
	c.wake()
}

// keysMoved notes that the keys of Secrets have come, or are gone, and wakes the stream.
// It does not block.
func (c *conn) keysMoved(secrets []string) {
	c.keys.Lock()
	c.keys.of = append(c.keys.of, secrets...)
	c.keys.Unlock()
	c.wake()
}

// moved are the Secrets whose keys have come, or are gone, and that the stream has not
// looked at yet.
type moved struct {
	sync.Mutex
	of []string
}

func (m *moved) take() []string {
	m.Lock()
	defer m.Unlock()
	of := m.of
	m.of = nil
	return of
}

// wake makes a goroutine of its own send what is due.
func (c *conn) wake() {
	if c.turn.take() {
		go c.transmit()
	}
}

// sendIfIdle is wake for a goroutine that may compute the next response itself;
// it does not wait for the client.
func (c *conn) sendIfIdle() {
	if c.turn.take() {
		c.sendElsewhere()
	}
}

// sendElsewhere computes what is due and leaves sending, with the turn, to
// another goroutine. The caller has the turn.
func (c *conn) sendElsewhere() {
	defer c.server.recoverPanic(c.failed)
	for {
		if c.next() {
			go c.transmit()
			return
		}
		if !c.turn.keep() {
			return
		}
	}
}

// send sends until nothing is due. The caller has the turn.
func (c *conn) send() {
	defer c.server.recoverPanic(c.failed)
	for {
		for c.ready || c.next() {
			if err := c.sendOut(); err != nil {
				c.failed(err)
				return
			}
		}
		if !c.turn.keep() {
			return
		}
	}
}

// failed ends the stream and gives the turn back.
func (c *conn) failed(err error) {
	c.end(err)
	for c.turn.keep() {
	}
}

// next makes the next response ready, if one is due.
func (c *conn) next() bool {
	now := time.Now()
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.state == nil {
		return false
	}
	if c.behind.Swap(false) {
		c.state.Update(now, c.client.View())
	}
	if moved := c.keys.take(); len(moved) > 0 {
		c.state.KeysChanged(moved)
	}
	r, ok := c.state.Next(now)
	_ = c.payWaiting() // not more than before
	if ok {
		c.readAnew(&r)
		c.out, c.ready, c.responded = response{r, c.server.cfg.ID, c.server.cfg.Label}, true, true
		c.subscribe() // CDS may be sent without a request
	} else {
		c.askHead()
		c.setAlarm(now)
	}
	if c.toReport {
		c.toReport = false
		c.server.cfg.OnChange(false)
	}
	return ok
}

// readAnew makes an Envoy that is sent a Secret in files read them (SDS-14).
func (c *conn) readAnew(r *stream.Response) {
	if r.Type != ident.SDS || len(r.Resources) != 1 || !secret.InFiles(r.Resources[0].Name) {
		return
	}
	if s, err := r.Resources[0].Anew(uint16(rand.Uint32())); err == nil { //nolint:gosec // any number will do
		r.Resources, r.Memo = []*xds.Resource{s}, nil
	}
}

// setAlarm sets the timer for when the stream must be looked at again; mu is
// held.
func (c *conn) setAlarm(now time.Time) {
	at := c.state.Wake()
	if c.inFirstAnswers {
		if until := c.since.Add(firstAnswersFor); !now.Before(until) {
			c.endFirstAnswers()
		} else if at.IsZero() || until.Before(at) {
			at = until
		}
	}
	switch {
	case at.Equal(c.alarmAt) && (at.IsZero() || now.Before(at)): // already set
	case at.IsZero():
		c.alarm.Stop()
	default:
		c.alarm.Reset(max(0, at.Sub(now)))
	}
	c.alarmAt = at
}

// sendOut gives the ready response to the transport. It blocks until the client
// accepts the earlier ones; the stream ends if that takes too long.
func (c *conn) sendOut() error {
	m, t, served, size, cause := c.server.cfg.Metrics, c.out.Type, c.out.Unserved == "", 0, c.out.Cause
	for _, resource := range c.out.Resources {
		size += resource.Size()
	}
	start, by := time.Now(), c.server.recent.find(cause)
	if by != nil {
		by.trace.response(t, c.proxy.ID) // before the client can answer
	}
	c.limit.Reset(c.server.cfg.Limits.SendTimeout)
	failpoint.At(failpoint.FrontendPush)
	var secrets []*xds.Resource
	if t == ident.SDS && served {
		secrets = c.out.Resources
	}
	err := c.grpc.SendMsg(&c.out)
	c.limit.Stop()
	c.out, c.ready = response{}, false
	if err != nil {
		return err
	}
	if served {
		m.sent(t, size, start, by)
	}
	for _, resource := range secrets {
		c.server.secrets.sent(c, resource)
	}
	return nil
}

// tooSlow ends the stream of a client that does not accept a response: gRPC
// cannot take one back.
func (c *conn) tooSlow() {
	c.server.cfg.Metrics.sendTimeout.Inc()
	c.server.streamLog.Warn("the proxy does not accept a response; ending its stream", "proxy", c.proxy.ID, "limit", c.server.cfg.Limits.SendTimeout)
	c.end(status.Errorf(codes.Unavailable, "the client did not accept a response in %s", c.server.cfg.Limits.SendTimeout))
}
