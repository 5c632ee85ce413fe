package file

import "time"

// NewPatient returns a watcher that believes nothing is gone before so long.
func NewPatient(dir string, settle time.Duration) *Watcher {
	return &Watcher{dir: dir, settle: settle}
}
