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
	// backdated is how long before it is issued a certificate begins at most (CA-7).
	backdated = 2 * time.Minute
)

// Part returns which part of its time a certificate has had: 0 when it was issued, 1 at
// its end. It is 0 for a certificate whose time is not known. When it was issued is not in
// a certificate: it counts as backdated, so that one of a few minutes is not late too early.
func (t Term) Part(now time.Time) float64 {
	lasts := t.Ends.Sub(t.Begins) - backdated
	if t.Begins.IsZero() || lasts <= 0 {
		return 0
	}
	return 1 - float64(t.Ends.Sub(now))/float64(lasts)
}

// Ended reports whether the certificate has ended.
func (t Term) Ended(now time.Time) bool { return !t.Ends.IsZero() && !now.Before(t.Ends) }

// Overdue reports whether the certificate has less than a quarter of its time left though
// its holder should have renewed it: the connection began when that was due, and shows the
// old one all the same.
func (t Term) Overdue(now time.Time) bool {
	return t.Part(now) > lateAt && t.Part(t.Shown) > renewedAt
}
