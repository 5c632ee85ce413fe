package builder

import "meshlog.dev/services/internal/model"

// NewGate returns the Gate that builds the PushContext as every frontend will.
// It builds on what it built before: one builder uses it.
func NewGate() Gate {
	var last *model.PushContext
	return func(w *model.World, changed []model.Key) ([]model.Diagnostic, error) {
		if last == nil {
			last = model.NewPushContext(w)
		} else {
			last, _ = last.Next(w, changed)
		}
		return last.Diagnostics(), nil
	}
}
