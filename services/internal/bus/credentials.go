package bus

import (
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nkeys"
)

// fromFile reports whether URL is a bus file.
func (o ConnectOptions) fromFile() bool { return !strings.Contains(o.URL, "://") }

// where names the bus in errors.
func (o ConnectOptions) where() string {
	if o.Server != nil {
		return "this process"
	}
	return o.URL
}

// busFile returns the content of the bus file, and an option that reads the key of
// the role for each connection.
func (o ConnectOptions) busFile() (File, []nats.Option, error) {
	if o.TokenFile != "" || o.CredsFile != "" || o.NkeyFile != "" {
		return File{}, nil, fmt.Errorf("bus file %s: the key of each role is beside it; do not give another token or credentials with it", o.URL)
	}
	f, err := ReadBusFile(o.URL)
	if err != nil {
		return File{}, nil, err
	}
	path, err := keyOf(o.URL, o.Role)
	if err != nil {
		return File{}, nil, err
	}
	key, err := nats.NkeyOptionFromSeed(path)
	if err != nil {
		return File{}, nil, fmt.Errorf("bus file %s: %s: %w", o.URL, path, err)
	}
	return f, []nats.Option{key}, nil
}

// credentials returns options that read the credentials for each connection.
func (o ConnectOptions) credentials() ([]nats.Option, error) {
	files := []string{o.TokenFile, o.NkeyFile, o.CredsFile}
	if given := slices.DeleteFunc(files, func(file string) bool { return file == "" }); len(given) > 1 {
		return nil, errors.New("credentials of the bus: give one of a token file, a key file and a credentials file")
	}
	switch {
	case o.TokenFile != "":
		if _, err := readToken(o.TokenFile); err != nil {
			return nil, err
		}
		return []nats.Option{nats.TokenHandler(func() string {
			t, _ := readToken(o.TokenFile) // without a token the server refuses the connection
			return t
		})}, nil
	case o.NkeyFile != "":
		if _, err := ReadNkey(o.NkeyFile); err != nil {
			return nil, err
		}
		key, err := nats.NkeyOptionFromSeed(o.NkeyFile)
		return []nats.Option{key}, err
	case o.CredsFile != "":
		if err := checkCreds(o.CredsFile); err != nil {
			return nil, err
		}
		return []nats.Option{nats.UserCredentials(o.CredsFile)}, nil
	}
	return nil, nil
}

// secure returns options for TLS that read the files for each connection.
func (o ConnectOptions) secure() ([]nats.Option, error) {
	if (o.CertFile == "") != (o.KeyFile == "") {
		return nil, errors.New("TLS of the bus: a certificate and its key belong together; give both")
	}
	if o.CAFile == "" && o.CertFile == "" {
		return nil, nil
	}
	var cert nats.TLSCertHandler
	var roots nats.RootCAsHandler
	if o.CertFile != "" {
		cert = func() (tls.Certificate, error) {
			c, err := tls.LoadX509KeyPair(o.CertFile, o.KeyFile)
			if err != nil {
				return c, fmt.Errorf("TLS of the bus: certificate %s, key %s: %w", o.CertFile, o.KeyFile, err)
			}
			return c, nil
		}
	}
	if o.CAFile != "" {
		roots = func() (*x509.CertPool, error) {
			pem, err := os.ReadFile(o.CAFile)
			if err != nil {
				return nil, fmt.Errorf("TLS of the bus: %w", err)
			}
			pool := x509.NewCertPool()
			if !pool.AppendCertsFromPEM(pem) {
				return nil, fmt.Errorf("TLS of the bus: %s: holds no PEM certificate", o.CAFile)
			}
			return pool, nil
		}
	}
	option := nats.ClientTLSConfig(cert, roots)
	return []nats.Option{option}, option(&nats.Options{}) // reports errors of the files now
}

// Verify returns the errors in the files that the options name. It does not
// connect.
func (o ConnectOptions) Verify() error {
	var file error
	if o.fromFile() {
		_, file = ReadBusFile(o.URL)
	}
	_, credentials := o.credentials()
	_, secure := o.secure()
	return errors.Join(file, credentials, secure)
}

// checkCreds checks a file as nsc writes it.
func checkCreds(path string) error {
	b, err := os.ReadFile(path)
	if err != nil {
		return fmt.Errorf("credentials of the bus: %w", err)
	}
	if _, err = nkeys.ParseDecoratedJWT(b); err == nil {
		_, err = nkeys.ParseDecoratedNKey(b)
	}
	if err != nil {
		return fmt.Errorf("credentials of the bus: %s holds no JWT and key, as nsc writes them: %w", path, err)
	}
	return nil
}

// advise adds to a common connection error what the user can do.
func (o ConnectOptions) advise(err error) error {
	var authority x509.UnknownAuthorityError
	var names x509.HostnameError
	var invalid x509.CertificateInvalidError
	switch {
	case errors.Is(err, nats.ErrNoServers), errors.Is(err, nats.ErrTimeout):
		return fmt.Errorf("%w; is it running there?", err)
	case errors.Is(err, nats.ErrAuthExpired), errors.Is(err, nats.ErrAccountAuthExpired):
		return fmt.Errorf("%w; renew %s", err, o.user())
	case isAuth(err):
		return fmt.Errorf("%w; it does not take %s: give other credentials, or add these to its users", err, o.user())
	case errors.As(err, &authority):
		if o.CAFile != "" {
			return fmt.Errorf("%w; no authority in %s signed the server's certificate: is it the right --bus-ca?", err, o.CAFile)
		}
		return fmt.Errorf("%w; give the authority that signed the server's certificate with --bus-ca", err)
	case errors.As(err, &names):
		return fmt.Errorf("%w; give --bus a name that is in the server's certificate", err)
	case errors.As(err, &invalid) && invalid.Reason == x509.Expired:
		return fmt.Errorf("%w; the server's certificate must be renewed, or a clock is wrong", err)
	case errors.Is(err, nats.ErrSecureConnWanted):
		return fmt.Errorf("%w; the server has no TLS: remove --bus-ca and --bus-cert, or give the server a certificate", err)
	case errors.Is(err, nats.ErrTLS), strings.Contains(err.Error(), "remote error: tls:"): // the server ended the handshake
		if o.CertFile == "" {
			return fmt.Errorf("%w; the server wants a certificate: give --bus-cert and --bus-key", err)
		}
		return fmt.Errorf("%w; the server does not take the certificate in %s: has it expired, and is its issuer in the server's ca_file?", err, o.CertFile)
	}
	return err
}

// isAuth reports whether the server refused the user.
func isAuth(err error) bool {
	return errors.Is(err, nats.ErrAuthorization) || errors.Is(err, nats.ErrAuthRevoked) ||
		errors.Is(err, nats.ErrAuthExpired) || errors.Is(err, nats.ErrAccountAuthExpired)
}

// user names the user of the connection in errors.
func (o ConnectOptions) user() string {
	switch {
	case o.Server != nil:
		return "the key of its role"
	case o.fromFile():
		return "the key of its role beside the bus file"
	case o.TokenFile != "":
		return "the token in " + o.TokenFile
	case o.CredsFile != "":
		return "the credentials in " + o.CredsFile
	case o.NkeyFile != "":
		user, err := ReadNkey(o.NkeyFile)
		if err != nil {
			return "the key in " + o.NkeyFile
		}
		return "the key in " + o.NkeyFile + " (" + user + ")"
	case o.CertFile != "":
		return "the certificate in " + o.CertFile
	}
	return "a user without credentials"
}

func readToken(path string) (string, error) {
	b, err := os.ReadFile(path)
	if err != nil {
		return "", fmt.Errorf("token of the bus: %w", err)
	}
	t := strings.TrimSpace(string(b))
	if t == "" {
		return "", fmt.Errorf("token of the bus: %s is empty", path)
	}
	return t, nil
}

// ReadNkey returns the public key of the seed in a file. Servers know users by it.
func ReadNkey(path string) (string, error) {
	seed, err := os.ReadFile(path)
	if err != nil {
		return "", fmt.Errorf("key of the bus: %w", err)
	}
	defer clear(seed)
	pair, err := nkeys.ParseDecoratedNKey(seed)
	if err != nil {
		return "", fmt.Errorf("key of the bus: %s: holds no seed of a user's key, which begins with SU: %w", path, err)
	}
	defer pair.Wipe()
	user, err := pair.PublicKey()
	if err == nil && !nkeys.IsValidPublicUserKey(user) {
		err = errors.New("it is not the key of a user")
	}
	if err != nil {
		return "", fmt.Errorf("key of the bus: %s: %w", path, err)
	}
	return user, nil
}
