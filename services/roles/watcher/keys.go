package watcher

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"strings"
	"sync/atomic"

	"meshlog.dev/proto/ident"
	auditv1 "meshlog.dev/proto/meshlog/audit/v1"
	keyv1 "meshlog.dev/proto/meshlog/key/v1"
	"meshlog.dev/services/internal/audit"
	"meshlog.dev/services/internal/bus"
	"meshlog.dev/services/internal/failpoint"
	"meshlog.dev/services/internal/keyexchange"
	"meshlog.dev/services/internal/keyexchange/keyring"
	"meshlog.dev/services/internal/loglimit"
	"meshlog.dev/services/internal/process"
	"meshlog.dev/services/watcher/keeper"
)

// Keys answer the requests of frontends for private keys (KEY-3).
type Keys struct {
	Ring   keyring.Ring
	Keeper keeper.Keeper

	running atomic.Pointer[answering] // nil before the watcher has started
}

// errNotStarted says that a watcher of this process cannot answer yet.
var errNotStarted = errors.New("the watcher of the shard has not started yet")

// Ask answers a frontend of the same process: the request is a function call, so it is not
// sealed (KEY-3). The caller wipes the answer.
func (k *Keys) Ask(ctx context.Context, w keyexchange.Want) (*keyexchange.Answer, error) {
	a := k.running.Load()
	if a == nil {
		return nil, errNotStarted
	}
	if w.Shard != a.shard {
		return nil, fmt.Errorf("request for a key: is for %s, and this is the watcher of %s", w.Shard, a.shard)
	}
	var answer keyexchange.Answer
	answer.Outcome, answer.Fields, answer.Reason = k.Keeper.Answer(ctx, w.Namespace, w.Name, w.Sums)
	a.record(w, requester{name: "of the same process", proof: "process"}, &answer)
	return &answer, nil
}

// stage returns what answers for a shard and writes the audit; nothing without k.
func (k *Keys) stage(nc *bus.Conn, fleet *bus.Fleet, o Options, log *slog.Logger) (process.Stage, error) {
	if k == nil {
		return nil, nil
	}
	w, err := audit.NewWriter(nc, audit.WriterOptions{Domain: o.Domain, Role: bus.Watcher(o.Shard), Process: o.Holder, Log: log})
	if err != nil {
		return nil, err
	}
	a := &answering{keys: k, shard: o.Shard, audit: w, log: loglimit.New(log, 10)}
	k.running.Store(a)
	return process.Stage{
		w.Run,
		func(ctx context.Context) error {
			return fleet.ServeKeys(ctx, o.Shard, bus.KeyAnswers{Answer: a.answer, Busy: a.busy})
		},
	}, nil
}

// answering answers for one shard.
type answering struct {
	keys  *Keys
	shard ident.Shard
	door  keyexchange.Door
	audit *audit.Writer
	log   *loglimit.Logger
}

// answer returns the sealed answer to a request. It is empty if the request cannot be
// opened: without the key for the answer, the frontend can be told nothing else.
func (a *answering) answer(ctx context.Context, request []byte) []byte {
	sealed, err := a.sealed(ctx, request)
	if err != nil {
		a.log.Warn("a request for a key is not answered", "shard", a.shard.String(), "error", err)
		return []byte{}
	}
	return sealed
}

// busy is answer for a request that had to wait too long. It is no decision about the key,
// so the audit has no record of it.
func (a *answering) busy(request []byte) []byte {
	asked, err := a.open(request)
	if err == nil {
		defer asked.wipe()
		a.log.Warn("too many requests for keys: the frontend asks again", "shard", a.shard.String(), "frontend", asked.Sender)
		var sealed []byte
		if sealed, err = asked.seal(&keyexchange.Answer{Outcome: keyv1.Outcome_OUTCOME_BUSY, Reason: "too many requests for keys wait"}); err == nil {
			return sealed
		}
	}
	a.log.Warn("a request for a key is not answered", "shard", a.shard.String(), "error", err)
	return []byte{}
}

func (a *answering) sealed(ctx context.Context, request []byte) ([]byte, error) {
	asked, err := a.open(request)
	if err != nil {
		return nil, err
	}
	defer asked.wipe()
	failpoint.At(failpoint.WatcherKeyAsked)
	var answer keyexchange.Answer
	answer.Outcome, answer.Fields, answer.Reason = a.keys.Keeper.Answer(ctx, asked.Namespace, asked.Name, asked.Sums)
	defer func() { answer.Wipe() }()
	failpoint.At(failpoint.WatcherKeyRead)
	sealed, err := asked.seal(&answer)
	if err != nil { // the fields are too large
		answer.Wipe()
		answer = keyexchange.Answer{Outcome: keyv1.Outcome_OUTCOME_REFUSED, Reason: err.Error()}
		if sealed, err = asked.seal(&answer); err != nil {
			return nil, err
		}
	}
	a.record(asked.Want, requester{name: asked.Sender, proof: "xkey"}, &answer)
	return sealed, nil
}

// opened is a request that was opened with the watcher's own xkey.
type opened struct {
	*keyexchange.Asked
	seal func(*keyexchange.Answer) ([]byte, error)
	wipe func() // of the xkey
}

func (a *answering) open(request []byte) (*opened, error) {
	list, err := a.keys.Ring.List()
	if err != nil {
		return nil, err
	}
	own, err := a.keys.Ring.Own()
	if err != nil {
		return nil, err
	}
	asked, err := a.door.Open(own, list.Frontends(), request)
	if err == nil && asked.Shard != a.shard { // a process of the bus has sent it here
		err = fmt.Errorf("request for a key: is for %s", asked.Shard)
	}
	if err != nil {
		own.Wipe()
		return nil, err
	}
	return &opened{
		Asked: asked,
		seal:  func(answer *keyexchange.Answer) ([]byte, error) { return asked.Seal(own, answer) },
		wipe:  own.Wipe,
	}, nil
}

// requester is a frontend, and how it proved that it is one.
type requester struct{ name, proof string }

// record writes a log line, and a record of the audit for each wanted field (KEY-13).
func (a *answering) record(w keyexchange.Want, from requester, answer *keyexchange.Answer) {
	action, outcome := auditv1.Action_ACTION_KEY_REFUSED, outcomeName(answer.Outcome)
	if answer.Outcome == keyv1.Outcome_OUTCOME_GIVEN {
		action = auditv1.Action_ACTION_KEY_GIVEN
	}
	reason := answer.Reason
	if reason != "" {
		reason = outcome + ": " + reason
	}
	object := fmt.Sprintf("Secret %s/%s (%s)", w.Namespace, w.Name, a.shard)
	a.log.Info("answered a request for a key", "object", object, "fields", slices.Sorted(maps.Keys(w.Sums)), "frontend", from.name, "outcome", outcome, "reason", answer.Reason)
	for _, field := range slices.Sorted(maps.Keys(w.Sums)) {
		a.audit.Write(&auditv1.Record{
			Action: action, Object: object, Name: field, Digest: w.Sums[field], Reason: reason,
			Authenticator: from.proof, Facts: []string{"frontend " + from.name},
		})
	}
}

func outcomeName(o keyv1.Outcome) string {
	return strings.ToLower(strings.TrimPrefix(o.String(), "OUTCOME_"))
}
