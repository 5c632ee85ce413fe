package history

import (
	"cmp"
	"context"
	"encoding/hex"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/spf13/cobra"

	auditv1 "meshlog.dev/proto/meshlog/audit/v1"
	"meshlog.dev/services/internal/audit"
	"meshlog.dev/services/operate/command"
)

// auditOptions select entries of the audit.
type auditOptions struct {
	tail   int
	follow bool
	since  string // time
}

// auditView is an entry of the audit.
type auditView struct {
	Seq           uint64    `json:"seq"`
	Time          time.Time `json:"time"`             // the server's
	Writer        string    `json:"writer,omitempty"` // frontend, operator, or SOURCE/INSTANCE of a watcher
	Process       string    `json:"process,omitempty"`
	What          string    `json:"what"` // as key given, certificate refused, admission paused, unreadable
	Identity      string    `json:"identity,omitempty"`
	Proxy         string    `json:"proxy,omitempty"`
	Object        string    `json:"object,omitempty"`
	Name          string    `json:"name,omitempty"`
	Digest        string    `json:"digest,omitempty"`
	Serial        string    `json:"serial,omitempty"`
	NotAfter      time.Time `json:"notAfter,omitzero"`
	Authenticator string    `json:"authenticator,omitempty"`
	Facts         []string  `json:"facts,omitempty"`
	Reason        string    `json:"reason,omitempty"`
	Error         string    `json:"error,omitempty"` // of unreadable
}

// Audit returns the command `audit`.
func Audit() *cobra.Command {
	cmd := &cobra.Command{
		Use: "audit", Short: "Show which keys and certificates were given or refused, and for which proxy", Args: command.Args(0, 0, ""),
		Long: `Show the audit, the newest last: which process gave or refused which key or
certificate, and for which proxy.

IDENTITY is the verified identity of the proxy or workload, and DIGEST the beginning
of the hash that names the key in a version, or of the hash of a certificate's public
key. BY is the account on the bus that wrote the record, which the bus proves, and the
process, which the account claims. An UNREADABLE record is none of meshlog's: the key
of that account may be known to others. -o json shows all fields.

The audit is no part of the log: no version follows from it, and no archive holds it.
Builders keep it for --audit-history, and drop the oldest records when it has
--audit-mib. Times are those of the server; --since takes "14:02", "yesterday 14:02",
"10m ago", "2026-11-21 14:02" or RFC 3339.`,
		Example: `  meshlog audit --data data/
  meshlog audit --data data/ --since 14:00
  meshlog audit --bus nats://nats-0:4222 --follow
  meshlog audit --data data/ -n -1 -o json`,
	}
	var o auditOptions
	f := cmd.Flags()
	f.IntVarP(&o.tail, "tail", "n", 20, "how many of the newest records; -1 for all")
	f.BoolVarP(&o.follow, "follow", "f", false, "keep showing new records")
	f.StringVar(&o.since, "since", "", "only records of this `time` or later; --tail has no effect then")
	cmd = command.Live(cmd, func(ctx context.Context, e *command.Env, _ []string) error {
		reader, live, err := e.Audit()
		switch {
		case err != nil:
			return err
		case o.follow && !live:
			return command.Usage("--follow: %s gets no new records", e.Data)
		}
		return showAudit(ctx, reader, o, e.Output)
	})
	f.Lookup("data").Usage = "data `directory` of `meshlog up`, running or not"
	return cmd
}

func showAudit(ctx context.Context, reader *audit.Reader, o auditOptions, out *command.Output) error {
	entries, last, err := listAudit(ctx, reader, o)
	if err != nil {
		return err
	}
	p := &auditPrinter{out: out, stream: o.follow}
	switch {
	case len(entries) > 0 || o.follow || !out.IsTable():
		p.print(entries)
	case o.since != "":
		out.Line("No record is of that time or later.")
	case o.tail != 0:
		out.Line("The audit is empty: no key or certificate was given or refused.")
	}
	if !o.follow {
		return nil
	}
	err = reader.Follow(ctx, last, func(entries []audit.Entry) error {
		p.print(entries)
		return out.Err()
	})
	if errors.Is(err, context.Canceled) {
		return nil
	}
	return err
}

// listAudit returns the selected entries, and the number of the newest one.
func listAudit(ctx context.Context, reader *audit.Reader, o auditOptions) ([]audit.Entry, uint64, error) {
	if o.since == "" {
		return reader.Newest(ctx, o.tail)
	}
	since, err := command.ParseWhen(o.since, time.Now())
	if err != nil {
		return nil, 0, command.Usage("--since %w", err)
	}
	return reader.Since(ctx, since)
}

func viewEntry(e audit.Entry) auditView {
	v := auditView{Seq: e.Seq, Time: e.Time, Writer: e.Writer}
	if e.Err != nil {
		v.What, v.Error = "unreadable", e.Err.Error()
		return v
	}
	r := e.Record
	v.Process, v.What, v.Identity, v.Proxy, v.Object, v.Name = r.GetProcess(), actionName(r.GetAction()), r.GetIdentity(), r.GetProxy(), r.GetObject(), r.GetName()
	v.Digest, v.Serial, v.Authenticator, v.Facts, v.Reason = hex.EncodeToString(r.GetDigest()), r.GetSerial(), r.GetAuthenticator(), r.GetFacts(), r.GetReason()
	if r.GetNotAfter() != nil {
		v.NotAfter = r.GetNotAfter().AsTime()
	}
	return v
}

// actionName returns the words for an action, or its number if this build does not
// know it.
func actionName(a auditv1.Action) string {
	name, known := auditv1.Action_name[int32(a)]
	if !known {
		return fmt.Sprintf("action %d", a)
	}
	return strings.ToLower(strings.ReplaceAll(strings.TrimPrefix(name, "ACTION_"), "_", " "))
}

// auditPrinter prints entries as they come.
type auditPrinter struct {
	out    *command.Output
	stream bool
	table  command.Rows
}

func (p *auditPrinter) print(entries []audit.Entry) {
	p.table.Head = []string{"SEQ", "TIME", "WHAT", "IDENTITY", "OBJECT", "DIGEST", "BY", "REASON"}
	views := make([]auditView, len(entries))
	for i, e := range entries {
		v := viewEntry(e)
		views[i] = v
		object := cmp.Or(v.Object, v.Name, v.Proxy)
		if v.Serial != "" {
			object = "serial " + v.Serial
		}
		by := strings.TrimSpace(v.Writer + " " + v.Process)
		p.table.Add(v.Seq, v.Time, auditCell(v.What), cmp.Or(v.Identity, v.Proxy), object, v.Digest[:min(12, len(v.Digest))], by, cmp.Or(v.Reason, v.Error))
	}
	switch {
	case p.out.IsTable():
		p.out.Rows(&p.table)
	case p.stream:
		for _, v := range views {
			p.out.Next(v)
		}
	default:
		p.out.Print(views, nil)
	}
}

// auditCell shows what a record is, in the color of its sort.
func auditCell(what string) command.Cell {
	c := command.Cell{Text: strings.ToUpper(what)}
	switch {
	case strings.HasSuffix(what, "refused"), what == "unreadable":
		c.Color = command.Red
	case strings.HasSuffix(what, "given"), strings.HasSuffix(what, "issued"):
		c.Color = command.Green
	}
	return c
}
