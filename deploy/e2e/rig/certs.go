package rig

import (
	"errors"
	"os"
	"path/filepath"

	"meshlog.dev/deploy/testkit/certtest"
)

// TLS names PEM files: a certificate, its key, and the CAs that the peer is
// verified with.
type TLS struct{ Cert, Key, CA string }

// CA signs certificates for loopback that are valid for a day.
type CA struct {
	dir string
	ca  *certtest.CA
}

// NewCA creates a CA that keeps its own files and the signed ones in dir.
func NewCA(dir, name string) (*CA, error) {
	c := &CA{dir, certtest.NewCA(name)}
	return c, replace(c.path("ca"), c.ca.PEM())
}

// Sign writes a certificate for localhost and an identity, which may be empty. It
// replaces an earlier certificate of the same name.
func (c *CA) Sign(name, identity string) (TLS, error) {
	var uris []string
	if identity != "" {
		uris = []string{identity}
	}
	pair := c.ca.Peer(name, uris...)
	files := TLS{Cert: c.path(name), Key: c.path(name + "-key"), CA: c.path("ca")}
	return files, errors.Join(replace(files.Key, pair.Key), replace(files.Cert, pair.Cert))
}

func (c *CA) path(name string) string { return filepath.Join(c.dir, name+".pem") }

// replace replaces a file in one step.
func replace(path string, content []byte) error {
	if err := os.WriteFile(path+".new", content, 0o600); err != nil {
		return err
	}
	return os.Rename(path+".new", path)
}
