package store

import "time"

// Retention says which versions a store keeps. The latest is always kept.
type Retention struct {
	// Versions is how many, the latest included; 0: any number.
	Versions int
	// Age is how far behind the latest a version may lie, by the times of
	// their records; 0: any age.
	Age time.Duration
}

// Keeps says whether a version is kept when newer versions are there, of which
// latest is the last.
func (r Retention) Keeps(m *Manifest, newer int, latest *Manifest) bool {
	switch {
	case newer == 0:
		return true
	case r.Versions > 0 && newer >= r.Versions:
		return false
	case r.Age > 0 && latest.GetRecordTime().AsTime().Sub(m.GetRecordTime().AsTime()) > r.Age:
		return false
	}
	return true
}
