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

// footer returns the end of the file, which locates and proves the index at an
// offset.
func footer(index []byte, offset uint64) []byte {
	b := binary.BigEndian.AppendUint64(nil, offset)
	b = binary.BigEndian.AppendUint64(b, uint64(len(index)))
	h := sha256.New()
	h.Write(index)
	h.Write(b)
	h.Write([]byte(end))
	return append(h.Sum(b), end...)
}

func newEncoder() (*zstd.Encoder, error) {
	// Without concurrency the bytes do not depend on the machine.
	return zstd.NewWriter(nil, zstd.WithEncoderConcurrency(1), zstd.WithEncoderCRC(false))
}

func newDecoder() (*zstd.Decoder, error) {
	return zstd.NewReader(nil, zstd.WithDecoderConcurrency(1), zstd.WithDecoderMaxMemory(maxBlock))
}
