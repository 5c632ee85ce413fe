// Package dryrun finds the problems that meshlog would report in a directory of
// documents or another source, without a bus, a log or files of its own. The watcher of the
// source reads it; the fold and the gate judge the objects as in a builder.
package dryrun

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"time"

	"meshlog.dev/events"
	"meshlog.dev/proto/ident"
	"meshlog.dev/services/internal/process"
	"meshlog.dev/services/mesh/fold"
	"meshlog.dev/services/mesh/gate"
	"meshlog.dev/services/mesh/problem"
	"meshlog.dev/services/mesh/trial"
	"meshlog.dev/services/watcher"
)

// Problems judges the objects of a source, and returns their problems, the worst first.
// The only errors are that the source cannot be read, and errors of this program.
func Problems(ctx context.Context, w watcher.Watcher) ([]problem.Diagnostic, error) {
	ctx, stop := context.WithCancel(ctx)
	defer stop()
	l := listing{stop: stop, problems: map[string][]problem.Diagnostic{}}
	if err := w.Run(ctx, &l); !l.listed {
		return nil, err
	}
	all, err := judge(l.objects)
	if err != nil {
		return nil, err
	}
	for _, ds := range l.problems {
		all = append(all, ds...)
	}
	slices.SortFunc(all, func(a, b problem.Diagnostic) int {
		return cmp.Or(cmp.Compare(b.Severity, a.Severity), cmp.Compare(a.Origin, b.Origin), a.Compare(b))
	})
	return slices.Compact(all), nil
}

// listing is a watcher.Sink that takes the first listing and ends the watcher.
type listing struct {
	stop     func()
	listed   bool
	objects  []watcher.Object
	problems map[string][]problem.Diagnostic
}

// List implements watcher.Sink.
func (l *listing) List(_ context.Context, all watcher.Listing) error {
	l.listed, l.objects = true, all.Objects
	l.stop() // the watcher reports the problems, and ends
	return nil
}

// Change implements watcher.Sink.
func (l *listing) Change(ctx context.Context, _ []watcher.Object) error { return ctx.Err() }

// Problems implements watcher.Sink.
func (l *listing) Problems(origin string, ds []problem.Diagnostic) { l.problems[origin] = ds }

// judge folds objects and builds their world as a builder does.
func judge(objects []watcher.Object) ([]problem.Diagnostic, error) {
	const build, session = "dryrun", "s"
	f := fold.New(build, fold.KindJudge{Trial: trial.Problems})
	var seq uint64
	record := func(body events.Body) error {
		seq++
		_, _, err := f.Apply(events.Record{Seq: seq, Time: time.Unix(int64(seq), 0), Event: events.Event{Body: body}}, nil)
		return err
	}
	shard := ident.Shard{Source: "file", Instance: "default"}
	var none events.ShardDigests
	err := errors.Join(
		record(&events.Segment{Epoch: 1, Build: build}),
		record(&events.Begin{Shard: shard, Session: session, Holder: build}),
		record(&events.Alive{Shard: shard, Session: session, Low: 1, Digest: none.Sum(), Listed: events.AllBuckets()}),
	)
	for i, o := range objects {
		pseq := uint64(i + 1)
		err = errors.Join(err, record(&events.Object{
			Key: ident.Key{Source: shard.Source, Instance: shard.Instance, Kind: o.Kind, Namespace: o.Namespace, Name: o.Name},
			Op:  events.Put, Value: o.Value, SourceVersion: o.SourceVersion, Origin: o.Origin,
			Session: session, Pseq: pseq, Low: pseq,
		}))
	}
	if err != nil {
		return nil, err
	}
	built, err := gate.Problems(f.Content())
	if err != nil {
		return nil, fmt.Errorf("a builder cannot build the objects: %w", err)
	}
	return slices.Concat(f.Diagnostics(), built), nil
}

// Check writes to out the problems of the objects of the source that a setting names, and
// returns an error if one of them is an error. where says in words where the objects are.
func Check(ctx context.Context, out io.Writer, w watcher.Watcher, setting, where string) error {
	problems, err := Problems(ctx, w)
	if err != nil {
		return process.Invalid(setting, "%w", err)
	}
	switch failed := Print(out, problems); failed {
	case 0:
		return nil
	case 1:
		return process.Invalid(setting, "1 error in %s", where)
	default:
		return process.Invalid(setting, "%d errors in %s", failed, where)
	}
}

// Print writes problems, one per line, and returns the number of errors.
func Print(w io.Writer, problems []problem.Diagnostic) (failed int) {
	for _, d := range problems {
		if d.Severity == problem.Error {
			failed++
		}
		what := d.Error()
		if d.Advice != "" {
			what += "; " + d.Advice
		}
		fmt.Fprintf(w, "%-7s  %s: %s\n", d.Severity, cmp.Or(d.Origin, d.Key.String()), what)
	}
	return failed
}
