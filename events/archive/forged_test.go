package archive

import (
	"crypto/sha256"
	"errors"
	"math"
	"os"
	"path/filepath"
	"strings"
	"testing"

	archivev1 "meshlog.dev/proto/meshlog/archive/v1"
)

// An index is what its writer says it is: sums prove only that the file is as it
// was written. Open refuses numbers of records that no log has, which made a read
// panic.
func TestForgedIndex(t *testing.T) {
	for _, c := range []struct {
		name    string
		first   uint64
		records []uint32 // of the blocks, which have one each
		want    string
	}{
		{"a block without records before a record", 1, []uint32{0, 1}, "block 0 of the log has 0 records"},
		{"a block without records at the end", 1, []uint32{1, 0}, "block 1 of the log has 0 records"},
		{"only a block without records", 7, []uint32{0}, "block 0 of the log has 0 records"},
		{"more records than there are numbers", math.MaxUint64, []uint32{1, 1}, "block 1 of the log has 1 records"},
		{"a log that begins with record 0", 0, []uint32{1}, "begins with record 0"},
		{"a log as written", 1, []uint32{1, 1}, ""},
	} {
		t.Run(c.name, func(t *testing.T) {
			a, err := Open(t.Context(), forged(t, c.first, c.records))
			if c.want != "" {
				if !errors.Is(err, ErrDamaged) || !strings.Contains(err.Error(), c.want) {
					t.Errorf("Open: %v, want that the archive is damaged: %s", err, c.want)
				}
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			defer a.Close()
			for seq := range uint64(2) {
				if _, err := a.Get(t.Context(), c.first+seq); err != nil {
					t.Error(err)
				}
			}
		})
	}
}

// forged writes an archive whose blocks have one record each, and whose index
// says that they have others.
func forged(t *testing.T, first uint64, records []uint32) string {
	t.Helper()
	encoder, err := newEncoder()
	if err != nil {
		t.Fatal(err)
	}
	file := []byte(header())
	index := &archivev1.Index{First: first}
	b, err := marshal(&archivev1.Records{Records: []*archivev1.Record{{Subject: "s"}}})
	if err != nil {
		t.Fatal(err)
	}
	for _, n := range records {
		packed := encoder.EncodeAll(b, nil)
		sum := sha256.Sum256(packed)
		index.Log = append(index.Log, &archivev1.Block{Offset: uint64(len(file)), Size: uint64(len(packed)), Sum: sum[:], Records: n})
		file = append(file, packed...)
	}
	if b, err = marshal(index); err != nil {
		t.Fatal(err)
	}
	packed := encoder.EncodeAll(b, nil)
	file = append(append(file, packed...), footer(packed, uint64(len(file)))...)
	path := filepath.Join(t.TempDir(), "archive")
	if err := os.WriteFile(path, file, 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}
