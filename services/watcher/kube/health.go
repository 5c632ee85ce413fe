package kube

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"time"
)

// probe asks the API server whether it is there until ctx is done, or until it
// has not answered for too long: that is the error. Watches alone do not tell: a
// connection that is dead, and a server that hangs, look like one where nothing
// happens.
func (c *client) watchOver(ctx context.Context, l limits) error {
	last := time.Now()
	ticker := time.NewTicker(l.probe)
	defer ticker.Stop()
	for {
		select {
		case <-ticker.C:
		case <-ctx.Done():
			return nil
		}
		err := c.ready(ctx, l.probe)
		now := time.Now()
		switch {
		case err == nil:
			last = now
		case ctx.Err() == nil && now.Sub(last) >= l.down:
			return fmt.Errorf("the API server has not been ready for %s: %w", now.Sub(last).Round(time.Second), err)
		}
	}
}

// ready is an error if the API server does not answer, or says that it is not
// ready. Whoever may not ask was answered.
func (c *client) ready(ctx context.Context, timeout time.Duration) error {
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	code := 0
	err := c.probe.Get().AbsPath("/readyz").MaxRetries(0).Do(ctx).StatusCode(&code).Error()
	switch {
	case code == http.StatusUnauthorized:
		return errors.New("it does not accept these credentials")
	case code != 0 && code < http.StatusInternalServerError:
		return nil
	case errors.Is(err, context.DeadlineExceeded):
		return fmt.Errorf("no answer within %s", timeout)
	case code >= http.StatusInternalServerError:
		return fmt.Errorf("it answers %d", code)
	}
	return err
}
