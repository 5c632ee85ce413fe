package process

import (
	"context"
	"errors"
	"log/slog"
	"os"

	"github.com/spf13/pflag"

	"meshlog.dev/services/internal/bus"
)

// Bus holds the settings of a process that connects to a bus. The flags' texts
// describe them.
type Bus struct {
	bus.ConnectOptions // the address and the files; Options adds the rest
	Domain             string
	ID                 string
}

// DefaultBus returns the default settings. ID is empty if the machine has no name.
func DefaultBus() Bus {
	host, _ := os.Hostname()
	return Bus{Domain: DefaultDomain, ID: host}
}

// DefaultDomain is the default name of a mesh.
const DefaultDomain = "mesh"

// Flags binds the settings.
func (b *Bus) Flags(fs *pflag.FlagSet) {
	fs.StringVar(&b.ID, "id", b.ID, "`name` of this process, unique for its role and stable over restarts: leadership, sessions and reports use it. "+
		"The default is the machine's name. Set it if several processes of a role run on a machine, or if machines change their names")
	fs.Lookup("id").DefValue = "" // the same text on every machine
	fs.StringVar(&b.URL, "bus", b.URL, "NATS `URL`s, separated by commas; or the path of the bus file of `meshlog up`, DATA/bus. "+
		"Name all servers of a cluster, so that the process can connect while one is down")
	fs.StringVar(&b.TokenFile, "bus-token-file", b.TokenFile, "`file` with the token for the bus, read for every connection")
	fs.StringVar(&b.NkeyFile, "bus-nkey", b.NkeyFile, "`file` with the seed of a user's key, as `meshlog bus-auth` writes it, read for every connection. "+
		"Set it if each process has its own user on the bus")
	fs.StringVar(&b.CredsFile, "bus-creds", b.CredsFile, "`file` with a user's JWT and key, as nsc writes it, read for every connection. "+
		"Set it if the accounts of the bus are made with nsc")
	fs.StringVar(&b.CAFile, "bus-ca", b.CAFile, "PEM `file` with the CAs of the bus's certificate. "+
		"Set it if the bus uses TLS and this machine does not already trust its certificate")
	fs.StringVar(&b.CertFile, "bus-cert", b.CertFile, "PEM `file` with this process's certificate for the bus. Set it, with --bus-key, if the bus requires client certificates")
	fs.StringVar(&b.KeyFile, "bus-key", b.KeyFile, "PEM `file` with the key of --bus-cert")
	fs.StringVar(&b.Domain, "domain", b.Domain, "`name` of the mesh, whose processes share a log. Change it to run several meshes on one bus")
}

// Check returns all errors of the settings.
func (b *Bus) Check() error {
	var errs []error
	if b.URL == "" {
		errs = append(errs, Invalid("bus", "is missing: give nats://HOST:PORT, or the path of the bus file of `meshlog up` (DATA/bus)"))
	} else if err := bus.CheckURL(b.URL); err != nil {
		errs = append(errs, err) // not Invalid, which would print a password in the URL
	}
	if b.ID == "" {
		errs = append(errs, Invalid("id", "is empty: give a name, or remove the setting to use the name of this machine, if it has one"))
	}
	if b.Domain == "" {
		errs = append(errs, Invalid("domain", "is empty"))
	}
	return errors.Join(errs...)
}

// Verify checks the files that the settings name.
func (b *Bus) Verify() error {
	if b.URL == "" {
		return nil
	}
	return b.ConnectOptions.Verify()
}

// Options returns the options of a connection for a process or command of a role.
func (b *Bus) Options(role bus.Role, log *slog.Logger) bus.ConnectOptions {
	o := b.ConnectOptions
	o.Name, o.Role, o.Log = role.String()+"-"+b.ID, role, log
	return o
}

// Connect returns a function that connects a process of a role and retries until
// it succeeds. Connect returns nil without a URL.
func (b *Bus) Connect(role bus.Role, p *Process) func(context.Context) (*bus.Conn, error) {
	if b.URL == "" {
		return nil
	}
	return func(ctx context.Context) (*bus.Conn, error) {
		return bus.ConnectWait(ctx, b.Options(role, p.Log.With(Component, "bus")))
	}
}
