package certificates

import (
	"context"
	"fmt"
	"time"
)

// The clocks of the CA, of this host and of peers can differ (T-4), and the agent cannot
// know which one is wrong. It uses a certificate that is not valid by the clock of this
// host only while it has no valid one, because peers judge it by their clocks.

// longestWait is how long the agent waits without a look at the clock: a timer does not
// count the time in which the host was suspended.
const longestWait = time.Minute

// judge sets until, and returns an error if the certificate was not valid when the agent
// asked for it, by the clock of this host. ttl is the time that the agent asked for.
func (i *Identity) judge(asked time.Time, ttl time.Duration) error {
	from, ends := i.Certificate.Leaf.NotBefore, i.Ends()
	if i.validAt(asked) {
		i.until = ends
		return nil
	}
	lasts := ends.Sub(from)
	if ttl > 0 {
		lasts = min(lasts, ttl)
	}
	i.until = asked.Add(lasts)
	return fmt.Errorf("the certificate of the CA is valid from %s to %s, and here it is %s: set the clocks right; a peer refuses a certificate that is not valid by its clock",
		stamp(from), stamp(ends), stamp(asked))
}

// validAt says whether there is a certificate that is valid by the clock of this host.
func (i *Identity) validAt(now time.Time) bool {
	return i != nil && !now.Before(i.Certificate.Leaf.NotBefore) && now.Before(i.Ends())
}

// hold waits until a new certificate is valid by the clock of this host, while the one
// before is. It returns an error if that one ends first, and if the roots change.
func (k *Keeper) hold(ctx context.Context, before, next *Identity, odd error) error {
	from := next.Certificate.Leaf.NotBefore
	if !time.Now().Before(from) || !from.Before(before.until) {
		return odd
	}
	k.mu.Lock()
	k.trouble, k.renewAt = odd, from
	k.mu.Unlock()
	k.Log.Warn("the certificate before is used until the new one is valid", "error", odd)
	if err := k.wait(ctx); err != nil {
		return err
	}
	if time.Now().Before(from) { // the roots have changed
		return odd
	}
	return nil
}

func stamp(t time.Time) string { return t.UTC().Format(time.RFC3339) }
