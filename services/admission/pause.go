package admission

import (
	"fmt"
	"time"

	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
)

// Annotations of a ValidatingWebhookConfiguration that an operator has paused.
const (
	pausedBy     = "meshlog.dev/paused-by"
	pausedAt     = "meshlog.dev/paused-at"
	pausedReason = "meshlog.dev/paused-reason"
)

// Pause lets the API server store objects that the webhook cannot check, and notes who
// wanted that, and why. It lasts until Resume. An answer of the webhook still counts.
func Pause(c *admissionregistrationv1.ValidatingWebhookConfiguration, by, reason string, at time.Time) {
	if c.Annotations == nil {
		c.Annotations = map[string]string{}
	}
	c.Annotations[pausedBy], c.Annotations[pausedAt], c.Annotations[pausedReason] = by, at.UTC().Format(time.RFC3339), reason
	ignore := admissionregistrationv1.Ignore
	for i := range c.Webhooks {
		c.Webhooks[i].FailurePolicy = &ignore
	}
}

// Resume ends a pause. The API server stores what the webhook cannot check until the
// webhook has refused an invalid object again.
func Resume(c *admissionregistrationv1.ValidatingWebhookConfiguration) {
	for _, name := range []string{pausedBy, pausedAt, pausedReason} {
		delete(c.Annotations, name)
	}
}

// Paused says who paused the webhook, since when, and why; empty: it is not paused.
func Paused(c *admissionregistrationv1.ValidatingWebhookConfiguration) string {
	by, paused := c.Annotations[pausedBy]
	if !paused {
		return ""
	}
	return fmt.Sprintf("paused by %s at %s: %s", by, c.Annotations[pausedAt], c.Annotations[pausedReason])
}
