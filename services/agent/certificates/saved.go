package certificates

import (
	"crypto/ecdsa"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"time"

	"meshlog.dev/services/internal/seal"
)

// maxSaved is how many bytes a saved identity may have.
const maxSaved = 1 << 20

// File keeps a certificate and its key over a restart, in clear, readable by its owner
// only: an agent that starts again proves its identity with it, and needs no other join
// token.
type File string

// Load returns the identity in the file; nil: there is none, or its certificate has
// ended. It refuses a file that other users may read: they could be the workload.
func (f File) Load(now time.Time) (*Identity, error) {
	info, err := os.Stat(string(f))
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	if mode := info.Mode().Perm(); mode&0o077 != 0 {
		return nil, fmt.Errorf("%s: other users may read the workload's key, the mode is %04o: remove the file, and make a new join token", f, mode)
	}
	b, err := seal.ReadAtMost(string(f), maxSaved)
	if err != nil {
		return nil, err
	}
	return load(string(f), b, now)
}

// load returns the identity in the content of a file; nil: its certificate has ended.
func load(path string, content []byte, now time.Time) (*Identity, error) {
	id, err := decode(content, now)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	if !now.Before(id.Ends()) {
		return nil, nil
	}
	return id, nil
}

// Save writes an identity.
func (f File) Save(i *Identity) error {
	b, err := encode(i)
	if err != nil {
		return err
	}
	return seal.WriteFile(string(f), b)
}

// SealedFile is a File that is encrypted with a key from elsewhere.
type SealedFile struct {
	Path string
	Key  *seal.Key
}

// Load returns the identity in the file; nil: there is none, or its certificate has ended.
func (f SealedFile) Load(now time.Time) (*Identity, error) {
	b, err := f.Key.ReadFile(f.Path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	defer clear(b)
	return load(f.Path, b, now)
}

// Save writes an identity.
func (f SealedFile) Save(i *Identity) error {
	b, err := encode(i)
	if err != nil {
		return err
	}
	defer clear(b)
	return f.Key.WriteFile(f.Path, b)
}

// encode returns what decode reads.
func encode(i *Identity) ([]byte, error) {
	key, err := x509.MarshalPKCS8PrivateKey(i.Certificate.PrivateKey)
	if err != nil {
		return nil, err
	}
	var b []byte
	for _, der := range append(i.Certificate.Certificate[:len(i.Certificate.Certificate):len(i.Certificate.Certificate)], i.Root.Raw) {
		b = append(b, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der})...)
	}
	return append(b, pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: key})...), nil
}

// decode reads what encode returns. Its errors do not quote the file.
func decode(b []byte, now time.Time) (*Identity, error) {
	var chain []string
	for {
		var block *pem.Block
		if block, b = pem.Decode(b); block == nil {
			return nil, errors.New("it has no private key")
		}
		if block.Type != "PRIVATE KEY" {
			chain = append(chain, string(pem.EncodeToMemory(block)))
			continue
		}
		key, err := x509.ParsePKCS8PrivateKey(block.Bytes)
		own, ok := key.(*ecdsa.PrivateKey)
		if err != nil || !ok {
			return nil, errors.New("its private key cannot be read")
		}
		return read(chain, own, now)
	}
}

// Restore begins with a certificate of an earlier process. It is renewed in time, by
// itself.
func (k *Keeper) Restore(id *Identity) {
	k.mu.Lock()
	defer k.mu.Unlock()
	id.until = id.Ends()
	k.now = id
	k.renewAt = renewal(id.Certificate.Leaf.NotBefore, id.until)
	close(k.changed)
	k.changed = make(chan struct{})
	k.Log.Info("has a certificate from before", "identity", subject(id.Certificate.Leaf), "serial", id.Certificate.Leaf.SerialNumber.Text(16), "ends", id.Ends(), "renewal", k.renewAt)
}
