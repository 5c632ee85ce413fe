package ca

import (
	"context"
	"errors"
	"time"

	"google.golang.org/protobuf/types/known/timestamppb"

	auditv1 "meshlog.dev/proto/meshlog/audit/v1"
	reportv1 "meshlog.dev/proto/meshlog/report/v1"
)

// stepEvery is how often the states of the roots follow the files and the clock. A report
// of a frontend makes them follow at once.
const stepEvery = 5 * time.Second

// rotation moves the roots of an authority on (CA-10).
type rotation struct {
	signing
	roots *roots
	gate  *gate
}

// step makes every step that can be made now.
func (r *rotation) step(now time.Time) error {
	err := r.roots.clear(func(root [32]byte) []string { return r.gate.waiting(root, now) }, false)
	if err == nil {
		err = r.signing.step(now)
	}
	// The states follow what signs, also if newer files are not used.
	return errors.Join(err, r.roots.follow(r.authority(), r.given(), now))
}

// run steps until ctx is done. It logs each new error once.
func (r *rotation) run(ctx context.Context) error {
	tick := time.NewTicker(stepEvery)
	defer tick.Stop()
	logged := ""
	for {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-tick.C:
		case <-r.gate.changed:
		}
		if err := r.step(time.Now()); err == nil {
			logged = ""
		} else if err.Error() != logged {
			logged = err.Error()
			r.roots.log.Warn("the roots of the mesh stay as they are", "error", err)
		}
	}
}

var errNotSelf = errors.New("this CA has its roots from elsewhere: append the new root to root-cert.pem; `meshlog ca status` says when it may sign")

// act does what an operator asks of this replica, and answers.
func (a *authority) act(do reportv1.AuthorityAction) *reportv1.AuthorityReply {
	now := time.Now()
	var err error
	switch do {
	case reportv1.AuthorityAction_AUTHORITY_ACTION_ROTATE:
		if err = errNotSelf; a.signer.rotate != nil {
			err = a.signer.rotate(now)
		}
	case reportv1.AuthorityAction_AUTHORITY_ACTION_FORCE:
		if err = errElsewhere; a.Signer != none {
			err = a.roots.clear(nil, true)
		}
	}
	if do != reportv1.AuthorityAction_AUTHORITY_ACTION_STATUS {
		a.log.Warn("an operator asks to rotate the root of the mesh", "action", do.String(), "error", err)
		record := &auditv1.Record{Action: auditv1.Action_ACTION_ROOT_ROTATED, Name: do.String()}
		if err != nil {
			record.Reason = cut(err.Error(), maxReason)
		}
		a.records.Write(record)
		if err == nil {
			err = a.rotation.step(now)
		}
	}
	r := &reportv1.AuthorityReply{Replica: a.ID, TrustDomain: a.TrustDomain, Signer: a.Signer, LongestSeconds: uint64(a.MaxTTL / time.Second)}
	if a.Signer == none {
		r.LongestSeconds = 0
	}
	if err != nil {
		r.Refused = err.Error()
	}
	if trouble := a.signer.trouble(); trouble != nil {
		r.Trouble = trouble.Error()
	}
	for _, c := range a.roots.list() {
		sum := sumOf(c.cert)
		out := &reportv1.AuthorityRoot{
			Sum: sum[:], Subject: c.cert.Subject.String(), State: string(c.state), Since: timestamppb.New(c.since), Ends: timestamppb.New(c.cert.NotAfter), Ready: c.ready,
		}
		switch {
		case c.state == announced && !c.ready:
			out.Waiting = a.gate.waiting(sum, now)
		case c.state == retiring:
			out.LastEnds = timestamppb.New(c.lastEnds())
		}
		r.Roots = append(r.Roots, out)
	}
	return r
}
