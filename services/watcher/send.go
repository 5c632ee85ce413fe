package watcher

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"google.golang.org/protobuf/proto"

	"meshlog.dev/events"
	"meshlog.dev/proto/ident"
	registryv1 "meshlog.dev/proto/meshlog/registry/v1"
	"meshlog.dev/services/internal/failpoint"
	"meshlog.dev/services/internal/tracing"
	"meshlog.dev/services/mesh/keymaterial"
)

// maxKey is the largest size in bytes of an event without payload.
const maxKey = 4096

// change makes a change of an object. It refuses one that no log accepts, since
// the log would refuse the others of its batch as well.
func (p *Publisher) change(o Object) (change, bool) {
	if !tracing.Context(o.Trace).IsValid() {
		o.Trace = ""
	}
	c := change{key: p.key(o), object: o}
	c.bucket = events.Bucket(c.key)
	if !o.Delete {
		c.hash = events.ContentHash(c.key, o.Value)
		if p.session.sent.hashes[c.key] != c.hash {
			p.withhold(&c)
		}
	}
	if _, ok := p.session.sent.hashes[c.key]; ok {
		return c, true
	}
	bare := p.event(change{key: c.key}, 1, 1, events.Batch{})
	b, err := events.Encode(bare)
	if err == nil && len(b) > maxKey {
		err = fmt.Errorf("name and namespace have more than %d bytes", maxKey)
	}
	if err != nil {
		p.session.refused[c.key] = err.Error()
		return change{}, false
	}
	delete(p.session.refused, c.key)
	return c, true
}

// withhold replaces a value that holds a private key by an Undecoded with the field and
// the reason. It is the last check before every reader of the log can see the value.
func (p *Publisher) withhold(c *change) {
	found, holds := keymaterial.Find(c.object.Value)
	if !holds {
		return
	}
	reason := "holds a private key (" + found.Form + "), which every reader of the log could read, so the object is not published; " +
		"give the key to proxies as a file or put it into a Secret, name that here, and replace the key"
	p.log.Warn("object with a private key withheld", "key", c.key.String(), "field", found.Field, "form", found.Form)
	c.object.Value = notice(found.Field, reason)
	c.hash = events.ContentHash(c.key, c.object.Value)
}

// notice returns the value of an object that does not go on the log: its key keeps its
// last good value and is reported.
func notice(field, reason string) ident.Value {
	u := &registryv1.Undecoded{Field: strings.ToValidUTF8(field, "?"), Error: reason}
	b, _ := proto.MarshalOptions{Deterministic: true}.Marshal(u) // it cannot fail: the texts are valid UTF-8
	return ident.Value{Type: ident.Undecoded, Bytes: b}
}

// event returns the event of c.
func (p *Publisher) event(c change, pseq, low uint64, batch events.Batch) events.Event {
	o := &events.Object{
		Key: c.key, Op: events.Delete,
		SourceVersion: strings.ToValidUTF8(c.object.SourceVersion, "?"),
		Origin:        strings.ToValidUTF8(c.object.Origin, "?"),
		Session:       p.session.name, Pseq: pseq, Low: low, Batch: batch,
	}
	if !c.hash.IsZero() {
		o.Op, o.Value = events.Put, c.object.Value
	}
	return events.Event{
		ID:       fmt.Sprintf("%s/%s/%d", p.cfg.Shard, p.session.name, pseq),
		Observed: c.object.Observed,
		Actor:    strings.ToValidUTF8(c.object.Actor, "?"),
		Trace:    c.object.Trace,
		Body:     o,
	}
}

// flush sends the backlog, and returns once it is acknowledged, so that of a key
// at most one event is being appended.
func (p *Publisher) flush(ctx context.Context) error {
	changes, atomic := p.session.waiting.take()
	for _, c := range changes {
		p.session.sent.set(c.key, c.bucket, c.hash)
	}
	p.session.sending = len(changes)
	defer func() { p.session.sending = 0 }()
	failpoint.At(failpoint.WatcherSend)
	_, ended := p.trace(changes)
	err := p.send(ctx, changes, atomic && len(changes) > 1, failpoint.WatcherBatch)
	if ended(err); err != nil {
		return err
	}
	p.cfg.Metrics.published(p.in.Now(), changes)
	failpoint.At(failpoint.WatcherAcknowledged)
	p.changedAt = p.in.Now()
	return nil
}

// many is the number of changes that are sent as a chunk even if they need not be
// atomic: a log that syncs each append takes about as long for a chunk as for one
// event.
const many = 100

// send appends changes of different keys in parts of events.MaxBatch, each
// acknowledged before the next. Atomic changes are applied as one.
func (p *Publisher) send(ctx context.Context, changes []change, atomic bool, beforePart failpoint.Point) error {
	var batch events.Batch
	if atomic {
		batch = events.Batch{ID: fmt.Sprintf("%s/%d", p.session.name, p.session.pseq+1), Total: uint32(len(changes))}
	}
	for part := range slices.Chunk(changes, events.MaxBatch) {
		failpoint.At(beforePart)
		low := p.session.pseq + 1
		group := make([]events.Event, len(part))
		for i, c := range part {
			p.session.pseq++
			group[i] = p.event(c, p.session.pseq, low, batch)
			if atomic {
				batch.Index++
			}
		}
		try := p.appendEach
		if atomic || len(part) >= many {
			try = p.appendChunk
		}
		err := p.persist(ctx, func() error {
			err := try(ctx, group)
			if err != nil && ctx.Err() == nil && p.narrowed(ctx, group) {
				return errNarrowed
			}
			return err
		})
		if err != nil {
			return err
		}
		p.cfg.Metrics.events.Add(float64(len(group)))
	}
	return nil
}

// appendEach appends events, each on its own.
func (p *Publisher) appendEach(ctx context.Context, group []events.Event) error {
	err := p.cfg.Log.AppendEach(ctx, group)
	if !isRefusal(err) {
		return err
	}
	for i := range group {
		if err := p.appendChunk(ctx, group[i:i+1]); err != nil {
			return err
		}
	}
	return nil
}

// appendChunk appends events as one. If the log refuses them for their size, it
// appends halves (the fold applies a batch when it is complete), and replaces the
// payload of a single event that is too large.
func (p *Publisher) appendChunk(ctx context.Context, chunk []events.Event) error {
	_, err := p.cfg.Log.Append(ctx, chunk, events.Fence{})
	switch {
	case errors.Is(err, events.ErrTooLarge) && len(chunk) > 1:
		half := len(chunk) / 2
		if err := p.appendChunk(ctx, chunk[:half]); err != nil {
			return err
		}
		return p.appendChunk(ctx, chunk[half:])
	case isRefusal(err):
		if !p.replace(chunk, err) {
			return fmt.Errorf("%w: %w", errAbandoned, err)
		}
		return p.appendChunk(ctx, chunk)
	}
	return err
}

// errAbandoned ends this session; a new one begins.
var errAbandoned = errors.New("the log refuses an event of the session")

// isRefusal reports whether a retry would fail, too.
func isRefusal(err error) bool {
	return errors.Is(err, events.ErrTooLarge) || errors.Is(err, events.ErrInvalid)
}

// replace replaces each event that the log refuses by an Undecoded with the
// reason: the object keeps its last good value and is reported.
func (p *Publisher) replace(chunk []events.Event, refusal error) bool {
	replaced := false
	for i, e := range chunk {
		o := e.Body.(*events.Object)
		reason := fmt.Sprintf("the object has %d bytes, more than the log takes: make it smaller or split it", len(o.Value.Bytes))
		if !errors.Is(refusal, events.ErrTooLarge) {
			if _, err := events.Encode(e); err == nil {
				continue
			}
			reason = "the log cannot carry a part of the object"
		}
		if o.Op != events.Put || o.Value.Type == ident.Undecoded {
			return false
		}
		put := *o
		put.Value = notice("", reason)
		chunk[i].Body = &put
		p.session.sent.set(put.Key, events.Bucket(put.Key), events.ContentHash(put.Key, put.Value))
		p.log.Warn("object replaced by a notice", "key", put.Key.String(), "error", refusal)
		replaced = true
	}
	return replaced
}

// alive appends a heartbeat with the digest of the shard; the first one closes the
// listing and carries its trace. Callers have no unacknowledged changes.
func (p *Publisher) alive(ctx context.Context, listed events.BucketSet, trace string) error {
	s := &p.session
	s.alives++
	err := p.control(ctx, fmt.Sprintf("%s/alive/%d", s.name, s.alives), trace, &events.Alive{
		Shard: p.cfg.Shard, Session: s.name, Low: s.pseq + 1,
		Digest: s.sent.digests.Sum(), Listed: listed, Partial: s.partial, Kinds: s.sent.kinds,
		Identity: p.cfg.Identity,
	})
	s.beat = p.in.Now().Add(heartbeat)
	if err == nil {
		failpoint.At(failpoint.WatcherAlive)
	}
	return err
}

// control appends a begin or alive, fenced on the one before. The error is
// ErrConflict if another holder appended one meanwhile.
func (p *Publisher) control(ctx context.Context, id, trace string, body events.Body) error {
	subject := events.ControlSubject(p.cfg.Shard)
	e := events.Event{
		ID: fmt.Sprintf("%s/%s", p.cfg.Shard, id), Observed: p.in.Now(),
		Actor: p.cfg.Holder, // an Alive has no holder of its own
		Trace: trace,
		Body:  body,
	}
	fence := events.Fence{Kind: events.FenceSubject, Subject: subject, Seq: p.session.ctl}
	return p.persist(ctx, func() error {
		ack, err := p.cfg.Log.Append(ctx, []events.Event{e}, fence)
		if err == nil && ack.Seq != 0 {
			p.session.ctl = ack.Seq
			return nil
		}
		// Despite the error, the event is on the log if it is the last one there.
		head, lastErr := p.cfg.Log.Last(ctx, subject)
		switch {
		case lastErr == nil && head.Event.ID == e.ID:
			p.session.ctl = head.Seq
			return nil
		case err != nil:
			return err
		case lastErr == nil || errors.Is(lastErr, events.ErrNotFound):
			return events.ErrConflict
		}
		return lastErr
	})
}

// persist retries until try succeeds or fails for good. Meanwhile it queues
// changes.
func (p *Publisher) persist(ctx context.Context, try func() error) error {
	defer func() { p.stuck = nil }()
	for pause := minRetryPause; ; pause = min(2*pause, maxRetryPause) {
		err := try()
		switch {
		case err == nil:
			return nil
		case ctx.Err() != nil:
			return ctx.Err()
		case errors.Is(err, events.ErrConflict), errors.Is(err, events.ErrClosed), errors.Is(err, errAbandoned), errors.Is(err, errNarrowed), isRefusal(err):
			return err
		}
		if p.stuck == nil {
			p.log.Warn("cannot append; trying again", "error", err, "session", p.session.name)
		}
		p.stuck = err
		p.cfg.Metrics.retries.Inc()
		p.reportState(p.state.Phase)
		if err := p.sleep(ctx, p.in.Now().Add(pause)); err != nil {
			return err
		}
	}
}
