package process

import (
	"context"
	"errors"
	"log/slog"
	"os"

	"github.com/spf13/pflag"

	"meshlog.dev/services/internal/bus"
)

// Bus is the settings of a process that joins a bus.
type Bus struct {
	// URL is where the bus is: NATS URLs separated by commas, or the path of
	// the bus file that `meshlog up` writes (DATA/bus).
	URL string
	// One of: a file with the token, with the seed of a user's key, with a user's
	// JWT and key.
	TokenFile, NkeyFile, CredsFile string
	// PEM files for TLS: whom to trust, and who the client is.
	CAFile, CertFile, KeyFile string
	// Domain is the mesh: the processes of one share a log.
	Domain string
	// ID is the process's name, unique among its kind and stable over restarts.
	ID string
}

// DefaultBus is the bus of a process that was told nothing.
func DefaultBus() Bus {
	host, err := os.Hostname()
	if err != nil {
		host = "" // Check asks for a name
	}
	return Bus{Domain: DefaultDomain, ID: host}
}

// DefaultDomain is the name of a mesh that has no other.
const DefaultDomain = "mesh"

// Flags binds the settings.
func (b *Bus) Flags(fs *pflag.FlagSet) {
	fs.StringVar(&b.ID, "id", b.ID, "`name` of this process, unique among its kind and stable over restarts: leadership, sessions and reports go by it. "+
		"Where none is given it is the machine's name; give one where several of a kind run on a machine, or machines change their names")
	fs.Lookup("id").DefValue = "" // the same text on every machine
	fs.StringVar(&b.URL, "bus", b.URL, "NATS `URL`s, separated by commas; or the path of the bus file of `meshlog up`, DATA/bus. "+
		"Name all servers of a cluster, so that it is found when one is down")
	fs.StringVar(&b.TokenFile, "bus-token-file", b.TokenFile, "`file` with the token that opens the bus, read anew for every connection")
	fs.StringVar(&b.NkeyFile, "bus-nkey", b.NkeyFile, "`file` with the seed of a user's key, as `meshlog bus-auth` writes it, read anew for every connection. "+
		"Give it where each process has a user of its own on the bus")
	fs.StringVar(&b.CredsFile, "bus-creds", b.CredsFile, "`file` with a user's JWT and key, as nsc writes it, read anew for every connection. "+
		"Give it where the bus has accounts of nsc")
	fs.StringVar(&b.CAFile, "bus-ca", b.CAFile, "PEM `file` with whom to trust as the bus. "+
		"Give it where the bus speaks TLS with a certificate that this machine does not trust anyway")
	fs.StringVar(&b.CertFile, "bus-cert", b.CertFile, "PEM `file` with this process's certificate for the bus. Give it, with --bus-key, where the bus asks for one")
	fs.StringVar(&b.KeyFile, "bus-key", b.KeyFile, "PEM `file` with the key of --bus-cert")
	fs.StringVar(&b.Domain, "domain", b.Domain, "`name` of the mesh: the processes of one share a log. Change it to have several meshes on one bus")
}

// Check says what is missing.
func (b *Bus) Check() error {
	var errs []error
	if b.URL == "" {
		errs = append(errs, Invalid("bus", "is missing: give nats://HOST:PORT, or the path of the bus file of `meshlog up` (DATA/bus)"))
	} else if err := bus.CheckURL(b.URL); err != nil {
		errs = append(errs, err) // it may hold a password: the value is not told
	}
	if b.ID == "" {
		errs = append(errs, Invalid("id", "is empty: give a name, or leave the setting out to take the name of this machine, if it has one"))
	}
	if b.Domain == "" {
		errs = append(errs, Invalid("domain", "is empty"))
	}
	return errors.Join(errs...)
}

// Verify says what is wrong with the files that the settings name.
func (b *Bus) Verify() error {
	if b.URL == "" {
		return nil
	}
	return b.options().Verify()
}

// Options are the settings as a connection takes them, for a process or command
// of this role.
func (b *Bus) Options(role bus.Role, log *slog.Logger) bus.ConnectOptions {
	o := b.options()
	o.Name, o.Role, o.Log = role.String()+"-"+b.ID, role, log
	return o
}

func (b *Bus) options() bus.ConnectOptions {
	return bus.ConnectOptions{
		URL: b.URL, TokenFile: b.TokenFile, NkeyFile: b.NkeyFile, CredsFile: b.CredsFile,
		CAFile: b.CAFile, CertFile: b.CertFile, KeyFile: b.KeyFile,
	}
}

// Connect returns what connects a process of this role, and goes on trying
// until it has; nil without a URL.
func (b *Bus) Connect(role bus.Role, p *Process) func(context.Context) (*bus.Conn, error) {
	if b.URL == "" {
		return nil
	}
	return func(ctx context.Context) (*bus.Conn, error) {
		return bus.ConnectWait(ctx, b.Options(role, p.Log.With(Component, "bus")))
	}
}
