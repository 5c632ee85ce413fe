package store

import "time"

// Retention selects the versions that a store keeps. It always keeps the latest.
type Retention struct {
	// Versions is the number of versions, the latest included; 0: any number.
	Versions int
	// Age is the largest distance to the latest version, by the times of their
	// records; 0: any age.
	Age time.Duration
}

// Keeps reports whether r keeps a version with this number of newer versions,
// whose record is this much older than the record of the latest one.
func (r Retention) Keeps(newer int, behind time.Duration) bool {
	switch {
	case newer == 0:
		return true
	case r.Versions > 0 && newer >= r.Versions:
		return false
	}
	return r.Age == 0 || behind <= r.Age
}
