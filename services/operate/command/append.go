package command

import (
	"context"
	"crypto/rand"
	"fmt"
	"os/user"
	"time"

	"meshlog.dev/events"
	"meshlog.dev/proto/ident"
	"meshlog.dev/services/internal/bus"
)

// EventLog is a log that a command writes to.
type EventLog interface {
	events.Appender
	events.Reader
}

// NewEvent returns an event of an operator, with an id that no other event has.
func NewEvent(command string, body events.Body) events.Event {
	return events.Event{ID: command + "/" + rand.Text(), Observed: time.Now(), Actor: Operator(), Body: body}
}

// Operator returns the name of the user who runs the command.
func Operator() string {
	u, err := user.Current()
	if err != nil {
		return "operator"
	}
	return u.Username
}

// WaitFor waits until a version contains a record that was just appended, and
// returns that version.
func WaitFor(ctx context.Context, log events.Reader, fleet *bus.Fleet, seq uint64) (ident.Position, error) {
	at, err := EpochOf(ctx, log, seq)
	if err != nil {
		return at, err
	}
	w := Wait{Fleet: fleet, Position: at}
	if err := w.Run(ctx); err != nil {
		return at, fmt.Errorf("no version shows it yet; /readyz of the builder says what it waits for: %w", err)
	}
	return w.Head, nil
}

// Approve removes all overlays of a hold or a quarantine in one batch, and waits
// until a version shows that. It returns the record of the last removal, and that
// version.
func Approve(ctx context.Context, log EventLog, fleet *bus.Fleet, id string, parts []string) (uint64, ident.Position, error) {
	ack, err := log.Append(ctx, Approval(parts), events.Fence{})
	if err != nil {
		return 0, ident.Position{}, fmt.Errorf("approve %s: %w", id, err)
	}
	version, err := WaitFor(ctx, log, fleet, ack.Seq)
	if err != nil {
		return ack.Seq, version, fmt.Errorf("approved %s with record %d, but %w", id, ack.Seq, err)
	}
	return ack.Seq, version, nil
}

// Approval returns the events that approve a hold or a quarantine: they remove its overlays.
func Approval(parts []string) (batch []events.Event) {
	for _, part := range parts {
		batch = append(batch, NewEvent("approve", &events.Overlay{ID: part, Remove: true}))
	}
	return batch
}
