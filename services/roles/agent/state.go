package agent

import (
	"crypto/x509"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"time"

	"meshlog.dev/services/agent/certificates"
	"meshlog.dev/services/internal/seal"
	"meshlog.dev/services/mesh/spiffe"
)

// Files in --state-dir.
const (
	identityFile = "identity.pem" // the certificate, its root and its key
	rootsFile    = "roots.pem"    // the roots of the mesh
	namesFile    = "names"        // the names of the mesh, as frontends sent them
)

// maxRoots is how many bytes the roots may have.
const maxRoots = 1 << 20

// state returns the path of a file in --state-dir; empty: there is no such directory.
func (s *Settings) state(name string) string {
	if s.StateDir == "" {
		return ""
	}
	return filepath.Join(s.StateDir, name)
}

// openState makes the directory, or refuses one in which other users can read or write:
// with the key they could be the workload, with other roots they could be the mesh.
func (s *Settings) openState() error {
	if s.StateDir == "" {
		return nil
	}
	if err := os.MkdirAll(s.StateDir, 0o700); err != nil {
		return err
	}
	info, err := os.Stat(s.StateDir)
	if err != nil {
		return err
	}
	if mode := info.Mode().Perm(); mode&0o077 != 0 {
		return fmt.Errorf("%s: other users may use it, its mode is %04o: take that away with `chmod 700 %[1]s`", s.StateDir, mode)
	}
	return nil
}

// restore takes the certificate and the roots of an earlier process from --state-dir. A
// certificate of another workload is an error.
func (a *agent) restore() error {
	if a.StateDir == "" {
		return nil
	}
	id, err := certificates.File(a.state(identityFile)).Load(time.Now())
	if err != nil || id == nil {
		return err
	}
	of, err := spiffe.FromCertificate(id.Certificate.Leaf)
	if err != nil {
		return err
	}
	if of.Namespace != a.Namespace || a.Account != "" && of.ServiceAccount != a.Account {
		return fmt.Errorf("it is for %s, and the workload is in namespace %s with service account %q", of, a.Namespace, a.Account)
	}
	roots, err := seal.ReadAtMost(a.state(rootsFile), maxRoots)
	switch {
	case errors.Is(err, fs.ErrNotExist): // no frontend had told them; the certificate has its root
	case err != nil:
		return err
	case !x509.NewCertPool().AppendCertsFromPEM(roots):
		return fmt.Errorf("%s has no certificate", a.state(rootsFile))
	default:
		a.trust.mesh = roots
	}
	a.keeper.Restore(id)
	return nil
}
