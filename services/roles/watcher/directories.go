package watcher

import (
	"context"
	"errors"
	"io"
	"os"

	"github.com/spf13/pflag"

	"meshlog.dev/services/internal/keyexchange/keyring"
	"meshlog.dev/services/internal/process"
	"meshlog.dev/services/roles/dryrun"
	"meshlog.dev/services/watcher/file"
	"meshlog.dev/services/watcher/keeper"
)

// Directories are the settings of the file watcher.
type Directories struct {
	Config       string // documents, including subdirectories
	Certificates string // a credential in each NAMESPACE/NAME; empty: none
	Revision     Revision
}

// Flags binds the settings.
func (d *Directories) Flags(fs *pflag.FlagSet) {
	fs.StringVar(&d.Config, "config", d.Config, "`directory` of YAML to watch, including its subdirectories")
	fs.StringVar(&d.Certificates, "certificates", d.Certificates, "`directory` of TLS credentials to watch: NAMESPACE/NAME/ with tls.crt and tls.key, ca.crt, ca.crl, tls.ocsp-staple. Needs --config and --secret-key-file; only the owner may be able to read a tls.key. "+
		"Set it to use certificates of this machine, or mounted Secrets, as Secrets of the mesh")
	d.Revision.Flags(fs)
}

// Check returns the errors of the settings, which need those of credentials.
func (d *Directories) Check(s Secrets) error {
	if d.Certificates == "" {
		return process.CheckConfig(d.Config)
	}
	var certificates error
	switch info, err := os.Stat(d.Certificates); {
	case s.KeyFile == "":
		certificates = process.Invalid("certificates", "needs the key of the HMACs: give its file with --secret-key-file")
	case err != nil:
		certificates = process.Invalid("certificates", "%w", err)
	case !info.IsDir():
		certificates = process.Invalid("certificates", "not a directory")
	}
	return errors.Join(process.CheckConfig(d.Config), certificates)
}

// Watcher returns the watcher of the directories.
func (d *Directories) Watcher(s Secrets) (*file.Watcher, error) {
	w := file.New(d.Config).OfRevision(d.Revision.Name)
	if d.Certificates == "" {
		return w, nil
	}
	o, err := s.Options()
	if err != nil {
		return nil, err
	}
	return w.WithCredentials(d.Certificates, o), nil
}

// Keys returns what answers for the keys of the credentials, with the xkey of a ring; nil
// without credentials.
func (d *Directories) Keys(s Secrets, source keeper.Source, ring keyring.Ring) (*Keys, error) {
	if d.Certificates == "" {
		return nil, nil
	}
	o, err := s.Options()
	return &Keys{Ring: ring, Keeper: keeper.Keeper{Source: source, Options: o}}, err
}

// Verify writes to w the problems that meshlog would report in the directories. It
// returns an error if one of them is an error.
func (d *Directories) Verify(ctx context.Context, s Secrets, w io.Writer) error {
	if d.Check(s) != nil {
		return nil // Check has reported it
	}
	files, err := d.Watcher(s)
	if err != nil {
		return err
	}
	where := "its documents"
	if d.Certificates != "" {
		where += " and the credentials of --certificates"
	}
	return dryrun.Check(ctx, w, files, "config", where)
}
