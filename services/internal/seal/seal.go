// Package seal keeps secrets in files that are encrypted and authenticated with a key
// that is not beside them: one that systemd, a TPM or a mounted Secret provides.
//
// A sealed file is a header and a box of NaCl's secretbox. The key of the box is
// derived from the seal key and the whole header, so a changed header opens nothing.
// The header has an ID of the seal key: it tells a wrong seal key from a damaged file.
package seal

import (
	"bytes"
	"crypto/hkdf"
	"crypto/rand"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"

	"golang.org/x/crypto/nacl/secretbox"

	"meshlog.dev/services/internal/failpoint"
)

// magic begins each sealed file.
const magic = "meshlog sealed 1\n"

// Sizes of the parts of a file after magic, and of its content.
const (
	idSize    = 8
	saltSize  = 32
	nonceSize = 24
	keySize   = 32
	header    = len(magic) + idSize + saltSize + nonceSize

	// maxContent is the largest content of a file.
	maxContent = 16 << 20
)

// Sizes of the file with a seal key.
const (
	minKeyFile = 32
	maxKeyFile = 4096
)

// ErrNotSealed says that a file is no sealed file.
var ErrNotSealed = errors.New("is not a sealed file")

// Key seals and opens files. It is immutable.
type Key struct {
	secret []byte
	id     [idSize]byte
}

// ReadKey reads a seal key: all bytes of a file, except a newline after the first 32.
// They must be random, and the file closed to other users.
func ReadKey(path string) (*Key, error) {
	b, err := ReadPrivate(path, maxKeyFile)
	if err != nil {
		return nil, fmt.Errorf("seal key: %w", err)
	}
	if len(b) > minKeyFile { // of just 32 random bytes, the last may be a newline
		b = bytes.TrimSuffix(b, []byte("\n"))
	}
	k, err := NewKey(b)
	if err != nil {
		return nil, fmt.Errorf("seal key: %s: %w", path, err)
	}
	return k, nil
}

// NewKey returns the seal key that is made of a secret.
func NewKey(secret []byte) (*Key, error) {
	if len(secret) < minKeyFile {
		return nil, fmt.Errorf("has %d bytes, and a seal key needs %d random ones: make it with `head -c 32 /dev/urandom`", len(secret), minKeyFile)
	}
	k := &Key{secret: bytes.Clone(secret)}
	id, err := hkdf.Key(sha256.New, k.secret, nil, "meshlog seal key id", idSize)
	if err != nil {
		return nil, err
	}
	copy(k.id[:], id)
	return k, nil
}

// ID names the key without revealing it, for messages.
func (k *Key) ID() string { return hex.EncodeToString(k.id[:]) }

// boxKey returns the key of the box that follows a header.
func (k *Key) boxKey(head []byte) (*[keySize]byte, error) {
	derived, err := hkdf.Key(sha256.New, k.secret, head, "meshlog sealed file", keySize)
	if err != nil {
		return nil, err
	}
	return (*[keySize]byte)(derived), nil
}

// Seal returns content, sealed.
func (k *Key) Seal(content []byte) ([]byte, error) {
	if len(content) > maxContent {
		return nil, fmt.Errorf("%d bytes are too many for a sealed file, at most %d fit", len(content), maxContent)
	}
	random := make([]byte, saltSize+nonceSize)
	if _, err := rand.Read(random); err != nil {
		return nil, err
	}
	head := append(append([]byte(magic), k.id[:]...), random...)
	key, err := k.boxKey(head)
	if err != nil {
		return nil, err
	}
	return secretbox.Seal(head, content, (*[nonceSize]byte)(random[saltSize:]), key), nil
}

// Open returns the content of sealed bytes.
func (k *Key) Open(sealed []byte) ([]byte, error) {
	if !IsSealed(sealed) {
		return nil, ErrNotSealed
	}
	if len(sealed) < header+secretbox.Overhead {
		return nil, errors.New("is cut off: restore it from a copy")
	}
	head, box := sealed[:header], sealed[header:]
	key, err := k.boxKey(head)
	if err != nil {
		return nil, err
	}
	content, ok := secretbox.Open(nil, box, (*[nonceSize]byte)(head[header-nonceSize:]), key)
	if ok {
		return content, nil
	}
	if id := head[len(magic) : len(magic)+idSize]; !bytes.Equal(id, k.id[:]) {
		return nil, fmt.Errorf("was sealed with the seal key %x, and the given one is %s: give the key that sealed it", id, k.ID())
	}
	return nil, errors.New("is damaged: the seal key is the right one, but the content was changed; restore it from a copy")
}

// IsSealed reports whether bytes begin as a sealed file does.
func IsSealed(b []byte) bool { return bytes.HasPrefix(b, []byte(magic)) }

// ReadFile returns the content of a sealed file.
func (k *Key) ReadFile(path string) ([]byte, error) {
	b, err := ReadAtMost(path, header+secretbox.Overhead+maxContent)
	if err != nil {
		return nil, err
	}
	content, err := k.Open(b)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	return content, nil
}

// WriteFile seals content into a file, which only its owner may read. It replaces an
// existing file as one, and returns when the disk has it.
func (k *Key) WriteFile(path string, content []byte) error {
	return k.write(path, content, WriteFile)
}

// CreateFile is WriteFile for a file that must not exist: of several processes one
// succeeds, and the others get fs.ErrExist.
func (k *Key) CreateFile(path string, content []byte) error {
	return k.write(path, content, CreateFile)
}

func (k *Key) write(path string, content []byte, to func(string, []byte) error) error {
	sealed, err := k.Seal(content)
	if err != nil {
		return fmt.Errorf("%s: %w", path, err)
	}
	return to(path, sealed)
}

// WriteFile writes a file as Key.WriteFile does, unsealed.
func WriteFile(path string, content []byte) error {
	return place(path, content, os.Rename, SyncDir)
}

// CreateFile writes a file as Key.CreateFile does, unsealed.
func CreateFile(path string, content []byte) error {
	return place(path, content, func(tmp, path string) error {
		return errors.Join(os.Link(tmp, path), os.Remove(tmp)) // a rename would replace a file
	}, SyncDir)
}

// place writes a temporary file, syncs it, puts it at path, and syncs the directory.
func place(path string, content []byte, put func(tmp, path string) error, syncDir func(dir string) error) error {
	tmp, err := os.CreateTemp(filepath.Dir(path), "."+filepath.Base(path)+".*") // 0600
	if err != nil {
		return err
	}
	if err = errors.Join(write(tmp, content), tmp.Sync(), tmp.Close()); err == nil {
		failpoint.At(failpoint.FileWritten)
		err = put(tmp.Name(), path)
	}
	if err != nil {
		if gone := os.Remove(tmp.Name()); !errors.Is(gone, fs.ErrNotExist) {
			err = errors.Join(err, gone)
		}
		return err
	}
	failpoint.At(failpoint.FilePlaced)
	return syncDir(filepath.Dir(path))
}

// write writes content in two parts, so that a test can end the process between them.
func write(f *os.File, content []byte) error {
	half := len(content) / 2
	_, first := f.Write(content[:half])
	failpoint.At(failpoint.FileBegun)
	_, second := f.Write(content[half:])
	return errors.Join(first, second)
}

// SyncDir returns when the disk has the names in a directory.
func SyncDir(path string) error {
	d, err := os.Open(path)
	if err != nil {
		return err
	}
	return errors.Join(d.Sync(), d.Close())
}

// ReadPrivate reads a file of a secret, of most bytes at most. It refuses a file that
// every user may open.
func ReadPrivate(path string, most int) ([]byte, error) {
	info, err := os.Stat(path)
	if err != nil {
		return nil, err
	}
	if mode := info.Mode().Perm(); mode&0o007 != 0 {
		return nil, fmt.Errorf("%s: every user may open it, its mode is %04o: take that away with `chmod o= %[1]s`, or with defaultMode 0440 where it is a mounted Secret", path, mode)
	}
	return ReadAtMost(path, most)
}

// ReadAtMost reads a file of most bytes at most.
func ReadAtMost(path string, most int) ([]byte, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	b, err := io.ReadAll(io.LimitReader(f, int64(most)+1))
	if err == nil && len(b) > most {
		err = fmt.Errorf("%s: is larger than %d bytes", path, most)
	}
	return b, err
}
