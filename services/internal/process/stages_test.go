package process

import (
	"context"
	"errors"
	"slices"
	"sync"
	"testing"
)

// trace records the order in which functions end.
type trace struct {
	mu   sync.Mutex
	ends []string
}

func (tr *trace) until(name string, told <-chan struct{}, err error) func(context.Context) error {
	return func(ctx context.Context) error {
		select {
		case <-ctx.Done():
			err = ctx.Err()
		case <-told:
		}
		tr.mu.Lock()
		defer tr.mu.Unlock()
		tr.ends = append(tr.ends, name)
		return err
	}
}

func TestRunStages(t *testing.T) {
	broken := errors.New("broken")
	told := make(chan struct{})
	close(told)
	for _, c := range []struct {
		name   string
		cancel bool
		stages func(tr *trace) []Stage
		want   []string
		err    error
	}{
		{
			name: "the context ends", cancel: true,
			stages: func(tr *trace) []Stage {
				return []Stage{{tr.until("frontend", nil, nil)}, {tr.until("builder", nil, nil)}, {tr.until("watcher", nil, nil)}}
			},
			want: []string{"frontend", "builder", "watcher"},
		},
		{
			name: "the last stage fails",
			stages: func(tr *trace) []Stage {
				return []Stage{{tr.until("frontend", nil, nil)}, {tr.until("builder", nil, nil)}, {tr.until("watcher", told, broken)}}
			},
			want: []string{"watcher", "frontend", "builder"}, err: broken,
		},
		{
			name: "the first stage ends",
			stages: func(tr *trace) []Stage {
				return []Stage{{tr.until("frontend", told, nil)}, {tr.until("builder", nil, nil)}}
			},
			want: []string{"frontend", "builder"},
		},
		{
			name: "a companion is done", cancel: true,
			stages: func(tr *trace) []Stage {
				return []Stage{{tr.until("frontend", nil, nil)}, {tr.until("reporter", nil, nil), func(context.Context) error { return nil }}}
			},
			want: []string{"frontend", "reporter"},
		},
	} {
		t.Run(c.name, func(t *testing.T) {
			ctx, cancel := context.WithCancel(t.Context())
			defer cancel()
			if c.cancel {
				cancel()
			}
			var tr trace
			err := RunStages(ctx, c.stages(&tr)...)
			if !errors.Is(err, c.err) {
				t.Errorf("RunStages = %v, want %v", err, c.err)
			}
			if !slices.Equal(tr.ends, c.want) {
				t.Errorf("ended: %v, want %v", tr.ends, c.want)
			}
		})
	}
}
