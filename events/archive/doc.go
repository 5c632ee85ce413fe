// Package archive keeps a log in one file, together with other files. An archive
// is complete: nothing is appended to it. It is read without a server, and
// without loading all of it into memory.
//
// # The file
//
//	"meshlog-archive 1\n"
//	blocks, compressed with zstd, each by itself
//	the Index, compressed
//	offset and size of the index, 8 bytes each, big-endian
//	SHA-256 over the index, the 16 bytes above and the last line
//	"meshlog-archive-end\n"
//
// The schema is proto/meshlog/archive/v1. The index holds the SHA-256 of every
// block, and there is no gap between blocks, so a sum covers every byte. Open
// checks them all: a reader gets the bytes that were written, or an error before
// the first answer.
//
// Equal contents, written in the same order by the same build, give equal bytes:
// an archive does not record when, or by which user, it was made.
package archive
