package memlog

import "meshlog.dev/events"

// Rewind drops the records after seq last and forgets their ids, like a restore
// from a backup. Like a restart of the server it renews the Generation.
func (l *Log) Rewind(last uint64) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if last < l.last() {
		keep := uint64(0)
		if last >= l.first {
			keep = last + 1 - l.first
		}
		l.drop(l.records[keep:])
		l.records = l.records[:keep]
		l.first = min(l.first, last+1)
	}
	l.generation++
	l.wake()
}

// Trim drops the records before seq first, as retention does.
func (l *Log) Trim(first uint64) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if first <= l.first {
		return
	}
	n := min(first-l.first, uint64(len(l.records)))
	l.drop(l.records[:n])
	l.records = l.records[n:]
	l.first += n
	l.wake()
}

// drop forgets the ids and sizes of records that the caller removes.
func (l *Log) drop(gone []stored) {
	for _, r := range gone {
		l.bytes -= len(r.raw.Data)
		if l.seen[r.id] == r.record.Seq {
			delete(l.seen, r.id)
		}
	}
}

// Reconnect renews the Generation.
func (l *Log) Reconnect() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.generation++
	l.wake()
}

// ExpireDedupe forgets the ids of all records: the log appends a retry again
// unless its fence prevents that.
func (l *Log) ExpireDedupe() {
	l.mu.Lock()
	defer l.mu.Unlock()
	clear(l.seen)
}

// SetMaxBytes limits the bytes of all records: the log refuses an event that
// does not fit with ErrFull, and drops none. 0 is no limit.
func (l *Log) SetMaxBytes(n int) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.maxBytes = n
}

// Bytes returns the size of all records.
func (l *Log) Bytes() int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.bytes
}

// AppendRaw appends any bytes under any subject, as a client with a key of its own
// can, and returns their Seq.
func (l *Log) AppendRaw(subject events.Subject, data []byte) uint64 {
	return l.appendRaw(events.Raw{Subject: subject, Data: data})
}

// AppendForeign appends bytes under a subject as a message that no publisher of
// meshlog sent, such as one that a server made, and returns their Seq.
func (l *Log) AppendForeign(subject events.Subject, data []byte) uint64 {
	return l.appendRaw(events.Raw{Subject: subject, Data: data, Refused: foreign})
}

// foreign is the Raw.Refused of AppendForeign.
const foreign = "no publisher of meshlog sent it"

func (l *Log) appendRaw(raw events.Raw) uint64 {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.store("", raw)
	return l.last()
}

// Acked returns the Seq that was last acknowledged under a follower's name.
func (l *Log) Acked(name string) uint64 {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.acked[name]
}

// Close ends the log and wakes its followers.
func (l *Log) Close() error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if !l.closed {
		l.closed = true
		l.wake()
	}
	return nil
}
