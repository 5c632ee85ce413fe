package names

// Len returns the number of sets that the garbage collector has not found unused.
func (t *Table) Len() int {
	t.sets.mu.Lock()
	defer t.sets.mu.Unlock()
	n := 0
	for _, p := range t.sets.values {
		if p.Value() != nil {
			n++
		}
	}
	return n
}
