package archive

import (
	"bytes"
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"math"
	"os"
	"slices"
	"strings"
	"sync"

	"github.com/klauspost/compress/zstd"
	"google.golang.org/protobuf/proto"

	"meshlog.dev/events"
	archivev1 "meshlog.dev/proto/meshlog/archive/v1"
)

// Archive is an open archive: a log, and files by name. It is safe for
// concurrent use.
type Archive struct {
	file    *os.File
	decoder *zstd.Decoder
	index   *archivev1.Index
	starts  []uint64 // Seq of the first record of each block of the log
	last    uint64   // Seq of the last record

	closing sync.Once
	closed  chan struct{}

	mu     sync.Mutex // protects what follows
	recent int        // the block of the log that record holds; -1: none
	record []*archivev1.Record
}

// Open opens the archive at path and checks all of it. The error is ErrFormat or
// ErrDamaged if the archive is not whole.
func Open(ctx context.Context, path string) (*Archive, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, err // it names the file
	}
	a := &Archive{file: f, closed: make(chan struct{}), recent: -1}
	if err := a.open(ctx); err != nil {
		return nil, errors.Join(fmt.Errorf("%s: %w", path, err), f.Close())
	}
	return a, nil
}

func (a *Archive) open(ctx context.Context) error {
	info, err := a.file.Stat()
	switch {
	case err != nil:
		return err
	case !info.Mode().IsRegular():
		return fmt.Errorf("%w: it is no file", ErrFormat)
	case info.Size() == 0:
		return fmt.Errorf("%w: it is empty", ErrDamaged)
	}
	if a.decoder, err = newDecoder(); err != nil {
		return err
	}
	head := make([]byte, min(int64(len(header())), info.Size()))
	if _, err := a.file.ReadAt(head, 0); err != nil {
		return err
	}
	if err := checkHeader(head); err != nil {
		return err
	}
	index, err := a.readIndex(info.Size())
	if err != nil {
		return err
	}
	return a.checkBlocks(ctx, index)
}

// readIndex reads the index that the footer names, and returns its offset.
func (a *Archive) readIndex(size int64) (offset uint64, err error) {
	if size < int64(len(header())+footerSize) {
		return 0, fmt.Errorf("%w: it ends after %d bytes", ErrDamaged, size)
	}
	b := make([]byte, footerSize)
	if _, err := a.file.ReadAt(b, size-int64(footerSize)); err != nil {
		return 0, err
	}
	if !bytes.HasSuffix(b, []byte(end)) {
		return 0, fmt.Errorf("%w: its end is missing, the file was cut off", ErrDamaged)
	}
	offset = binary.BigEndian.Uint64(b)
	atMost := uint64(size) - uint64(footerSize)
	if offset > atMost || binary.BigEndian.Uint64(b[8:]) != atMost-offset {
		return 0, fmt.Errorf("%w: its footer does not name the index", ErrDamaged)
	}
	packed := make([]byte, atMost-offset)
	if _, err := a.file.ReadAt(packed, int64(offset)); err != nil {
		return 0, err
	}
	if !bytes.Equal(footer(packed, offset), b) {
		return 0, fmt.Errorf("%w: its index is not what was written", ErrDamaged)
	}
	a.index = new(archivev1.Index)
	if err := a.unpack(packed, a.index); err != nil {
		return 0, fmt.Errorf("%w: index: %w", ErrDamaged, err)
	}
	if a.index.GetFirst() == 0 {
		return 0, fmt.Errorf("%w: its index says that the log begins with record 0", ErrDamaged)
	}
	a.last = a.index.GetFirst() - 1
	for i, b := range a.index.GetLog() {
		if n := uint64(b.GetRecords()); n == 0 || n > math.MaxUint64-a.last {
			// A block without records would begin where the next one does, and
			// a reader would look for the record in it.
			return 0, fmt.Errorf("%w: its index says that block %d of the log has %d records, after record %d", ErrDamaged, i, n, a.last)
		}
		a.starts = append(a.starts, a.last+1)
		a.last += uint64(b.GetRecords())
	}
	return offset, nil
}

// checkBlocks reads all blocks once, and checks that there is no gap between
// header, blocks and the index at an offset.
func (a *Archive) checkBlocks(ctx context.Context, index uint64) error {
	blocks := slices.Clone(a.index.GetLog())
	for _, f := range a.index.GetFiles() {
		blocks = append(blocks, f.GetBlock())
	}
	slices.SortFunc(blocks, func(x, y *archivev1.Block) int { return cmp.Compare(x.GetOffset(), y.GetOffset()) })
	at := uint64(len(header()))
	var b []byte
	for _, block := range blocks {
		if err := ctx.Err(); err != nil {
			return err
		}
		if block.GetOffset() != at || block.GetSize() > index-at || len(block.GetSum()) != sha256.Size {
			return fmt.Errorf("%w: its blocks are not where the index says", ErrDamaged)
		}
		at += block.GetSize()
		var err error
		if b, err = a.packed(block, b); err != nil {
			return err
		}
	}
	if at != index {
		return fmt.Errorf("%w: its index does not cover the whole file", ErrDamaged)
	}
	return nil
}

// packed reads a block as it lies in the file, into b if it has room.
func (a *Archive) packed(block *archivev1.Block, b []byte) ([]byte, error) {
	b = slices.Grow(b[:0], int(block.GetSize()))[:block.GetSize()]
	if _, err := a.file.ReadAt(b, int64(block.GetOffset())); err != nil && !errors.Is(err, io.EOF) {
		return nil, a.closedOr(err)
	}
	if sum := sha256.Sum256(b); !bytes.Equal(sum[:], block.GetSum()) {
		return nil, fmt.Errorf("%w: bytes %d to %d are not what was written", ErrDamaged, block.GetOffset(), block.GetOffset()+block.GetSize())
	}
	return b, nil
}

// closedOr returns err, or events.ErrClosed if Close caused it.
func (a *Archive) closedOr(err error) error {
	if errors.Is(err, os.ErrClosed) {
		return events.ErrClosed
	}
	return err
}

func (a *Archive) unpack(packed []byte, m proto.Message) error {
	b, err := a.decoder.DecodeAll(packed, nil)
	if err != nil {
		return err
	}
	return proto.Unmarshal(b, m)
}

// File returns the bytes of a file, or events.ErrNotFound.
func (a *Archive) File(ctx context.Context, name string) ([]byte, error) {
	if err := a.ready(ctx); err != nil {
		return nil, fmt.Errorf("file %s: %w", name, err)
	}
	files := a.index.GetFiles()
	i, ok := slices.BinarySearchFunc(files, name, func(f *archivev1.File, name string) int { return strings.Compare(f.GetName(), name) })
	if !ok {
		return nil, fmt.Errorf("file %s: %w", name, events.ErrNotFound)
	}
	packed, err := a.packed(files[i].GetBlock(), nil)
	if err != nil {
		return nil, fmt.Errorf("file %s: %w", name, err)
	}
	b, err := a.decoder.DecodeAll(packed, nil)
	if err != nil {
		return nil, fmt.Errorf("file %s: %w: %w", name, ErrDamaged, err)
	}
	return b, nil
}

// Files returns the names of the files that begin with a prefix, sorted.
func (a *Archive) Files(prefix string) []string {
	var names []string
	for _, f := range a.index.GetFiles() {
		if strings.HasPrefix(f.GetName(), prefix) {
			names = append(names, f.GetName())
		}
	}
	return names
}

// Close ends the archive and its followers.
func (a *Archive) Close() (err error) {
	a.closing.Do(func() {
		close(a.closed)
		err = a.file.Close()
		a.decoder.Close()
	})
	return err
}

// ready returns the reason why the archive cannot be read, nil if it can.
func (a *Archive) ready(ctx context.Context) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	select {
	case <-a.closed:
		return events.ErrClosed
	default:
		return nil
	}
}
