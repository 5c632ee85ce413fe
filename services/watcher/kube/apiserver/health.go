package apiserver

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// WatchOver asks the API server whether it is there until ctx is done, or until
// it has not answered for too long: that is the error. Watches alone do not tell:
// a connection that is dead, and a server that hangs, look like one where nothing
// happens. That it answers that it is not ready, or is again, is told: it may
// serve all the same.
func (c *Client) WatchOver(ctx context.Context, l Limits, tell func(unready error)) error {
	last := time.Now()
	said := ""
	ticker := time.NewTicker(l.Probe)
	defer ticker.Stop()
	for {
		select {
		case <-ticker.C:
		case <-ctx.Done():
			return nil
		}
		unready, err := c.ready(ctx, l.Probe)
		now := time.Now()
		switch {
		case ctx.Err() != nil:
		case err != nil && now.Sub(last) >= l.Down:
			return fmt.Errorf("the API server could not be asked for %s: %w", now.Sub(last).Round(time.Second), err)
		case err == nil:
			last = now
			if text := fmt.Sprint(unready); text != said {
				said = text
				tell(unready)
			}
		}
	}
}

// ready is an error if the API server does not answer, or not us; unready says
// that it answers that it is not ready.
func (c *Client) ready(ctx context.Context, timeout time.Duration) (unready, err error) {
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	err = c.probe.Get().AbsPath("/readyz").MaxRetries(0).Do(ctx).Error()
	var status apierrors.APIStatus
	switch {
	case apierrors.IsUnauthorized(err):
		return nil, c.Unreachable(err)
	case errors.As(err, &status) && status.Status().Code >= http.StatusInternalServerError:
		return fmt.Errorf("says that it is not ready: %s", failed(status.Status())), nil
	case err == nil, errors.As(err, &status): // whoever may not ask was answered
		return nil, nil
	case errors.Is(err, context.DeadlineExceeded):
		return nil, fmt.Errorf("no answer within %s", timeout)
	}
	return nil, err
}

// Unreachable is the error of a request by which the API server was to be reached:
// err, with where that is, and in plain words where it refuses who asks.
func (c *Client) Unreachable(err error) error {
	if apierrors.IsUnauthorized(err) {
		err = errors.New("it does not accept these credentials (401): renew the token or certificate")
	}
	if strings.Contains(err.Error(), c.host) {
		return err
	}
	return fmt.Errorf("%s: %w", c.host, err)
}

// failed are the checks that a readyz page says have failed: it is the cause of
// the error that client-go makes of it.
func failed(status metav1.Status) string {
	var checks []string
	if status.Details != nil {
		for _, cause := range status.Details.Causes {
			for line := range strings.Lines(cause.Message) {
				if check, ok := strings.CutPrefix(strings.TrimSpace(line), "[-]"); ok {
					check, _, _ = strings.Cut(check, " ")
					checks = append(checks, check)
				}
			}
		}
	}
	if len(checks) == 0 {
		return fmt.Sprintf("it answers %d", status.Code)
	}
	return strings.Join(checks, ", ")
}
