package names

// Len returns how many sets are in use, as far as the garbage collector knows.
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
