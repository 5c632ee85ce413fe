package file

import "time"

// NewPatient returns a watcher that reports a missing file only after it was missing
// for settle.
func NewPatient(dir string, settle time.Duration) *Watcher {
	w := New(dir)
	w.settle = settle
	return w
}
