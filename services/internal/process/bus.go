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
	fs.StringVar(&b.ID, "id", b.ID, "`name` of this process, unique among its kind and stable over restarts")
	fs.StringVar(&b.URL, "bus", b.URL, "NATS `URL`s, separated by commas; or the bus file of `meshlog up`, DATA/bus")
	fs.StringVar(&b.TokenFile, "bus-token-file", b.TokenFile, "`file` with the token that opens the bus")
	fs.StringVar(&b.NkeyFile, "bus-nkey", b.NkeyFile, "`file` with the seed of a user's key, as `meshlog bus-auth` writes it")
	fs.StringVar(&b.CredsFile, "bus-creds", b.CredsFile, "`file` with a user's JWT and key, as nsc writes it")
	fs.StringVar(&b.CAFile, "bus-ca", b.CAFile, "PEM `file`: whom to trust as the bus")
	fs.StringVar(&b.CertFile, "bus-cert", b.CertFile, "PEM `file`: this process's certificate for the bus")
	fs.StringVar(&b.KeyFile, "bus-key", b.KeyFile, "PEM `file`: the certificate's key")
	fs.StringVar(&b.Domain, "domain", b.Domain, "`name` of the mesh")
}

// Check says what is missing.
func (b *Bus) Check() error {
	switch {
	case b.URL == "":
		return errors.New("--bus is missing: give nats://HOST:PORT, or the path of the bus file of `meshlog up` (DATA/bus)")
	case b.ID == "":
		return errors.New("--id is missing, and this machine has no name to take instead")
	case b.Domain == "":
		return errors.New("--domain is empty")
	}
	return bus.CheckURL(b.URL)
}

// Options are the settings as a connection takes them, for a process or command
// of this role.
func (b *Bus) Options(role bus.Role, log *slog.Logger) bus.ConnectOptions {
	return bus.ConnectOptions{
		URL: b.URL, TokenFile: b.TokenFile, NkeyFile: b.NkeyFile, CredsFile: b.CredsFile,
		CAFile: b.CAFile, CertFile: b.CertFile, KeyFile: b.KeyFile,
		Name: role.String() + "-" + b.ID, Role: role, Log: log,
	}
}

// Connect returns what connects a process of this role, and goes on trying
// until it has; nil without a URL.
func (b *Bus) Connect(role bus.Role, p *Process) func(context.Context) (*bus.Conn, error) {
	if b.URL == "" {
		return nil
	}
	return func(ctx context.Context) (*bus.Conn, error) {
		return bus.ConnectWait(ctx, b.Options(role, p.Log))
	}
}
