package apiserver

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/util/flowcontrol"
)

// WatchOver probes the API server until ctx is done. It returns an error if the
// API server has not answered for too long. Watches cannot detect that, because a
// dead connection and a hanging server look like an idle watch. WatchOver calls tell
// when the API server becomes unready or ready (nil); an unready API server may
// still serve.
func (c *Client) WatchOver(ctx context.Context, l Limits, tell func(unready error)) error {
	last := time.Now()
	told := ""
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
			return fmt.Errorf("the API server has not answered for %s: %w", now.Sub(last).Round(time.Second), err)
		case err == nil:
			last = now
			if text := fmt.Sprint(unready); text != told {
				told = text
				tell(unready)
			}
		}
	}
}

// ready returns err if the API server does not answer or rejects our credentials,
// and unready if it answers that it is not ready.
func (c *Client) ready(ctx context.Context, timeout time.Duration) (unready, err error) {
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	request := c.typed[corev1.SchemeGroupVersion].Get().AbsPath("/readyz").MaxRetries(0)
	err = request.Throttle(flowcontrol.NewFakeAlwaysRateLimiter()).Do(ctx).Error()
	var status apierrors.APIStatus
	switch {
	case apierrors.IsUnauthorized(err):
		return nil, c.Unreachable(err)
	case errors.As(err, &status) && status.Status().Code >= http.StatusInternalServerError:
		return fmt.Errorf("says that it is not ready: %s", failed(status.Status())), nil
	case err == nil, errors.As(err, &status): // 403 is an answer, too
		return nil, nil
	case errors.Is(err, context.DeadlineExceeded):
		return nil, fmt.Errorf("no answer within %s", timeout)
	}
	return nil, err
}

// Unreachable adds the address of the API server to an error, and explains
// rejected credentials.
func (c *Client) Unreachable(err error) error {
	if apierrors.IsUnauthorized(err) {
		err = errors.New("the API server does not accept these credentials (401): renew the token or certificate")
	}
	if strings.Contains(err.Error(), c.host) {
		return err
	}
	return fmt.Errorf("%s: %w", c.host, err)
}

// failed returns the failed checks of a readyz page, which client-go puts into the
// causes of its error.
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
