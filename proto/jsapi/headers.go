package jsapi

import "github.com/nats-io/nats.go"

const (
	// EmptyHeaders is the size of a block of headers without any.
	EmptyHeaders = len("NATS/1.0\r\n\r\n")
	// mostLines is how many headers Whole believes. A message of ours has eight at
	// most, and the server adds seven.
	mostLines = 20
)

// HeaderSize returns the size of a block with these headers as client libraries write
// it, and the number of its lines.
func HeaderSize(h nats.Header) (size, lines int) {
	size = EmptyHeaders
	for name, values := range h {
		for _, v := range values {
			size += len(name) + len(v) + 4
			lines++
		}
	}
	return size, lines
}

// BlockSize returns the size of the headers of a message that was received.
func BlockSize(m *nats.Msg) int { return m.Size() - len(m.Subject) - len(m.Reply) - len(m.Data) }

// Whole reports whether the library has read the headers of a received message to
// their end. It stops at the first empty line, and the server adds its own headers
// behind all that a client wrote: a client can hide the server's behind an empty line,
// and bring its own in their place (BUS-2).
//
// The server's headers then make the block longer than what was read from it, by 97
// bytes at least. A client can make up for two bytes of each line, and for some 25 in
// all: it leaves out the space and the carriage return, and writes the status in
// another place. The number of lines that Whole believes does not suffice for it.
func Whole(m *nats.Msg) bool { return whole(m.Header, BlockSize(m)) }

func whole(h nats.Header, block int) bool {
	size, lines := HeaderSize(h)
	if lines > mostLines {
		return false
	}
	// The status stands in the first line if the server wrote it, after the description if there is one.
	inline := size
	for _, name := range []string{"Status", "Description"} {
		if h.Get(name) != "" {
			inline -= len(name) + 3 // one space is in the first line
		}
	}
	return size == block || inline == block
}
