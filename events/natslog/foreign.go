package natslog

import (
	"fmt"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
)

// refusedHeader carries events.Raw.Refused in a log that Restore made.
const refusedHeader = "Meshlog-Refused"

// foreign returns why no Log sent a message with these headers, as the stream
// stores them; empty if one did.
//
// JetStream publishes the answer to a request under any reply subject that the
// client chose, and checks no permission of the client. So a client can let the
// server write to a subject that only another role may write to. Each message of a
// Log names the stream, which such an answer does only if it is a copy of one; then
// the server has added its own header.
func foreign(h nats.Header) string {
	switch {
	case h.Get(refusedHeader) != "":
		return headerText(h.Get(refusedHeader)) // any client may have written it
	case len(h[jetstream.StreamHeader]) > 0:
		return fmt.Sprintf("a server wrote the message, as the answer to a request for a message of %q; a client had it reply here", h[jetstream.StreamHeader][0])
	case h.Get(jetstream.ExpectedStreamHeader) != Stream:
		return fmt.Sprintf("the message lacks the header %s: %s, which each publisher of meshlog sets", jetstream.ExpectedStreamHeader, Stream)
	}
	return ""
}
