package bus

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"log/slog"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"meshlog.dev/events"
	"meshlog.dev/jsapi"
)

// DefaultLeaseTTL is how long a lease outlives a holder that died.
const DefaultLeaseTTL = 6 * time.Second

// lookAgain is after how long the lease is looked at for the second time.
const lookAgain = 100 * time.Millisecond

// callTimeout bounds a call that has no other bound.
const callTimeout = 2 * time.Second

// LeaseOptions say which lease is wanted, and by whom.
type LeaseOptions struct {
	Domain string        // the mesh
	Holder string        // the name of this process, shown to people
	TTL    time.Duration // whole seconds; DefaultLeaseTTL if 0
	Log    *slog.Logger
}

// Lease is the lease of the leading builder of a mesh: at most one process at
// a time believes that it holds it, but for a pause of that process or of its
// clock. It is for liveness; whatever must hold is fenced where it is written.
//
// It is a key of the bucket meshlog_lease that expires a TTL after its last
// renewal. The holder renews it three times per TTL and deletes it when it ends; the
// others wait for the deletion, or for a TTL without a renewal. A process that
// starts takes over at once from one of its name, which it is the return of.
type Lease struct {
	nc      *nats.Conn
	js      jetstream.JetStream
	subject string
	run     string // tells this Lease's own renewals from a namesake's
	resign  chan struct{}
	o       LeaseOptions
}

const (
	leaseBucket = "meshlog_lease"
	leaseStream = "KV_" + leaseBucket // the stream under the bucket
	leaseRun    = "Meshlog-Run"
	kvOperation = "KV-Operation" // of the library: set where a key was deleted
)

// NewLease returns the lease of the builders of a mesh. EnsureLeases has made
// its bucket.
func NewLease(nc *Conn, o LeaseOptions) (*Lease, error) {
	if o.TTL == 0 {
		o.TTL = DefaultLeaseTTL
	}
	// A call that takes longer than a third of the TTL is of no use to a holder.
	js, err := jetstream.New(nc, jetstream.WithDefaultTimeout(o.TTL/3))
	if err != nil {
		return nil, fmt.Errorf("lease: %w", err)
	}
	return &Lease{
		nc: nc, js: js, subject: leaseSubject(o.Domain), run: rand.Text(), resign: make(chan struct{}, 1), o: o,
	}, nil
}

// leaseSubject returns where the lease of the builders of a mesh lies.
func leaseSubject(domain string) string {
	return "$KV." + leaseBucket + ".builder." + events.Token(domain)
}

// leasePermissions returns the subjects that a client must be allowed to publish to
// for EnsureLeases and a Lease, beside listening to its inbox and to the lease.
func leasePermissions(domain string) []string {
	subject := leaseSubject(domain)
	return []string{
		jsapi.StreamInfo + leaseStream, jsapi.StreamCreate + leaseStream, jsapi.DirectGet + leaseStream + "." + subject, subject,
	}
}

// LeaseConfig returns how the stream under the bucket of the leases is made.
func LeaseConfig(replicas int) StreamConfig {
	return jetstream.StreamConfig{
		Name:                   leaseStream,
		Description:            "who leads",
		Subjects:               []string{"$KV." + leaseBucket + ".>"},
		Storage:                jetstream.FileStorage,
		Replicas:               max(1, replicas),
		MaxMsgs:                -1,
		MaxMsgsPerSubject:      1,
		MaxBytes:               -1,
		MaxMsgSize:             -1,
		Discard:                jetstream.DiscardNew,
		Duplicates:             2 * time.Minute,
		AllowRollup:            true,
		AllowDirect:            true,
		DenyDelete:             true,
		AllowMsgTTL:            true, // a lease expires
		SubjectDeleteMarkerTTL: time.Second,
	}
}

// EnsureLeases makes the bucket of the leases where it is missing. One that is
// there is never changed; it is an error if a lease would not expire in it.
func EnsureLeases(ctx context.Context, nc *Conn, replicas int) error {
	js, err := jetstream.New(nc, jetstream.WithDefaultTimeout(callTimeout))
	if err != nil {
		return fmt.Errorf("bucket %s: %w", leaseBucket, err)
	}
	info, _, err := jsapi.Ensure(ctx, js, LeaseConfig(replicas))
	if err != nil {
		return fmt.Errorf("bucket %s: %w", leaseBucket, jsapi.Explain(nc, err, jsapi.StreamInfo+leaseStream, jsapi.StreamCreate+leaseStream))
	}
	var f jsapi.Faults
	f.Must(info.Config.AllowMsgTTL, "allow_msg_ttl", false, true, "a lease expires")
	f.Must(info.Config.AllowDirect, "allow_direct", false, true, "builders read the lease by Direct Get")
	if err := f.Err(); err != nil {
		return fmt.Errorf("stream %s: %w", leaseStream, err)
	}
	return nil
}

// Run acquires the lease, renews it, and acquires it again when it was lost,
// until ctx is done. It calls onChange, which must not block, whenever the
// answer to "is it held?" changes; the last call is with false, and the lease
// is given away after it. Trouble with the bus is logged and lived with.
func (l *Lease) Run(ctx context.Context, onChange func(held bool)) error {
	// A plain subscription on the key's subject sees every renewal and
	// deletion, and costs the server nothing that lasts. An overflow loses
	// news, which only makes us ask earlier or later.
	news := make(chan *nats.Msg, 16)
	sub, err := l.nc.ChanSubscribe(l.subject, news)
	if err != nil {
		return fmt.Errorf("lease: %w", err)
	}
	defer sub.Unsubscribe()

	// Once: two processes of one name must not take it from each other for ever.
	inherit := true
	// Who begins while the holder gives the lease away may read it as it was, and
	// be too late to hear of that: it looks again soon, once.
	wait := min(lookAgain, l.o.TTL/3)
	var said string
	for {
		asked := time.Now()
		revision, err := l.acquire(ctx, inherit)
		if err == nil || errors.As(err, new(errHeld)) {
			inherit = false
		}
		switch {
		case err == nil:
			l.o.Log.Info("leading")
			onChange(true)
			revision, err = l.hold(ctx, revision, asked, news)
			onChange(false)
			if ctx.Err() != nil && revision != 0 {
				return errors.Join(ctx.Err(), l.release(ctx, revision))
			}
			l.o.Log.Warn("no longer leading", "error", err)
			continue
		case ctx.Err() != nil:
			return ctx.Err()
		case err.Error() != said:
			said = err.Error()
			l.o.Log.Info("standing by", "reason", err)
		}
		if err := l.await(ctx, news, wait); err != nil {
			return err
		}
		wait = l.o.TTL / 3
	}
}

// Resign gives the lease to anybody who wants it: it is no longer renewed, but
// the holder goes on until another one has taken it. It never blocks.
func (l *Lease) Resign() {
	select {
	case l.resign <- struct{}{}:
	default: // asked already
	}
}

// errHeld says that another process holds the lease.
type errHeld struct{ holder string }

func (e errHeld) Error() string { return "the lease is held by " + e.holder }

// acquire takes the lease if it is free, and returns the key's revision. With
// inherit, that of an earlier process of our name is free: it has died, for
// names are unique.
func (l *Lease) acquire(ctx context.Context, inherit bool) (uint64, error) {
	revision, err := l.look(ctx, inherit)
	if err != nil {
		return 0, err
	}
	return l.put(ctx, revision)
}

// look returns the key's revision if the lease is free or ours, which it also
// is where the answer to an earlier put was lost, or with inherit where it is
// of our name; else it returns errHeld.
func (l *Lease) look(ctx context.Context, inherit bool) (uint64, error) {
	stream, err := l.js.Stream(ctx, leaseStream)
	if err != nil {
		return 0, fmt.Errorf("bucket %s: %w", leaseBucket, jsapi.Explain(l.nc, err, jsapi.StreamInfo))
	}
	last, err := stream.GetLastMsgForSubject(ctx, l.subject)
	if errors.Is(err, jetstream.ErrMsgNotFound) {
		return 0, nil
	}
	if err != nil {
		return 0, fmt.Errorf("read the lease: %w", jsapi.Explain(l.nc, err, jsapi.DirectGet))
	}
	gone := last.Header.Get(kvOperation) != "" || last.Header.Get(jetstream.MarkerReasonHeader) != ""
	ours := last.Header.Get(leaseRun) == l.run || inherit && string(last.Data) == l.o.Holder
	if gone || ours {
		return last.Sequence, nil
	}
	return 0, errHeld{holder: string(last.Data)}
}

// put writes the key if its revision is still the one given; it then lives for
// a TTL. (KeyValue.Update would take its TTL away.)
func (l *Lease) put(ctx context.Context, revision uint64) (uint64, error) {
	m := nats.NewMsg(l.subject)
	m.Data = []byte(l.o.Holder)
	m.Header.Set(leaseRun, l.run)
	ack, err := l.js.PublishMsg(ctx, m, jetstream.WithMsgTTL(l.o.TTL), jetstream.WithExpectLastSequencePerSubject(revision))
	if err != nil {
		return 0, fmt.Errorf("write the lease: %w", jsapi.Explain(l.nc, err, l.subject))
	}
	return ack.Sequence, nil
}

// release deletes the key, which tells the others.
func (l *Lease) release(ctx context.Context, revision uint64) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), callTimeout)
	defer cancel()
	m := nats.NewMsg(l.subject)
	m.Header.Set(kvOperation, "DEL")
	if _, err := l.js.PublishMsg(ctx, m, jetstream.WithExpectLastSequencePerSubject(revision)); err != nil {
		return fmt.Errorf("release the lease: %w", err)
	}
	return nil
}

// hold renews the lease until it is lost or ctx is done, and returns the key's
// last known revision; 0 if it was given away already. since is when the lease was asked for: it may have
// expired a TTL later.
func (l *Lease) hold(ctx context.Context, revision uint64, since time.Time, news <-chan *nats.Msg) (uint64, error) {
	renew := time.NewTimer(l.o.TTL / 3)
	defer renew.Stop()
	for {
		select {
		case <-ctx.Done():
			return revision, ctx.Err()
		case <-news: // our own renewals
			continue
		case <-l.resign:
			if err := l.release(ctx, revision); err != nil {
				l.o.Log.Warn("lease left to expire", "error", err)
			}
			return 0, l.outlast(ctx, news)
		case <-renew.C:
		}
		asked := time.Now()
		next, err := l.renew(ctx, revision, since.Add(l.o.TTL))
		switch {
		case err == nil:
			revision, since = next, asked
			renew.Reset(l.o.TTL / 3)
		case errors.As(err, new(errHeld)), !time.Now().Before(since.Add(l.o.TTL)):
			return revision, err
		default: // there is time to try again
			renew.Reset(l.o.TTL / 12)
		}
	}
}

// outlast blocks until somebody else holds the lease.
func (l *Lease) outlast(ctx context.Context, news <-chan *nats.Msg) error {
	look := time.NewTicker(l.o.TTL / 3)
	defer look.Stop()
	for {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case m := <-news:
			if m.Header.Get(kvOperation) == "" && m.Header.Get(leaseRun) != l.run {
				return errHeld{holder: string(m.Data)}
			}
		case <-look.C:
			if _, err := l.look(ctx, false); errors.As(err, new(errHeld)) {
				return err
			}
		}
	}
}

// renew puts the key anew. A conflict is looked into: it may be with an
// earlier put of ours.
func (l *Lease) renew(ctx context.Context, revision uint64, deadline time.Time) (uint64, error) {
	ctx, cancel := context.WithDeadline(ctx, deadline)
	defer cancel()
	next, err := l.put(ctx, revision)
	if err == nil || !jsapi.IsConflict(err) {
		return next, err
	}
	return l.acquire(ctx, false)
}

// await blocks until it is worth asking for the lease again: for wait at most,
// but where it is renewed.
func (l *Lease) await(ctx context.Context, news <-chan *nats.Msg, wait time.Duration) error {
	ask := time.NewTimer(wait)
	defer ask.Stop()
	for {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case m := <-news:
			if m.Header.Get(kvOperation) != "" {
				return nil // given away
			}
			ask.Reset(l.o.TTL) // renewed: it lives at least that long
		case <-ask.C:
			return nil
		}
	}
}
