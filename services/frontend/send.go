package frontend

import (
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"meshlog.dev/services/frontend/stream"
	"meshlog.dev/services/internal/failpoint"
)

// changed says that there is another view. It does not block.
func (c *conn) changed() {
	c.behind.Store(true)
	c.wake()
}

// wake has the stream looked at by a goroutine of its own.
func (c *conn) wake() {
	if c.turn.take() {
		go c.transmit()
	}
}

// look is wake by a goroutine that has time; it does not wait for the client.
func (c *conn) sendIfIdle() {
	if c.turn.take() {
		c.sendElsewhere()
	}
}

// work looks for what is to be sent until nothing has come meanwhile; who calls
// it has the turn. It leaves the turn to another goroutine that sends.
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

// send sends what is to be sent until there is nothing; who calls it has the
// turn.
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

// failed ends the stream, and gives the turn back.
func (c *conn) failed(err error) {
	c.end(err)
	for c.turn.keep() {
	}
}

// next makes the next response ready, if there is one.
func (c *conn) next() bool {
	now := time.Now()
	r, ok, news := c.nextResponse(now)
	if news {
		c.server.cfg.OnChange(false)
	}
	if ok {
		c.out, c.ready = response{r, c.server.cfg.ID}, true
	}
	return ok
}

func (c *conn) nextResponse(now time.Time) (r stream.Response, ok, news bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.state == nil {
		return r, false, false
	}
	if c.behind.Swap(false) {
		c.update(now)
	}
	if r, ok = c.state.Next(now); ok {
		c.responded = true
		c.subscribe() // CDS may have been sent unasked
	} else {
		c.askHead()
		c.setAlarm(now)
	}
	news, c.toReport = c.toReport, false
	return r, ok, news
}

// setAlarm has the stream looked at again when it is time; mu is held.
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
	case at.Equal(c.alarmAt) && (at.IsZero() || now.Before(at)): // as it is
	case at.IsZero():
		c.alarm.Stop()
	default:
		c.alarm.Reset(max(0, at.Sub(now)))
	}
	c.alarmAt = at
}

// sendOut gives what is ready to the transport. It takes as long as the client
// takes for what came before, and the stream is ended if that is too long.
func (c *conn) sendOut() error {
	m, t, size, cause := c.server.cfg.Metrics, c.out.Type, 0, c.out.Cause
	for _, resource := range c.out.Resources {
		size += resource.Size()
	}
	start, by := time.Now(), c.server.recent.find(cause)
	if by != nil {
		by.trace.response(t, c.proxy.ID) // before its answer may come
	}
	c.limit.Reset(c.server.cfg.Limits.SendTimeout)
	failpoint.At(failpoint.FrontendPush)
	err := c.grpc.SendMsg(&c.out)
	c.limit.Stop()
	c.out, c.ready = response{}, false
	if err != nil {
		return err
	}
	m.sent(t, size, start, by)
	return nil
}

// tooSlow ends the stream of a client that does not take a response: grpc
// cannot take one back.
func (c *conn) tooSlow() {
	c.server.cfg.Metrics.sendTimeout.Inc()
	c.server.streamLog.Warn("the proxy does not take a response; its stream is ended", "proxy", c.proxy.ID, "limit", c.server.cfg.Limits.SendTimeout)
	c.end(status.Errorf(codes.Unavailable, "the client did not take a response in %s", c.server.cfg.Limits.SendTimeout))
}

// update takes in what is served now; mu is held.
func (c *conn) update(now time.Time) {
	view := c.client.View()
	c.state.Update(now, view)
	c.reached(now, view.Version)
}
