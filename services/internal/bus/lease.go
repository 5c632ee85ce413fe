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
	"meshlog.dev/proto/jsapi"
)

// DefaultLeaseTTL is how long a lease outlives a holder that died.
const DefaultLeaseTTL = 6 * time.Second

// lookAgain is the pause between the first and the second look at the lease.
const lookAgain = 100 * time.Millisecond

// callTimeout bounds a call that has no other bound.
const callTimeout = 2 * time.Second

// LeaseOptions describe a lease and its holder.
type LeaseOptions struct {
	Domain string        // the mesh
	Holder string        // the name of this process, for display and inheritance
	TTL    time.Duration // whole seconds; DefaultLeaseTTL if 0
	Log    *slog.Logger
}

// Lease is the lease of the leading builder of a mesh. At most one process at a
// time believes that it holds the lease, unless the process or its clock was
// paused. The lease is for liveness; fences on each write ensure safety.
//
// The lease is a key of the bucket meshlog_lease that expires one TTL after its
// last renewal. The holder renews it three times per TTL, and deletes it when it
// ends; standbys wait for the deletion, or for a TTL without a renewal. A process
// that starts takes the lease of its own name at once: its predecessor has died.
type Lease struct {
	nc      *nats.Conn
	js      jetstream.JetStream
	subject string
	run     string // distinguishes renewals of this Lease from those of a namesake
	resign  chan struct{}
	o       LeaseOptions
}

const (
	leaseBucket = "meshlog_lease"
	leaseStream = "KV_" + leaseBucket // the stream under the bucket
	leaseRun    = "Meshlog-Run"
	kvOperation = "KV-Operation" // the library sets it when it deletes a key
)

// NewLease returns the lease of the builders of a mesh. Its bucket must exist; see
// EnsureLeases.
func NewLease(nc *Conn, o LeaseOptions) (*Lease, error) {
	if o.TTL == 0 {
		o.TTL = DefaultLeaseTTL
	}
	// A call that takes longer than a third of the TTL is too late for a holder.
	js, err := jetstream.New(nc, jetstream.WithDefaultTimeout(o.TTL/3))
	if err != nil {
		return nil, fmt.Errorf("lease: %w", err)
	}
	return &Lease{
		nc: nc, js: js, subject: leaseSubject(o.Domain), run: rand.Text(), resign: make(chan struct{}, 1), o: o,
	}, nil
}

// leaseSubject returns the subject of the lease of the builders of a mesh.
func leaseSubject(domain string) string {
	return "$KV." + leaseBucket + ".builder." + events.Token(domain)
}

// leasePermissions returns the subjects that EnsureLeases and a Lease publish to. A
// Lease also listens to its inbox and to the subject of the lease.
func leasePermissions(domain string) []string {
	subject := leaseSubject(domain)
	return []string{
		jsapi.StreamInfo + leaseStream, jsapi.StreamCreate + leaseStream, jsapi.DirectGet + leaseStream + "." + subject, subject,
	}
}

// LeaseConfig returns the settings of the stream under the bucket of the leases.
func LeaseConfig(replicas int) StreamConfig {
	return jetstream.StreamConfig{
		Name:                   leaseStream,
		Description:            "Lease of the leading builder.",
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

// EnsureLeases makes the bucket of the leases if it is missing. It never changes an
// existing one; it fails if a lease would not expire in it.
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
	f.Republish(info.Config)
	if err := f.Err(); err != nil {
		return fmt.Errorf("stream %s: %w", leaseStream, err)
	}
	return nil
}

// Run acquires the lease, renews it, and acquires it again after a loss, until ctx
// is done. It calls onChange, which must not block, whenever the process gets or
// loses the lease; the last call has false, and Run releases the lease after it.
// Run logs errors of the bus and continues.
func (l *Lease) Run(ctx context.Context, onChange func(held bool)) error {
	// A plain subscription to the key's subject receives every renewal and
	// deletion, and the server keeps no state for it. If it overflows, we ask
	// earlier or later.
	news := make(chan *nats.Msg, 16)
	sub, err := l.nc.ChanSubscribe(l.subject, news)
	if err != nil {
		return fmt.Errorf("lease: %w", err)
	}
	defer sub.Unsubscribe()

	// Once: two processes with one name must not take it from each other for ever.
	inherit := true
	// A process that starts while the holder releases the lease may read the old
	// key and subscribe too late for the deletion: it looks again soon, once.
	wait := min(lookAgain, l.o.TTL/3)
	var logged string
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
		case err.Error() != logged:
			logged = err.Error()
			l.o.Log.Info("standing by", "reason", err)
		}
		if err := l.await(ctx, news, wait); err != nil {
			return err
		}
		wait = l.o.TTL / 3
	}
}

// Resign releases the lease to any process that wants it. The holder leads until
// another process has taken the lease. Resign never blocks.
func (l *Lease) Resign() {
	select {
	case l.resign <- struct{}{}:
	default: // already resigning
	}
}

// errHeld reports that another process holds the lease.
type errHeld struct{ holder string }

func (e errHeld) Error() string { return e.holder + " holds the lease" }

// acquire takes the lease if it is free, and returns the key's revision. With
// inherit, the lease of an earlier process with our name is free: that process
// has died, as names are unique.
func (l *Lease) acquire(ctx context.Context, inherit bool) (uint64, error) {
	revision, err := l.look(ctx, inherit)
	if err != nil {
		return 0, err
	}
	return l.put(ctx, revision)
}

// look returns the key's revision if the lease is free or ours, and errHeld if
// not. It is ours too if the answer to an earlier put was lost, and, with inherit,
// if its holder has our name.
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

// put writes the key for one TTL if its revision is still this one.
// (KeyValue.Update would remove the TTL.)
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

// release deletes the key; standbys receive the deletion.
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

// hold renews the lease until it is lost or ctx is done, and returns the key's last
// known revision, 0 if hold has released it. since is the time before the last
// put: the lease may expire one TTL later.
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
				l.o.Log.Warn("cannot release the lease; it expires", "error", err)
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
		default: // there is time for a retry
			renew.Reset(l.o.TTL / 12)
		}
	}
}

// outlast blocks until another process holds the lease.
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

// renew puts the key again. After a conflict it looks at the key, which an earlier
// put of ours may have written.
func (l *Lease) renew(ctx context.Context, revision uint64, deadline time.Time) (uint64, error) {
	ctx, cancel := context.WithDeadline(ctx, deadline)
	defer cancel()
	next, err := l.put(ctx, revision)
	if err == nil || !jsapi.IsConflict(err) {
		return next, err
	}
	return l.acquire(ctx, false)
}

// await blocks until the lease may be free: for wait, longer after each renewal, or
// until its holder releases it.
func (l *Lease) await(ctx context.Context, news <-chan *nats.Msg, wait time.Duration) error {
	ask := time.NewTimer(wait)
	defer ask.Stop()
	for {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case m := <-news:
			if m.Header.Get(kvOperation) != "" {
				return nil // released
			}
			ask.Reset(l.o.TTL) // renewed for at least that long
		case <-ask.C:
			return nil
		}
	}
}
