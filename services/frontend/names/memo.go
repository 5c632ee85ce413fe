package names

import "sync/atomic"

// Memo keeps what was made of a list that many streams are sent. The zero Memo
// is empty; it must not be copied.
type Memo struct {
	made [2]atomic.Value
}

// Do returns what is kept for the protocol, or what make makes, which is kept
// from then on; that is always of one type.
func (m *Memo) Do(delta bool, make func() any) any {
	slot := &m.made[0]
	if delta {
		slot = &m.made[1]
	}
	if v := slot.Load(); v != nil {
		return v
	}
	v := make()
	slot.CompareAndSwap(nil, v)
	return slot.Load()
}
