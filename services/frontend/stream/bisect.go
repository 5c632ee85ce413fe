package stream

// maxTrials bounds how many groups are tried before everything that is still
// suspected is held back.
const maxTrials = 64

// try holds suspects of a rejected response back, in halves that are sent again
// until the culprits are found: of whole types one after the other, leaving the
// other half as it was, of the others in responses of their own, at once (what
// is good in them is waited for).
func (s *Stream) bisect(w *watch, suspects []item) {
	half := (len(suspects) + 1) / 2
	groups := make([][]string, 2)
	for i, it := range suspects {
		s.holdBack(w, it, true)
		groups[i/half] = append(groups[i/half], it.name)
	}
	w.trials = append(groups, w.trials...)
	w.dirty = true
}

// nextTrial releases the next group to be sent, in a response of its own. Of a
// whole type that holds everything else as well, so it waits for the answer to
// the last one. It says whether there is such a group.
func (s *Stream) nextTrial(w *watch) bool {
	for len(w.trials) > 0 && (!w.whole || len(w.unanswered) == 0) {
		group := w.trials[0]
		if w.trials = w.trials[1:]; len(w.trials) == 0 {
			w.trials = nil
		}
		any := false
		for _, name := range group {
			h, held := w.heldBack[name]
			if !held || !h.trial {
				continue // its content has changed meanwhile
			}
			delete(w.heldBack, name)
			switch {
			case !w.covers(name):
				continue
			case w.whole:
				w.owed = true
			default:
				w.except(name).owed = true
			}
			any = true
		}
		if any {
			w.tried++
			return true
		}
	}
	return false
}
