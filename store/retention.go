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

// Keeps reports whether a version is kept when so many newer ones are there, and
// its record is so far behind that of the latest.
func (r Retention) Keeps(newer int, behind time.Duration) bool {
	switch {
	case newer == 0:
		return true
	case r.Versions > 0 && newer >= r.Versions:
		return false
	}
	return r.Age == 0 || behind <= r.Age
}
