package archive

import (
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"fmt"
	"strconv"
	"strings"

	"github.com/klauspost/compress/zstd"
)

// Errors of archives, to be tested with errors.Is.
var (
	// ErrDamaged: a part of the file is missing or has changed.
	ErrDamaged = errors.New("the archive is damaged")
	// ErrFormat: the file is no archive, or this build does not know its format.
	ErrFormat = errors.New("cannot be read as an archive")
)

const (
	magic   = "meshlog-archive "
	version = 1
	end     = "meshlog-archive-end\n"

	footerSize = 8 + 8 + sha256.Size + len(end)

	// maxBlock is the largest uncompressed block.
	maxBlock = 256 << 20
	// The writer closes a block of the log at this many bytes or records: a
	// reader of one record reads its whole block.
	logBlockBytes   = 256 << 10
	logBlockRecords = 512
)

func header() string { return magic + strconv.Itoa(version) + "\n" }

// checkHeader returns an error unless b begins a file that this build can read.
func checkHeader(b []byte) error {
	s := string(b)
	switch rest, ok := strings.CutPrefix(s, magic); {
	case s == header():
		return nil
	case len(s) < len(header()) && strings.HasPrefix(header(), s):
		return fmt.Errorf("%w: it ends after %d bytes", ErrDamaged, len(s))
	case !ok:
		return fmt.Errorf("%w: `meshlog export` did not write it", ErrFormat)
	default:
		return fmt.Errorf("%w: its format is %q, this build reads %d; read it with the build that wrote it", ErrFormat, strings.TrimSpace(rest), version)
	}
}

// footer is the end of the file. It locates the index.
type footer struct {
	offset, size uint64
	sum          [sha256.Size]byte
}

func (f footer) bytes() []byte {
	b := f.place()
	b = append(b, f.sum[:]...)
	return append(b, end...)
}

// place returns the part of the footer that its sum covers.
func (f footer) place() []byte {
	b := binary.BigEndian.AppendUint64(nil, f.offset)
	return binary.BigEndian.AppendUint64(b, f.size)
}

// sumOver returns the sum with which the footer closes an index.
func (f footer) sumOver(index []byte) [sha256.Size]byte {
	h := sha256.New()
	h.Write(index)
	h.Write(f.place())
	h.Write([]byte(end))
	return [sha256.Size]byte(h.Sum(nil))
}

func parseFooter(b []byte) (footer, error) {
	if !strings.HasSuffix(string(b), end) {
		return footer{}, fmt.Errorf("%w: its end is missing, the file was cut off", ErrDamaged)
	}
	return footer{
		offset: binary.BigEndian.Uint64(b),
		size:   binary.BigEndian.Uint64(b[8:]),
		sum:    [sha256.Size]byte(b[16:]),
	}, nil
}

func newEncoder() (*zstd.Encoder, error) {
	// Without concurrency the bytes do not depend on the machine.
	return zstd.NewWriter(nil, zstd.WithEncoderConcurrency(1), zstd.WithEncoderCRC(false))
}

func newDecoder() (*zstd.Decoder, error) {
	return zstd.NewReader(nil, zstd.WithDecoderConcurrency(1), zstd.WithDecoderMaxMemory(maxBlock))
}
