package bus

import (
	"errors"
	"fmt"

	"github.com/nats-io/nats.go"
	"google.golang.org/protobuf/proto"
)

// maxPart is the size of a message of an answer. Servers accept 1 MB by default,
// which is a thousand proxies.
const maxPart = 512 << 10

// partHeader numbers a message of an answer that is cut into several: "2/3" is the
// second of three.
const partHeader = "Meshlog-Part"

// checkReply returns an error if the answer to a question must not be published.
func checkReply(question *nats.Msg) error {
	if isInbox(question.Reply) {
		return nil
	}
	return fmt.Errorf("a request on %s wants its answer on %q, which is no inbox; it gets none", question.Subject, question.Reply)
}

// answer publishes an answer to the inbox of a question, in several messages if it
// is large.
func (f *Fleet) answer(question *nats.Msg, name string, answer proto.Message) error {
	if err := checkReply(question); err != nil {
		f.unanswerable.Add(1)
		return err
	}
	rest, err := proto.Marshal(answer)
	if err != nil {
		return err
	}
	parts := max(1, (len(rest)+maxPart-1)/maxPart)
	for i := range parts {
		m := nats.NewMsg(question.Reply)
		m.Header.Set(nameHeader, name)
		if parts > 1 {
			m.Header.Set(partHeader, fmt.Sprintf("%d/%d", i+1, parts))
		}
		m.Data = rest[:min(len(rest), maxPart)]
		rest = rest[len(m.Data):]
		if err := f.nc.PublishMsg(m); err != nil {
			return err
		}
	}
	return nil
}

// begunAnswers are the incomplete answers, by the name of the process.
type begunAnswers map[string]*begunAnswer

type begunAnswer struct {
	of    int            // number of parts
	parts map[int][]byte // by their numbers, from 1
	err   error          // the parts make no answer
}

// join returns the answer that m completes, if any. If parts of two answers with
// one name arrive at once, as from two processes of the same name, it joins none of
// them: parts do not identify their answer.
func (all begunAnswers) join(name string, m *nats.Msg) (answer []byte, whole bool) {
	header := m.Header.Get(partHeader)
	if header == "" {
		return m.Data, true
	}
	var number, of int
	_, err := fmt.Sscanf(header, "%d/%d", &number, &of)
	b := all[name]
	if b == nil {
		b = &begunAnswer{of: of, parts: map[int][]byte{}}
		all[name] = b
	}
	_, twice := b.parts[number]
	switch {
	case b.err != nil:
		return nil, false
	case err != nil || number < 1 || number > of:
		b.err = fmt.Errorf("part %q has no number", header)
	case twice || of != b.of:
		b.err = errors.New("the parts of two answers came at once; do two processes have this name?")
	}
	if b.err != nil {
		b.parts = nil
		return nil, false
	}
	b.parts[number] = m.Data
	if len(b.parts) < of {
		return nil, false
	}
	delete(all, name)
	for i := range of {
		answer = append(answer, b.parts[i+1]...)
	}
	return answer, true
}

// failure returns why the answer cannot be read.
func (b *begunAnswer) failure() error {
	if b.err != nil {
		return b.err
	}
	return fmt.Errorf("%d of %d parts came", len(b.parts), b.of)
}
