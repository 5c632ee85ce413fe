package archive

import (
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"maps"
	"slices"

	"github.com/klauspost/compress/zstd"
	"google.golang.org/protobuf/proto"

	"meshlog.dev/events"
	archivev1 "meshlog.dev/proto/meshlog/archive/v1"
)

// Writer writes an archive. One goroutine uses it. After an error of any method
// the archive is incomplete.
type Writer struct {
	w       io.Writer
	encoder *zstd.Encoder
	offset  uint64

	first, next uint64 // Seq of the first and of the next record
	block       archivev1.Records
	blockBytes  int
	subjects    map[string]uint64
	files       map[string]*archivev1.Block
	log         []*archivev1.Block
}

// NewWriter begins an archive of a log whose first record has Seq first. For an
// empty log, first is the Seq of the next record.
func NewWriter(w io.Writer, first uint64) (*Writer, error) {
	if first == 0 {
		return nil, errors.New("archive: the first record of a log is 1 or higher, not 0")
	}
	encoder, err := newEncoder()
	if err != nil {
		return nil, fmt.Errorf("archive: %w", err)
	}
	a := &Writer{
		w: w, encoder: encoder, first: first, next: first,
		subjects: map[string]uint64{}, files: map[string]*archivev1.Block{},
	}
	return a, a.write([]byte(header()))
}

// Append adds the next record of the log.
func (a *Writer) Append(r events.Raw) error {
	if r.Seq != a.next {
		return fmt.Errorf("archive: record %d after %d", r.Seq, a.next-1)
	}
	a.next++
	a.subjects[string(r.Subject)] = r.Seq
	a.block.Records = append(a.block.Records, &archivev1.Record{
		Time: r.Time.UnixNano(), Subject: string(r.Subject), Data: r.Data, Refused: r.Refused,
	})
	a.blockBytes += len(r.Data) + len(r.Refused)
	if len(a.block.Records) >= logBlockRecords || a.blockBytes >= logBlockBytes {
		return a.closeBlock()
	}
	return nil
}

func (a *Writer) closeBlock() error {
	if len(a.block.Records) == 0 {
		return nil
	}
	b, err := marshal(&a.block)
	if err != nil {
		return err
	}
	block, err := a.put(b)
	if err != nil {
		return err
	}
	block.Records = uint32(len(a.block.Records))
	a.log = append(a.log, block)
	a.block, a.blockBytes = archivev1.Records{}, 0
	return nil
}

// Put adds a file. A name can be used once.
func (a *Writer) Put(name string, b []byte) error {
	if a.Has(name) {
		return fmt.Errorf("archive: file %s: the archive has it already", name)
	}
	if len(b) > maxBlock {
		return fmt.Errorf("archive: file %s: has %d bytes, the limit is %d", name, len(b), maxBlock)
	}
	block, err := a.put(b)
	if err != nil {
		return err
	}
	a.files[name] = block
	return nil
}

// Has reports whether Put added a file of that name.
func (a *Writer) Has(name string) bool { return a.files[name] != nil }

// Size returns the number of bytes written.
func (a *Writer) Size() uint64 { return a.offset }

// put writes b as a block.
func (a *Writer) put(b []byte) (*archivev1.Block, error) {
	packed := a.encoder.EncodeAll(b, nil)
	sum := sha256.Sum256(packed)
	block := &archivev1.Block{Offset: a.offset, Size: uint64(len(packed)), Sum: sum[:]}
	return block, a.write(packed)
}

func (a *Writer) write(b []byte) error {
	n, err := a.w.Write(b)
	a.offset += uint64(n)
	if err != nil {
		return fmt.Errorf("archive: %w", err)
	}
	return nil
}

// Close completes the archive. It does not close the underlying writer.
func (a *Writer) Close() error {
	if err := a.closeBlock(); err != nil {
		return err
	}
	index := &archivev1.Index{First: a.first, Log: a.log}
	for _, s := range slices.Sorted(maps.Keys(a.subjects)) {
		index.Subjects = append(index.Subjects, &archivev1.Subject{Subject: s, Seq: a.subjects[s]})
	}
	for _, name := range slices.Sorted(maps.Keys(a.files)) {
		index.Files = append(index.Files, &archivev1.File{Name: name, Block: a.files[name]})
	}
	b, err := marshal(index)
	if err != nil {
		return err
	}
	packed := a.encoder.EncodeAll(b, nil)
	return a.write(append(packed, footer(packed, a.offset)...))
}

func marshal(m proto.Message) ([]byte, error) {
	b, err := proto.MarshalOptions{Deterministic: true}.Marshal(m)
	if err != nil {
		return nil, fmt.Errorf("archive: %w", err)
	}
	return b, nil
}
