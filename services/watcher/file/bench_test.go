package file_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"meshlog.dev/services/mesh/problem"
	"meshlog.dev/services/watcher"
	"meshlog.dev/services/watcher/file"
)

// arrivals is a Sink that sends the times of listings and changes.
type arrivals chan time.Time

func (a arrivals) List(context.Context, watcher.Listing) error { a <- time.Now(); return nil }
func (a arrivals) Change(_ context.Context, set []watcher.Object) error {
	a <- time.Now()
	return nil
}
func (a arrivals) Problems(string, []problem.Diagnostic) {}

// BenchmarkSave measures the time from the end of a save to Sink.Change, including
// the 2 ms of gathering, in a directory with many other files.
func BenchmarkSave(b *testing.B) {
	for _, files := range []int{1, 1000} {
		b.Run(fmt.Sprintf("files=%d", files), func(b *testing.B) {
			dir := b.TempDir()
			for i := range files {
				name := filepath.Join(dir, fmt.Sprintf("f%d.yaml", i))
				if err := os.WriteFile(name, []byte(policy(fmt.Sprintf("o%d", i), "x")), 0o644); err != nil {
					b.Fatal(err)
				}
			}
			ctx, cancel := context.WithCancel(b.Context())
			h, ended := make(arrivals), make(chan error, 1)
			go func() { ended <- file.New(dir).Run(ctx, h) }()
			<-h
			var total time.Duration
			n := 0
			for b.Loop() {
				n++
				if err := os.WriteFile(filepath.Join(dir, "f0.yaml"), []byte(policy("o0", fmt.Sprint("v", n))), 0o644); err != nil {
					b.Fatal(err)
				}
				saved := time.Now()
				total += (<-h).Sub(saved)
			}
			b.ReportMetric(float64(total.Microseconds())/float64(n), "µs/save")
			cancel()
			if err := <-ended; !errors.Is(err, context.Canceled) {
				b.Error(err)
			}
		})
	}
}

// BenchmarkSaveInLargeFile is BenchmarkSave of one document of a file with 10,000.
func BenchmarkSaveInLargeFile(b *testing.B) {
	dir := b.TempDir()
	path := filepath.Join(dir, "all.yaml")
	docs := make([]string, 10_000)
	for i := range docs {
		docs[i] = "---\n" + policy(fmt.Sprint("o", i), "x")
	}
	save := func() {
		next := filepath.Join(dir, ".next") // a file that is cut off waits longer
		err := os.WriteFile(next, []byte(strings.Join(docs, "")), 0o644)
		if err == nil {
			err = os.Rename(next, path)
		}
		if err != nil {
			b.Fatal(err)
		}
	}
	save()
	ctx, cancel := context.WithCancel(b.Context())
	h, ended := make(arrivals), make(chan error, 1)
	go func() { ended <- file.New(dir).Run(ctx, h) }()
	<-h
	n := 0
	for b.Loop() {
		n++
		docs[5000] = "---\n" + policy("o5000", fmt.Sprint("v", n))
		save()
		<-h
	}
	cancel()
	if err := <-ended; !errors.Is(err, context.Canceled) {
		b.Error(err)
	}
}
