package frontend

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"os"
	"sync"

	"github.com/spf13/pflag"

	"meshlog.dev/proto/ident"
	auditv1 "meshlog.dev/proto/meshlog/audit/v1"
	"meshlog.dev/services/frontend/keys"
	"meshlog.dev/services/internal/audit"
	"meshlog.dev/services/internal/keyexchange"
	"meshlog.dev/services/internal/keyexchange/keyring"
	"meshlog.dev/services/internal/process"
	"meshlog.dev/services/internal/seal"
)

// KeyExchange are the settings of a frontend that asks for private keys over the bus.
type KeyExchange struct {
	File     string // the frontend's own xkey; empty: it asks for none
	SumsFile string // with the key of the HMACs; empty: only watchers check them

	Certificates string // directory of credentials that this machine has too; empty: none
	Instance     string // of the file watcher of the directory
}

// Flags binds the settings.
func (k *KeyExchange) Flags(fs *pflag.FlagSet) {
	fs.StringVar(&k.File, "key-exchange", k.File, "`file` with the frontends' own xkey, frontend.xk, as `meshlog bus-auth` writes it, and beside it the list of the public ones, "+keyring.ListName+"; both are read for each request. "+
		"Set it so that the frontend can ask watchers for the private keys of TLS credentials, sealed")
	fs.StringVar(&k.SumsFile, "secret-key-file", k.SumsFile, "`file` with the key that all watchers have as --secret-key-file. Needs --key-exchange or --certificates. "+
		"Set it so that the frontend itself checks that a private key is the one that the version names; without it, it relies on the watchers")
	fs.StringVar(&k.Certificates, "certificates", k.Certificates, "`directory` of TLS credentials that a file watcher has as --certificates and this machine too: private keys are read there first, if they are those that the version names. Needs --secret-key-file. "+
		"Set it so that the frontend has the keys without its watcher")
	fs.StringVar(&k.Instance, "certificates-instance", k.Instance, "`instance` of the file watcher of --certificates")
}

// DefaultKeyExchange returns the defaults.
func DefaultKeyExchange() KeyExchange { return KeyExchange{Instance: "default"} }

// Check returns an error if a setting has no effect.
func (k *KeyExchange) Check() error {
	switch {
	case k.Certificates != "" && k.SumsFile == "":
		return process.Invalid("certificates", "needs the key of the HMACs: give its file with --secret-key-file")
	case k.Certificates != "" && k.Instance == "":
		return process.Invalid("certificates-instance", "is empty")
	case k.File == "" && k.Certificates == "" && k.SumsFile != "":
		return process.Invalid("secret-key-file", "has no effect without --key-exchange or --certificates")
	}
	return nil
}

// Verify checks the files that the settings name.
func (k *KeyExchange) Verify() error {
	var ring, dir error
	if k.File != "" {
		if ring = k.ring().Verify(); ring != nil {
			ring = process.Invalid("key-exchange", "%w", ring)
		}
	}
	if k.Certificates != "" {
		switch info, err := os.Stat(k.Certificates); {
		case err != nil:
			dir = process.Invalid("certificates", "%w", err)
		case !info.IsDir():
			dir = process.Invalid("certificates", "not a directory")
		}
	}
	_, sums := k.sums()
	return errors.Join(ring, dir, sums)
}

// Keys returns what the frontend needs to get private keys, and to keep them as s says.
func (k *KeyExchange) Keys(s *Settings) (Keys, error) {
	sums, err := k.sums()
	sealed, sealErr := s.SealKey()
	keys := Keys{Ring: k.ring(), Sums: sums, Seal: sealed}
	if k.Certificates != "" {
		keys.local = local{k.Certificates, ident.Shard{Source: "file", Instance: k.Instance}}.read
	}
	return keys, errors.Join(err, sealErr)
}

func (k *KeyExchange) ring() keyring.Ring { return keyring.Ring{File: k.File} }

func (k *KeyExchange) sums() ([]byte, error) {
	if k.SumsFile == "" {
		return nil, nil
	}
	return process.ReadSecretKey(k.SumsFile)
}

// Ask asks a watcher for fields of a credential. The caller wipes the answer.
type Ask = func(ctx context.Context, w keyexchange.Want) (*keyexchange.Answer, error)

// Keys say how a frontend gets private keys and where it keeps them.
type Keys struct {
	Ring    keyring.Ring        // the files for requests over the bus; zero: none are sent
	Keepers map[ident.Shard]Ask // watchers of this process: a request to one is a function call (KEY-3)
	Sums    []byte              // the key of the HMACs; empty: only watchers check them
	Seal    *seal.Key           // the key of the files in process.KeysDir; nil: memory only

	local func(ctx context.Context, k keys.Key) ([]byte, error) // reads what this machine has; nil: nothing
}

// keyStore returns the store of the private keys. It has those in sealed files. Changed is
// called when a key has come, or is known to be gone.
func (o *Options) keyStore(log *slog.Logger, link *busLink, changed func(keys.Key)) *keys.Store {
	link.audit.log = log
	return keys.New(keys.Config{
		Ask: o.Keys.ask(link), Local: o.Keys.local, Sums: o.Keys.Sums, Dir: process.KeysDir(o.Data), Seal: o.Keys.Seal, Log: log, Audit: link.audit.write, OnChange: changed,
	})
}

// ask returns what asks watchers, those of this process by a call; nil: there are none to
// ask.
func (k *Keys) ask(link *busLink) Ask {
	if k.Ring.File == "" && len(k.Keepers) == 0 {
		return nil
	}
	return func(ctx context.Context, w keyexchange.Want) (*keyexchange.Answer, error) {
		if keeper := k.Keepers[w.Shard]; keeper != nil {
			return keeper(ctx, w)
		}
		if k.Ring.File == "" {
			return nil, fmt.Errorf("cannot ask %s for a key: give the frontend's xkey with --key-exchange", w.Shard)
		}
		fleet := link.fleet.Load()
		if fleet == nil {
			return nil, errAway
		}
		return k.Ring.Ask(ctx, w, func(ctx context.Context, request []byte) ([]byte, error) {
			return fleet.RequestKey(ctx, w.Shard, request)
		})
	}
}

// reportKeys makes the metrics, /readyz and a debug page show the store.
func reportKeys(admin *process.Admin, store *keys.Store) {
	admin.Register(store)
	admin.Warn("keys", store.Trouble)
	admin.Page("keys", "private keys by object and HMAC, never their content: which are here, which are missing", func(w http.ResponseWriter, r *http.Request) {
		if process.Params(w, r) != nil {
			process.WriteJSON(w, store.Status())
		}
	})
}

// earlyRecords is how many records of the audit wait for the first connection to the bus.
const earlyRecords = 1024

// records passes records to the writer of the audit, and keeps those from before there is
// one.
type records struct {
	log *slog.Logger

	mu     sync.Mutex
	writer *audit.Writer
	early  []*auditv1.Record
}

// open is called once, with the writer.
func (r *records) open(w *audit.Writer) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, record := range r.early {
		w.Write(record)
	}
	r.writer, r.early = w, nil
}

// write never waits for the bus.
func (r *records) write(record *auditv1.Record) {
	r.mu.Lock()
	defer r.mu.Unlock()
	switch {
	case r.writer != nil:
		r.writer.Write(record)
	case len(r.early) < earlyRecords:
		r.early = append(r.early, record)
	default:
		r.log.Error("a record of the audit is lost: too many wait for the bus", "object", record.GetObject(), "name", record.GetName(), "reason", record.GetReason())
	}
}
