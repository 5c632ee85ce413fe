package stream

// maxTrials bounds how many groups are sent before every remaining suspect is
// held back.
const maxTrials = 64

// bisect holds back the suspects of a rejected response and sends them again in
// halves until the culprits are found. Whole types get one half after the
// other, so that the other stays as it was. Other types get both in responses
// of their own at once, because the client waits for the good ones.
func (s *Stream) bisect(w *watch, suspects []item) {
	half := (len(suspects) + 1) / 2
	groups := make([][]string, 2)
	for i, it := range suspects {
		s.holdBack(w, it, onTrial)
		if e := w.entries.change(it.name); e != nil {
			e.standing = unconfirmed
		}
		groups[i/half] = append(groups[i/half], it.name)
	}
	w.trials, w.trust = append(groups, w.trials...), searching
	w.touch()
}

// nextTrial releases the next group, to be sent in a response of its own, and
// reports whether there is one. A response of a whole type holds everything
// else too, so its group waits for the answer to the last response.
func (s *Stream) nextTrial(w *watch) bool {
	for len(w.trials) > 0 && (!w.whole || len(w.unanswered) == 0) {
		group := w.trials[0]
		if w.trials = w.trials[1:]; len(w.trials) == 0 {
			w.trials, w.trust = nil, tainted
		}
		any := false
		for _, name := range group {
			h, held := w.heldBack[name]
			if !held || h.verdict != onTrial {
				continue // its content changed
			}
			delete(w.heldBack, name)
			if e := w.entries.change(name); e != nil || w.covers(name) {
				w.except(name).owe()
				any = true
			}
		}
		if any {
			w.tried++
			return true
		}
	}
	return false
}
