// Package archive is a log in one file, with other files beside it: the driver
// for a log to which nothing is added any more. It can be mailed, kept, and
// read where it lies, without a server and without reading all of it into
// memory.
//
// # The file
//
//	"meshlog-archive 1\n"
//	blocks, compressed with zstd, each by itself
//	the Index, compressed
//	offset and size of the index, 8 bytes each, big-endian
//	SHA-256 over what is written from the index on, but for the sum itself
//	"meshlog-archive-end\n"
//
// The words are proto/meshlog/archive/v1. The index holds the SHA-256 of every
// block, and the blocks lie without gaps, so there is no byte that no sum
// covers. Open checks them all: whoever reads an archive gets what was put
// there, or an error before the first answer.
//
// Equal contents, put in the same order by the same build, give equal bytes: an
// archive does not say when or by whom it was made.
package archive
