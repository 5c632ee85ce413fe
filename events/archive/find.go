package archive

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"runtime"
	"slices"
	"sync"

	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"

	"meshlog.dev/events"
	archivev1 "meshlog.dev/proto/meshlog/archive/v1"
)

// blocksAtOnce is how many blocks each core reads before their records are yielded.
const blocksAtOnce = 8

// Find yields the records under some subjects, in the order of the log. It reads the whole log
// with all cores, and decodes only what it yields. It ends with the first error.
func (a *Archive) Find(ctx context.Context, subjects ...events.Subject) iter.Seq2[events.Raw, error] {
	return func(yield func(events.Raw, error) bool) {
		cores := runtime.GOMAXPROCS(0)
		next := 0
		for blocks := range slices.Chunk(a.index.GetLog(), cores*blocksAtOnce) {
			found, errs := make([][]events.Raw, len(blocks)), make([]error, len(blocks)+1)
			errs[len(blocks)] = a.ready(ctx)
			var all sync.WaitGroup
			for core := range cores {
				all.Go(func() {
					for i := core; i < len(blocks); i += cores {
						found[i], errs[i] = a.under(blocks[i], a.starts[next+i], subjects)
					}
				})
			}
			all.Wait()
			if err := errors.Join(errs...); err != nil {
				yield(events.Raw{}, fmt.Errorf("find records: %w", err))
				return
			}
			for _, r := range slices.Concat(found...) {
				if !yield(r, nil) {
					return
				}
			}
			next += len(blocks)
		}
	}
}

// under returns the records of a block under some subjects; first is the Seq of its first record.
func (a *Archive) under(block *archivev1.Block, first uint64, subjects []events.Subject) (found []events.Raw, err error) {
	packed, err := a.packed(block, nil)
	if err != nil {
		return nil, err
	}
	b, err := a.decoder.DecodeAll(packed, nil)
	if err != nil {
		return nil, fmt.Errorf("%w: %w", ErrDamaged, err)
	}
	for seq := first; len(b) > 0; seq++ {
		_, _, n := protowire.ConsumeTag(b)
		if n < 0 {
			return nil, fmt.Errorf("%w: a block holds no records", ErrDamaged)
		}
		one, m := protowire.ConsumeBytes(b[n:])
		if m < 0 {
			return nil, fmt.Errorf("%w: a block holds no records", ErrDamaged)
		}
		b = b[n+m:]
		if !slices.Contains(subjects, subjectOf(one)) {
			continue
		}
		r := new(archivev1.Record)
		if err := proto.Unmarshal(one, r); err != nil {
			return nil, fmt.Errorf("%w: %w", ErrDamaged, err)
		}
		found = append(found, run{seq, []*archivev1.Record{r}}.raw(0))
	}
	return found, nil
}

// subjectField is the number of Record.subject.
const subjectField = 2

// subjectOf returns the subject of an encoded Record.
func subjectOf(record []byte) events.Subject {
	for len(record) > 0 {
		number, kind, n := protowire.ConsumeTag(record)
		if n < 0 {
			return ""
		}
		if number == subjectField && kind == protowire.BytesType {
			s, _ := protowire.ConsumeBytes(record[n:])
			return events.Subject(s)
		}
		m := protowire.ConsumeFieldValue(number, kind, record[n:])
		if m < 0 {
			return ""
		}
		record = record[n+m:]
	}
	return ""
}
