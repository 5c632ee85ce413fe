package rig

import (
	"bytes"

	"github.com/klauspost/compress/zstd"
)

// frame is how a frame of zstd begins.
var frame = []byte{0x28, 0xb5, 0x2f, 0xfd}

// Unpacked returns the content of all frames of zstd that are in b, and b itself after
// it: what is to be searched in a file of meshlog, which packs what it stores.
func Unpacked(b []byte) ([]byte, error) {
	decoder, err := zstd.NewReader(nil)
	if err != nil {
		return nil, err
	}
	defer decoder.Close()
	var all []byte
	for at := bytes.Index(b, frame); at >= 0; {
		next := bytes.Index(b[at+len(frame):], frame)
		end := len(b)
		if next >= 0 {
			end = at + len(frame) + next
		}
		// What follows a frame is the file's own, so a frame may end with an error.
		if block, err := decoder.DecodeAll(b[at:end], nil); err == nil || len(block) > 0 {
			all = append(all, block...)
		}
		if next < 0 {
			break
		}
		at = end
	}
	return append(all, b...), nil
}
