package watcher

import (
	"github.com/spf13/pflag"

	"meshlog.dev/services/internal/keyexchange/keyring"
	"meshlog.dev/services/internal/process"
	"meshlog.dev/services/watcher/keeper"
)

// KeyExchange is the setting of watchers that give private keys to frontends.
type KeyExchange struct {
	File string // the watcher's own xkey; empty: it gives none
}

// Flags binds the setting, which needs another.
func (k *KeyExchange) Flags(fs *pflag.FlagSet, needs string) {
	fs.StringVar(&k.File, "key-exchange", k.File, "`file` with the watcher's own xkey, watcher-SOURCE-INSTANCE.xk, as `meshlog bus-auth` writes it, and beside it the list of the public ones, "+keyring.ListName+"; both are read for each request. Needs --"+needs+". "+
		"Set it so that frontends can ask the watcher for private keys, sealed")
}

// Check returns an error if the setting has no effect, because the one that it needs has
// no value.
func (k *KeyExchange) Check(needs, value string) error {
	if k.File != "" && value == "" {
		return process.Invalid("key-exchange", "has no effect without --%s", needs)
	}
	return nil
}

// Verify checks the files that the setting names.
func (k *KeyExchange) Verify() error {
	if k.File == "" {
		return nil
	}
	if err := k.Ring().Verify(); err != nil {
		return process.Invalid("key-exchange", "%w", err)
	}
	return nil
}

// Keys returns what answers for the keys in the directories; nil without the setting.
func (k *KeyExchange) Keys(d Directories, s Secrets, source keeper.Source) (*Keys, error) {
	if k.File == "" {
		return nil, nil
	}
	return d.Keys(s, source, k.Ring())
}

// Ring returns the files of the setting; it is zero without it.
func (k *KeyExchange) Ring() keyring.Ring { return keyring.Ring{File: k.File} }
