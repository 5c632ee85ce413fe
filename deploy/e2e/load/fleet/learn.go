package fleet

import (
	"context"
	"fmt"

	"google.golang.org/grpc"
)

// Lesson is what one proxy learns for all: the names to ask for, and the answers.
type Lesson struct {
	Names Names
	// Answers are the resources of the first answer of each type, encoded as
	// fields of a response.
	Answers [types][]byte
}

// Size returns the bytes of all first answers.
func (l *Lesson) Size() int {
	n := 0
	for _, a := range l.Answers {
		n += len(a)
	}
	return n
}

// Learn connects one proxy, asks for everything in order, and disconnects.
func Learn(ctx context.Context, target string, m Mode, node []byte) (*Lesson, error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	conn, err := dial(target)
	if err != nil {
		return nil, err
	}
	defer conn.Close()
	stream, err := open(ctx, conn, m)
	if err != nil {
		return nil, err
	}
	l := &Lesson{}
	var names [types][]string
	for _, t := range Types() {
		said := phraseOf(m, t, names[t])
		if err := stream.SendMsg(said.first(m, node)); err != nil {
			return nil, fmt.Errorf("ask for %s: %w", t, err)
		}
		node = nil
		if l.Answers[t], err = answer(stream, m, t, said); err != nil {
			return nil, err
		}
		switch t {
		case CDS:
			names[EDS], err = endpointNames(m, l.Answers[t])
		case LDS:
			if names[RDS], err = routeNames(m, l.Answers[t]); err == nil {
				names[ECDS], err = filterNames(m, l.Answers[t])
			}
		}
		if err != nil {
			return nil, err
		}
	}
	l.Names = Names{Endpoints: names[EDS], Routes: names[RDS], Filters: names[ECDS]}
	return l, nil
}

// answer returns the first answer of a type, and acknowledges it.
func answer(stream grpc.ClientStream, m Mode, t Type, said phrase) ([]byte, error) {
	r := response{keep: true}
	if err := stream.RecvMsg(&r); err != nil {
		return nil, fmt.Errorf("wait for %s: %w", t, err)
	}
	if got := typeOf(r.typeURL); got != t {
		return nil, fmt.Errorf("asked for %s, received %q", t, r.typeURL)
	}
	if err := stream.SendMsg(said.acknowledge(m, r.version, r.nonce)); err != nil {
		return nil, fmt.Errorf("acknowledge %s: %w", t, err)
	}
	return resources(r.body)
}
