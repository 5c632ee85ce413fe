package signer

import (
	"fmt"

	"meshlog.dev/services/internal/seal"
)

// maxFile is how many bytes a file with certificates or a key may have.
const maxFile = 1 << 20

// Keys says how the CA's key may be on disk (CA-4).
type Keys struct {
	// Seal opens sealed files.
	Seal *seal.Key
	// Clear allows files that are not sealed (--insecure-ca-key-file).
	Clear bool
}

// read returns the content of a file with a key.
func (k Keys) read(path string) ([]byte, error) {
	b, err := seal.ReadPrivate(path, maxFile)
	switch {
	case err != nil:
		return nil, err
	case seal.IsSealed(b) && k.Seal == nil:
		return nil, fmt.Errorf("%s: is sealed: give the key that sealed it with --seal-key-file", path)
	case seal.IsSealed(b):
		if b, err = k.Seal.Open(b); err != nil {
			return nil, fmt.Errorf("%s: %w", path, err)
		}
		return b, nil
	case k.Clear:
		return b, nil
	}
	// A mounted Secret is never on a disk.
	inMemory, err := inMemory(path)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	if !inMemory {
		return nil, fmt.Errorf("%s: the key is in clear on a disk: seal it, mount it as a Secret, or allow it with --insecure-ca-key-file", path)
	}
	return b, nil
}

// create writes a file that must not exist. Of several processes one succeeds; the
// others get fs.ErrExist.
func (k Keys) create(path string, content []byte) error {
	switch {
	case k.Seal != nil:
		return k.Seal.CreateFile(path, content)
	case k.Clear:
		return seal.CreateFile(path, content)
	}
	return fmt.Errorf("%s: the CA has no key yet, and a new one would be in clear: give --seal-key-file, or allow that with --insecure-ca-key-file", path)
}
