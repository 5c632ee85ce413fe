package events

import "fmt"

// Message is an event as a driver appends it to a log.
type Message struct {
	ID      string
	Subject Subject
	Data    []byte // as Encode returned it
}

// Messages encodes events for one append. The error is ErrInvalid, also if two
// events have one ID: a log would take the second for a retry of the first.
func Messages(events []Event) ([]Message, error) {
	messages := make([]Message, len(events))
	seen := make(map[string]bool, len(events))
	for i, e := range events {
		data, err := Encode(e)
		if err != nil {
			return nil, fmt.Errorf("%w: %w", ErrInvalid, err)
		}
		if seen[e.ID] {
			return nil, fmt.Errorf("%w: event %q occurs twice in one append", ErrInvalid, e.ID)
		}
		seen[e.ID] = true
		subject, err := SubjectOf(e)
		if err != nil {
			return nil, fmt.Errorf("%w: event %q: %w", ErrInvalid, e.ID, err)
		}
		messages[i] = Message{ID: e.ID, Subject: subject, Data: data}
	}
	return messages, nil
}

// BatchMessages is Messages for one Append: without an event the error is
// ErrInvalid, with more than MaxBatch it is ErrTooLarge.
func BatchMessages(batch []Event) ([]Message, error) {
	if len(batch) == 0 {
		return nil, fmt.Errorf("%w: the batch is empty", ErrInvalid)
	}
	if len(batch) > MaxBatch {
		return nil, fmt.Errorf("%w: the batch has %d events, at most %d are allowed", ErrTooLarge, len(batch), MaxBatch)
	}
	return Messages(batch)
}
