package watcher

import (
	"github.com/spf13/pflag"

	"meshlog.dev/services/internal/process"
	"meshlog.dev/services/mesh/credential"
)

// Secrets are the settings of watchers that read TLS credentials.
type Secrets struct {
	KeyFile string // with the key of the HMACs
	Public  bool   // certificates are on the log, in clear
}

// DefaultSecrets returns the defaults.
func DefaultSecrets() Secrets { return Secrets{Public: true} }

// Flags binds the settings.
func (s *Secrets) Flags(fs *pflag.FlagSet) {
	fs.StringVar(&s.KeyFile, "secret-key-file", s.KeyFile, "`file` with a key, the same for all watchers. With it, the watcher publishes references to TLS credentials: their certificates, and HMACs instead of the rest. "+
		"Set it so that proxies notice rotations; without it, the watcher does not read Secrets")
	fs.BoolVar(&s.Public, "public-certificates", s.Public, "put the certificates of credentials on the log, never their keys. "+
		"Set it to false if no reader of the log may see them; the log then has HMACs only")
}

// Options reads the key file and returns what references reveal; they have no key if
// no file is set.
func (s *Secrets) Options() (credential.Options, error) {
	o := credential.Options{Public: s.Public}
	if s.KeyFile == "" {
		return o, nil
	}
	var err error
	o.Key, err = process.ReadSecretKey(s.KeyFile)
	return o, err
}
