package spiffe

import "time"

// Term is the time of a certificate that a connection shows.
type Term struct {
	Begins, Ends time.Time
	// Shown is when the connection began. The holder may have got another certificate
	// since, which the connection does not show.
	Shown time.Time
}

// Holders renew a certificate when half of its time is left, give or take a tenth, and a
// renewal is late when a quarter is left (CA-8).
const (
	renewedAt = .6 // the latest part of the time at which a holder renews
	lateAt    = .75
)

// Part returns which part of its time a certificate has had: 0 at its begin, 1 at its
// end. It is 0 for a certificate whose time is not known.
func (t Term) Part(now time.Time) float64 {
	if t.Begins.IsZero() || !t.Begins.Before(t.Ends) {
		return 0
	}
	return float64(now.Sub(t.Begins)) / float64(t.Ends.Sub(t.Begins))
}

// Ended reports whether the certificate has ended.
func (t Term) Ended(now time.Time) bool { return !t.Ends.IsZero() && !now.Before(t.Ends) }

// Overdue reports whether the certificate has less than a quarter of its time left though
// its holder should have renewed it: the connection began when that was due, and shows the
// old one all the same.
func (t Term) Overdue(now time.Time) bool {
	return t.Part(now) > lateAt && t.Part(t.Shown) > renewedAt
}
