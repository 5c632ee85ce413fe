package command

import (
	"context"
	"crypto/ed25519"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
	"os"

	"meshlog.dev/events"
	"meshlog.dev/services/mesh/permit"
	"meshlog.dev/services/operate/past"
)

// OperatorKeyFlag names the key with which an operator signs.
const OperatorKeyFlag = "operator-key"

// ReadOperatorKey reads the private key of an operator: an Ed25519 key in PEM, as
// `meshlog bus-auth --operator` writes it.
func ReadOperatorKey(file string) (ed25519.PrivateKey, error) {
	b, err := os.ReadFile(file)
	if err != nil {
		return nil, err
	}
	block, _ := pem.Decode(b)
	clear(b)
	if block == nil {
		return nil, fmt.Errorf("%s: holds no key in PEM; `meshlog bus-auth --operator` makes one", file)
	}
	defer clear(block.Bytes)
	k, err := x509.ParsePKCS8PrivateKey(block.Bytes)
	key, ok := k.(ed25519.PrivateKey)
	if err != nil || !ok {
		return nil, fmt.Errorf("%s: is no Ed25519 key of an operator; `meshlog bus-auth --operator` makes one", file)
	}
	return key, nil
}

// OperatorLog opens the log for records of an operator: it signs them with the key of
// --operator-key. A mesh whose MeshPolicy names operators gets no record that would be
// void.
func (t *Target) OperatorLog(ctx context.Context) (EventLog, error) {
	log, chain, err := t.open(ctx)
	if err != nil {
		return nil, err
	}
	l := &operatorLog{
		EventLog: log, signed: map[string]*events.Signature{},
		past: &past.Past{Name: "the mesh", Log: log, Versions: chain, Blobs: chain, Live: true},
	}
	if t.operatorKey != "" {
		if l.key, err = ReadOperatorKey(t.operatorKey); err != nil {
			return nil, fmt.Errorf("--%s: %w", OperatorKeyFlag, err)
		}
	}
	return l, nil
}

// operatorLog signs what it appends. One goroutine uses it.
type operatorLog struct {
	EventLog
	past   *past.Past
	key    ed25519.PrivateKey // nil: none is given
	replay *past.Replay       // nil: nothing was read yet
	number uint64             // of the last signature
	signed map[string]*events.Signature
}

// Append implements events.Appender. It returns an error if the mesh does not take what
// was appended.
func (l *operatorLog) Append(ctx context.Context, batch []events.Event, fence events.Fence) (events.Ack, error) {
	if err := l.read(ctx); err != nil {
		return events.Ack{}, fmt.Errorf("read who the operators of the mesh are: %w", err)
	}
	if err := l.permitted(); err != nil {
		return events.Ack{}, err
	}
	mine := map[string]bool{}
	all := make([]events.Event, len(batch))
	for i, e := range batch {
		mine[e.ID] = true
		var err error
		if all[i], err = l.sign(e); err != nil {
			return events.Ack{}, fmt.Errorf("%w: %w", events.ErrInvalid, err)
		}
	}
	ack, err := l.EventLog.Append(ctx, all, fence)
	if err != nil || ack.Seq <= l.replay.Position().Seq {
		return ack, err
	}
	void := ""
	err = l.replay.To(ctx, ack.Seq, nil, func(s past.Step) error {
		if mine[s.Record.Event.ID] && s.Verdict.Void != "" {
			void = fmt.Sprintf("record %d is void: %s; run the command again", s.Record.Seq, s.Verdict.Void)
		}
		return nil
	})
	if err != nil {
		return ack, fmt.Errorf("it is on the log with record %d, and it is not known whether it counts: %w", ack.Seq, err)
	}
	if void != "" {
		return ack, errVoid{void}
	}
	return ack, nil
}

// AppendEach implements events.Appender, in order: signatures have one.
func (l *operatorLog) AppendEach(ctx context.Context, all []events.Event) error {
	for _, e := range all {
		if _, err := l.Append(ctx, []events.Event{e}, events.Fence{}); err != nil {
			return err
		}
	}
	return nil
}

// errVoid is the error of an append whose records change nothing. Nothing is retried
// after it.
type errVoid struct{ reason string }

func (e errVoid) Error() string { return e.reason }

func (errVoid) Is(target error) bool { return target == events.ErrInvalid }

// read folds the log to its end.
func (l *operatorLog) read(ctx context.Context) error {
	bounds, err := l.past.Log.Bounds(ctx)
	if err != nil {
		return err
	}
	if l.replay == nil {
		if l.replay, err = past.Begin(ctx, l.past, bounds.Last); err != nil {
			return err
		}
	}
	return l.replay.To(ctx, bounds.Last, nil, nil)
}

// permitted returns why the mesh would not take a record with the key.
func (l *operatorLog) permitted() error {
	of := l.replay.Fold().Operators()
	if len(of) == 0 {
		return nil
	}
	const flag = "--" + OperatorKeyFlag
	if l.key == nil {
		return errors.New("the MeshPolicy names operators, so a record counts only with the signature of one of them: give your key with " + flag)
	}
	if k := publicKey(l.key); of[k] == "" {
		return fmt.Errorf("%s: %s is the key of no operator in the MeshPolicy; nothing was written", flag, permit.KeyText(k))
	}
	return nil
}

func publicKey(key ed25519.PrivateKey) permit.Key {
	return permit.Key(key.Public().(ed25519.PublicKey))
}

// sign returns e with a signature. A retry has the same one.
func (l *operatorLog) sign(e events.Event) (events.Event, error) {
	if l.key == nil {
		return e, nil
	}
	if s := l.signed[e.ID]; s != nil {
		e.Signature = s
		return e, nil
	}
	l.number++
	f := l.replay.Fold()
	if name := f.Operators()[publicKey(l.key)]; name != "" {
		e.Actor = name
	}
	e, err := events.Sign(e, l.key, f.Segment().ID, f.Position(), l.number)
	if err == nil {
		l.signed[e.ID] = e.Signature
	}
	return e, err
}
