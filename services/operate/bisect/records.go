package bisect

import (
	"context"
	"errors"
	"fmt"

	"meshlog.dev/events"
	"meshlog.dev/proto/ident"
	"meshlog.dev/services/mesh/xds"
	"meshlog.dev/services/operate/command"
	"meshlog.dev/services/operate/past"
	"meshlog.dev/store"
)

// step is a record that changed the content, with those that act with it.
type step struct {
	past.Step
	from    uint64 // the first record of its batch
	content *store.Snapshot
}

// records searches the records between two versions. Where the log cannot make the version
// again, no record is named.
func (b *bisection) records(ctx context.Context, first verdict) error {
	if b.past.Log == nil {
		b.view.Unknown = "there is no log here"
		return nil
	}
	start, steps, err := b.steps(ctx)
	var unmade string
	switch {
	case errors.Is(err, past.ErrTooOld) || errors.Is(err, past.ErrNotThere) || errors.Is(err, events.ErrNotFound):
		unmade = "the log no longer has its records"
	case err != nil:
		return err
	case len(steps) == 0:
		unmade = "no record on the log changed anything"
	default:
		if unmade, err = b.remade(ctx, steps[len(steps)-1].content); err != nil {
			return err
		}
	}
	if unmade != "" {
		b.view.Unknown = unmade
		return nil
	}
	before, after, err := search(ctx, len(steps)+1, first, func(ctx context.Context, i int) (verdict, error) {
		s := steps[i-1]
		v, _, err := b.judge(ctx, point{s.Position, func(context.Context) (store.Stored, error) { return store.Stored{Snapshot: s.content}, nil }}, "record")
		return v, err
	})
	if err != nil {
		return err
	}
	for _, s := range steps[before:after] {
		b.view.Records = append(b.view.Records, b.viewStep(ctx, s))
	}
	b.view.before, b.view.after = start, steps[after-1].content
	if before > 0 {
		b.view.before = steps[before-1].content
	}
	return nil
}

// remade returns why the content that the log makes is not that of the found version; "": it is.
func (b *bisection) remade(ctx context.Context, is *store.Snapshot) (string, error) {
	at, err := past.At(ctx, b.past, b.view.Version)
	if err != nil {
		return "", err
	}
	if at.Snapshot.Root() != is.Root() {
		return "this build makes another content of the log than the one that published the version; `meshlog verify` shows more", nil
	}
	return "", nil
}

// steps folds the records between the versions, and returns those that change the content, and
// the content before the first.
func (b *bisection) steps(ctx context.Context) (start *store.Snapshot, all []step, err error) {
	r, err := past.Begin(ctx, b.past, b.view.Before.Seq)
	if err != nil {
		return nil, nil, err
	}
	if err := r.To(ctx, b.view.Before.Seq, nil, nil); err != nil {
		return nil, nil, err
	}
	start = r.Content()
	batches := map[string]uint64{}
	read := b.env.Progress("folded")
	defer read.Done()
	err = r.To(ctx, b.view.Version.Seq, read.Show, func(s past.Step) error {
		from := s.Record.Seq
		if batch := batchOf(s.Record); batch.Total > 1 {
			if at, known := batches[batch.ID]; known {
				from = at
			}
			batches[batch.ID] = from
		}
		if len(s.Changes) > 0 {
			all = append(all, step{s, from, r.Content()})
		}
		return nil
	})
	return start, all, err
}

func batchOf(r events.Record) events.Batch {
	switch body := r.Event.Body.(type) {
	case *events.Object:
		return body.Batch
	case *events.Overlay:
		return body.Batch
	}
	return events.Batch{}
}

// effect says how the xDS of the proxy, and the call, differ by what was found.
func (b *bisection) effect(ctx context.Context) error {
	if b.view.after == nil {
		for v, to := range map[ident.Position]**store.Snapshot{b.view.Before: &b.view.before, b.view.Version: &b.view.after} {
			at, err := past.At(ctx, b.past, v)
			if err != nil {
				return err
			}
			*to = at.Snapshot
		}
		b.view.Changes = past.Diff(b.view.before, b.view.after)
	}
	was, err := command.ServedOf(b.view.before, b.proxy)
	if err != nil {
		return err
	}
	is, err := command.ServedOf(b.view.after, b.proxy)
	if err != nil {
		return err
	}
	for t := range ident.ResourceTypes {
		xds.Compare(was.Sets[t], is.Sets[t], func(was, is *xds.Resource) {
			c, _ := command.CompareResources(t, was, is)
			b.view.XDS = append(b.view.XDS, c)
		})
	}
	c, ok := b.test.(*call)
	if !ok {
		return nil
	}
	for _, side := range []struct {
		content *store.Snapshot
		lines   *[]string
	}{{b.view.before, &b.view.CallBefore}, {b.view.after, &b.view.CallAfter}} {
		o, err := c.outcome(ctx, point{b.view.Version, func(context.Context) (store.Stored, error) { return store.Stored{Snapshot: side.content}, nil }})
		if err != nil {
			return fmt.Errorf("simulate the call: %w", err)
		}
		*side.lines = o.Lines()
	}
	return nil
}
