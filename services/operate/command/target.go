package command

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"meshlog.dev/events/archive"
	"meshlog.dev/events/natslog"
	"meshlog.dev/services/internal/audit"
	"meshlog.dev/services/internal/bus"
	"meshlog.dev/services/internal/logcopy"
	"meshlog.dev/services/internal/process"
	"meshlog.dev/services/operate/past"
	"meshlog.dev/store/bolt"
	"meshlog.dev/store/natsfeed"
)

// Target is the mesh that the flags of a command name.
type Target struct {
	Data    string // data directory; empty: the flags of the bus name the mesh
	Bus     process.Bus
	Stderr  io.Writer // takes progress and warnings
	archive string    // file
	// operatorKey is the file with the key that signs; empty: nothing is signed.
	operatorKey string
	flags       *pflag.FlagSet
	admin       bool
	conn        *bus.Conn // nil before Conn
	away        error     // why Conn fails; nil: it connects
	closers     []func() error
}

// On returns the mesh that a connection of the caller reaches, for a process that has one.
// The caller closes the connection.
func On(conn *bus.Conn, domain string) *Target {
	t := &Target{Bus: process.DefaultBus(), Stderr: io.Discard, conn: conn}
	t.Bus.Domain = domain
	return t
}

// Unreachable returns a mesh whose bus cannot be reached, for the reason that all that needs the
// bus then gives.
func Unreachable(why error) *Target {
	return &Target{Bus: process.DefaultBus(), Stderr: io.Discard, away: why}
}

// SignWith makes OperatorLog sign with the key in a file; empty: it signs nothing.
func (t *Target) SignWith(file string) *Target {
	t.operatorKey = file
	return t
}

// bindTarget binds the flags that name a mesh. The flags that say how to connect
// are the same for all commands and more than a command's own: its help does not
// list them, `meshlog options` does.
func bindTarget(cmd *cobra.Command) *Target {
	t := &Target{Bus: process.DefaultBus(), Stderr: io.Discard, flags: cmd.Flags()}
	t.flags.StringVar(&t.Data, "data", "", "data `directory` of `meshlog up`")
	t.Bus.ID = strconv.Itoa(os.Getpid())
	t.Bus.Flags(t.flags)
	t.flags.StringVar(&t.operatorKey, OperatorKeyFlag, "", "`file` with the key of an operator, as `meshlog bus-auth --operator` writes it: "+
		"commands that change the mesh sign with it. Set it if the MeshPolicy names operators")
	t.flags.VisitAll(func(f *pflag.Flag) { f.Hidden = f.Hidden || isConnection(f) || f.Name == "id" })
	return t
}

func isConnection(f *pflag.Flag) bool {
	return strings.HasPrefix(f.Name, "bus-") || f.Name == "domain" || f.Name == OperatorKeyFlag
}

// Connection returns the flags that say how to connect to a bus.
func Connection() *pflag.FlagSet {
	shown := pflag.NewFlagSet("options", pflag.ContinueOnError)
	bindTarget(&cobra.Command{}).flags.VisitAll(func(f *pflag.Flag) {
		if isConnection(f) || f.Name == "bus" {
			f.Hidden = false
			shown.AddFlag(f)
		}
	})
	return shown
}

// CloseLater makes Close call c. Close calls the last added function first.
func (t *Target) CloseLater(c func() error) { t.closers = append(t.closers, c) }

// Close closes what the command opened.
func (t *Target) Close() error {
	var errs []error
	for _, c := range slices.Backward(t.closers) {
		errs = append(errs, c())
	}
	return errors.Join(errs...)
}

// Given reports whether the command line itself has a flag; a variable, which
// names the mesh of all commands, does not count.
func (t *Target) Given(flag string) bool { return process.OnCommandLine(t.flags, flag) }

// Progress returns a display for long work; what is its verb ("copied").
func (t *Target) Progress(what string) *Progress { return &Progress{w: t.Stderr, what: what} }

// AsAdmin makes Conn connect with the administrator's key, if it finds the bus by a
// data directory or a bus file. Otherwise the user gives the key, by --bus-nkey.
func (t *Target) AsAdmin() { t.admin = true }

// Conn connects to the bus, once.
func (t *Target) Conn() (*bus.Conn, error) {
	if t.conn != nil {
		return t.conn, nil
	}
	if t.away != nil {
		return nil, t.away
	}
	role := bus.Operator()
	if t.admin {
		role = bus.Admin()
	}
	o := t.Bus.Options(role, slog.New(slog.DiscardHandler))
	if o.URL == "" && t.Data == "" {
		return nil, Usage("which mesh? Give --data DIR, the data directory of `meshlog up` (or set MESHLOG_DATA), or --bus URL")
	}
	o.URL = cmp.Or(o.URL, filepath.Join(t.Data, bus.FileName))
	conn, err := bus.Connect(o)
	if errors.Is(err, bus.ErrNoBusFile) && t.Bus.URL == "" {
		return nil, fmt.Errorf("%s: %w; start `meshlog up` on it", t.Data, bus.ErrNoBusFile)
	}
	if err != nil {
		return nil, err
	}
	t.use(conn)
	return conn, nil
}

func (t *Target) use(conn *bus.Conn) {
	t.conn = conn
	t.CloseLater(func() error { conn.Close(); return nil })
}

// open opens the log and the version chain.
func (t *Target) open(ctx context.Context) (*natslog.Log, *natsfeed.Feed, error) {
	log, err := t.Log(ctx)
	if err != nil {
		return nil, nil, err
	}
	chain, err := t.Chain(ctx)
	return log, chain, err
}

// Log opens the log.
func (t *Target) Log(ctx context.Context) (*natslog.Log, error) {
	conn, err := t.Conn()
	if err != nil {
		return nil, err
	}
	log, err := natslog.Open(ctx, conn, natslog.Options{Domain: t.Bus.Domain})
	if err != nil {
		return nil, err
	}
	t.CloseLater(log.Close)
	return log, nil
}

// Chain opens the version chain.
func (t *Target) Chain(ctx context.Context) (*natsfeed.Feed, error) {
	conn, err := t.Conn()
	if err != nil {
		return nil, err
	}
	return natsfeed.Open(ctx, conn, natsfeed.Options{Domain: t.Bus.Domain})
}

// Fleet returns the processes that report on the bus.
func (t *Target) Fleet() (*bus.Fleet, error) {
	conn, err := t.Conn()
	if err != nil {
		return nil, err
	}
	return bus.NewFleet(conn, t.Bus.Domain, slog.New(slog.DiscardHandler)), nil
}

// Reports asks all processes to report.
func (t *Target) Reports(ctx context.Context, with bus.Detail) (*bus.Reports, error) {
	fleet, err := t.Fleet()
	if err != nil {
		return nil, err
	}
	return fleet.Reports(ctx, with)
}

// WarnSilent says on standard error which processes reported before and do not
// answer now, and why answers are left out.
func (t *Target) WarnSilent(r *bus.Reports) {
	for _, p := range r.Silent {
		role, name, _ := strings.Cut(p.GetName(), ".")
		fmt.Fprintf(t.Stderr, "%s %s reported %s and does not answer: its part is missing here.\n", role, name, Ago(time.Since(p.GetHeard().AsTime())))
	}
	for _, cut := range r.Cut {
		fmt.Fprintf(t.Stderr, "Processes are missing here: %s.\n", cut)
	}
}

// Past opens the past of the mesh: over the bus if the mesh runs, from a copy of
// its data directory if not, or from an archive. Unless it is the bus, standard
// error says which.
func (t *Target) Past(ctx context.Context) (*past.Past, error) {
	switch {
	case t.archive != "" && (t.Given("data") || t.Given("bus")):
		return nil, Usage("--archive and --data or --bus: give one of them")
	case t.archive != "":
		return t.archived(ctx)
	}
	switch runs, err := t.runs(); {
	case err != nil:
		return nil, err
	case runs:
		return t.onBus(ctx, true)
	}
	return t.ended(ctx)
}

// runs reports whether a process runs on the data directory, or the flags name a bus.
func (t *Target) runs() (bool, error) {
	if t.Data == "" || t.Bus.URL != "" {
		return true, nil
	}
	if info, err := os.Stat(t.Data); err != nil || !info.IsDir() {
		return false, NotFound("--data %s: there is no such directory", t.Data)
	}
	return bus.Running(t.Data)
}

// Audit opens the audit of the mesh: over the bus if the mesh runs, and from a copy of
// its data directory if not. live reports that it gets new records.
func (t *Target) Audit() (r *audit.Reader, live bool, err error) {
	if live, err = t.runs(); err != nil {
		return nil, false, err
	}
	if !live {
		if err := t.copied("audit"); errors.Is(err, bus.ErrNoStreams) {
			return nil, false, NotFound("%s: holds no audit; is it the data directory of `meshlog up`?", t.Data)
		} else if err != nil {
			return nil, false, err
		}
	}
	conn, err := t.Conn()
	if err != nil {
		return nil, false, err
	}
	r, err = audit.NewReader(conn, t.Bus.Domain)
	return r, live, err
}

// PastLog opens the past of the mesh for a command that needs its log.
func (t *Target) PastLog(ctx context.Context) (*past.Past, error) {
	p, err := t.Past(ctx)
	if err != nil {
		return nil, err
	}
	return p, p.HasLog()
}

func (t *Target) onBus(ctx context.Context, live bool) (*past.Past, error) {
	log, chain, err := t.open(ctx)
	if err != nil {
		return nil, err
	}
	return &past.Past{Name: cmp.Or(t.Bus.URL, t.Data), Log: log, Versions: chain, Blobs: chain, Live: live}, nil
}

// ended opens a copy of the data directory of a process that has ended: log and
// versions of `meshlog up`, or else the versions of a builder or a frontend.
func (t *Target) ended(ctx context.Context) (*past.Past, error) {
	err := t.copied("log and versions")
	if errors.Is(err, bus.ErrNoStreams) {
		return t.endedFile()
	}
	if err != nil {
		return nil, err
	}
	return t.onBus(ctx, false)
}

// copied makes Conn connect to a copy of the streams in the data directory; what names
// what the command reads there.
func (t *Target) copied(what string) error {
	copied := t.Progress("copied")
	quiet := slog.New(slog.DiscardHandler)
	server, err := bus.StartCopy(bus.CopyOptions{Dir: t.Data, Progress: copied.Show, Log: quiet})
	copied.Done()
	if err != nil {
		return err
	}
	t.CloseLater(server.Close)
	conn, err := bus.Connect(bus.ConnectOptions{Server: server, Name: "meshlog", Log: quiet})
	if err != nil {
		return err
	}
	t.use(conn)
	fmt.Fprintf(t.Stderr, "Nothing runs on %s; reading a copy of its %s.\n", t.Data, what)
	return nil
}

// endedFile opens a copy of the file of a builder or a frontend, which may still
// run.
func (t *Target) endedFile() (*past.Past, error) {
	if p, err := t.endedConsole(); p != nil || err != nil {
		return p, err
	}
	for _, file := range []string{
		process.VersionsFile(t.Data, "builder"), process.VersionsFile(t.Data, "frontend"), process.VersionsFile(t.Data, ""),
	} {
		if _, err := os.Stat(file); err != nil {
			continue
		}
		copied, err := bolt.OpenCopy(file)
		if err != nil {
			return nil, err
		}
		t.CloseLater(copied.Close)
		fmt.Fprintf(t.Stderr, "Reading a copy of %s, which has versions and no log.\n", file)
		return &past.Past{Name: file, Versions: past.FromStore(copied)}, nil
	}
	return nil, NotFound("%s: holds neither a log nor versions; is it the data directory of `meshlog up`, a builder or a frontend?", t.Data)
}

// endedConsole opens a copy of the files of a console, which may still run; nil if there are
// none.
func (t *Target) endedConsole() (*past.Past, error) {
	file := process.LogFile(t.Data)
	if _, err := os.Stat(file); err != nil {
		return nil, nil
	}
	log, err := logcopy.OpenCopy(file)
	if err != nil {
		return nil, err
	}
	t.CloseLater(log.Close)
	versions, err := bolt.OpenCopy(process.VersionsFile(t.Data, "console"))
	if err != nil {
		return nil, err
	}
	t.CloseLater(versions.Close)
	fmt.Fprintf(t.Stderr, "Reading a copy of the console's copy of log and versions in %s.\n", filepath.Dir(file))
	return &past.Past{Name: t.Data, Log: log, Versions: past.FromStore(versions), Blobs: log}, nil
}

func (t *Target) archived(ctx context.Context) (*past.Past, error) {
	a, err := archive.Open(ctx, t.archive)
	if err != nil {
		return nil, fmt.Errorf("--archive: %w", err)
	}
	t.CloseLater(a.Close)
	return past.FromArchive(t.archive, a), nil
}
