package act

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"time"

	"github.com/spf13/cobra"

	"meshlog.dev/services/internal/bus"
	"meshlog.dev/services/internal/busauth"
	"meshlog.dev/services/internal/process"
	"meshlog.dev/services/operate/command"
)

const busAuthLong = `Write to DIR what the NATS servers of a mesh need, and a key for each role:

  auth.conf     accounts and users, with their permissions; in the configuration of
                each server: include "auth.conf"
  builder.nk, frontend.nk, operator.nk, watcher-SOURCE-INSTANCE.nk,
  watcher-SOURCE.nk
                keys: give each process its own with --bus-nkey. All processes of
                a role may share one; operator is for this command line.
  observer.nk   with --observer: for kube-events, which may ask for reports and nothing else
  console.nk    with --console: for the web console, which may read and not write
  frontend.xk, watcher-SOURCE-INSTANCE.xk, watcher-SOURCE.xk
                keys of the key exchange: with --key-exchange, frontends ask
                watchers for the private keys of certificates, sealed
  xkeys.pub     the public ones: put it beside each .xk file that a process gets
  admin.nk      the administrator's key, for import and streams --apply. It may do
                everything: give it to no process.

Run the command again to add or remove watchers, and after an update of meshlog. It
keeps existing keys; to replace a key, delete it and run the command again. Servers
load a new auth.conf with nats-server --signal reload, processes use a new key with
their next connection. The command says when servers must load the file twice: after
it has added an account. It keeps the accounts of former watchers, without users.
Frontends and watchers use a new xkeys.pub at once; give it to all of them when it
changes, also when a watcher is added.

The authority of the mesh is the watcher ca/INSTANCE, and the watcher that fetches the
public keys of token issuers is jwks/INSTANCE. Frontends cannot ask them for keys of
objects; jwks also hears which issuers the configuration names.

With --policy it narrows what watchers may publish to the kinds and namespaces that
the source rules of a MeshPolicy permit, or their defaults. The bus then refuses what
a compromised watcher would only fill the log with; the fold enforces the rules
without that too. A permission is for one name or for all names, so the command
prints which rules only the fold enforces. The file may hold other objects. Give it
the policy that counts in the mesh, give --policy with every run, and run the command
again when the policy changes: before you publish a policy that permits more, and
after you have published one that permits less. An object that the bus refuses keeps
its last good value; ` + "`meshlog diagnostics`" + ` shows it as denied, with what to do.

With --operator it also writes a key for each operator, operator-NAME.pem, and prints the
public ones for the MeshPolicy. Each operator keeps their key and gives it to commands
that change the mesh, with --operator-key or MESHLOG_OPERATOR_KEY. Once the MeshPolicy
names operators, what is appended in their place counts only with the signature of one
of them: the key operator.nk alone changes nothing any more. Give --operator with every
run; the user of operators may then begin no session in place of a watcher. To replace
a key, list both in the MeshPolicy until the old one is in no use.

With --routes it also writes what the servers of a cluster need to know each other:
routes.conf, for the cluster block of their configuration, with their password and
addresses, and route.pem, route.key and routes-ca.pem, for its tls block.

With --tls it also writes certificates, for tests and demos: ca.pem, server.pem and
client.pem with their keys, for the names by which clients reach the servers. In
production use certificates of your own authority.`

// BusAuth returns the command `bus-auth`.
func BusAuth() *cobra.Command {
	cmd := &cobra.Command{
		Use: "bus-auth DIR", Short: "Write accounts and users for NATS servers, with the least permissions for each role",
		Args: command.Args(1, 1, "the directory to write to"),
		Long: busAuthLong,
		Example: `  meshlog bus-auth auth/ --watcher file/default --watcher kubernetes/eu
  meshlog bus-auth auth/ --watcher file/default --watcher consul/dc1 --policy mesh/policy.yaml
  meshlog bus-auth auth/ --watcher kubernetes/eu --watcher ca/default --watcher jwks/default --observer
  meshlog bus-auth auth/ --watcher file/default --console
  meshlog bus-auth auth/ --watcher file/default --operator alice --operator pipeline
  meshlog bus-auth auth/ --watcher file/default --routes nats-1,nats-2,nats-3
  meshlog bus-auth auth/ --watcher file/default --tls localhost,127.0.0.1
  frontend --bus tls://127.0.0.1:4222 --bus-nkey auth/frontend.nk --bus-ca auth/ca.pem ...`,
	}
	f := cmd.Flags()
	watchers := f.StringArray("watcher", nil, "`SOURCE/INSTANCE` of a watcher; once for each. SOURCE/* is for one that watches all: watcher-kube with --remote-clusters")
	domain := f.String("domain", process.DefaultDomain, "`name` of the mesh")
	names := f.StringSlice("tls", nil, "also write certificates, for servers with these `names` and IP addresses")
	policy := f.String("policy", "", "`file` with the MeshPolicy of the mesh: narrow what watchers may publish by its source rules")
	observer := f.Bool("observer", false, "also write the key of kube-events, which asks for reports and may do nothing else")
	console := f.Bool("console", false, "also write the key of the web console, which reads log, versions and reports, and writes nothing")
	operators := f.StringArray("operator", nil, "also write a signing key for the operator of this `name`; repeat the flag for several operators")
	routes := f.StringSlice("routes", nil, "also write the secrets of a cluster of servers with these `names`, or NAME:PORT if the port of routes is not 6222")
	return command.Local(cmd, func(_ context.Context, e *command.Env, args []string) error {
		roles, err := busRoles(*watchers)
		if err != nil {
			return err
		}
		if *observer {
			roles = append(roles, bus.Observer())
		}
		if *console {
			roles = append(roles, bus.Console())
		}
		users := busauth.Users{Domain: *domain, Roles: roles, Signed: len(*operators) > 0}
		var v busAuthView
		if err := v.limit(&users, *policy); err != nil {
			return err
		}
		if v.Files, v.Permissions, err = users.Write(args[0]); err != nil {
			return err
		}
		if err := v.operators(args[0], *operators); err != nil {
			return err
		}
		if len(*routes) > 0 {
			if err := v.add(busauth.WriteRoutes(args[0], *routes, time.Now())); err != nil {
				return err
			}
		}
		if len(*names) > 0 {
			if err := v.add(busauth.WriteCertificates(args[0], *names, time.Now())); err != nil {
				return err
			}
		}
		e.Print(v, func() { v.show(e.Output) })
		return nil
	})
}

// busRoles returns all roles, including the watchers of these shards.
func busRoles(watchers []string) ([]bus.Role, error) {
	roles := []bus.Role{bus.Builder(), bus.Frontend(), bus.Operator()}
	var errs []error
	for _, w := range watchers {
		r, err := bus.ParseWatcher(w)
		if err != nil {
			errs = append(errs, command.Usage("--watcher %v", err))
		}
		roles = append(roles, r)
	}
	return roles, errors.Join(errs...)
}

// busAuthView is the result of bus-auth.
type busAuthView struct {
	Files []busauth.File `json:"files"`
	// Permissions of the watchers that source rules limit now, or did before.
	Permissions []busauth.Permission `json:"permissions,omitempty"`
	FoldOnly    []foldOnly           `json:"foldOnly,omitempty"`
	Operators   []operatorView       `json:"operators,omitempty"`
	Warnings    []string             `json:"warnings,omitempty"` // about the policy
	limited     bool                 // by a policy
}

// add adds files, unless err says that they could not be written.
func (v *busAuthView) add(files []busauth.File, err error) error {
	v.Files = append(v.Files, files...)
	return err
}

// limit narrows users to the policy in a file, if one is given.
func (v *busAuthView) limit(users *busauth.Users, path string) error {
	if path == "" {
		return nil
	}
	p, warnings, err := readPolicy(path)
	if err != nil {
		return fmt.Errorf("--policy: %w", err)
	}
	users.Limits, v.FoldOnly = limits(p, users.Roles)
	v.Warnings, v.limited = warnings, true
	return nil
}

func (v *busAuthView) show(out *command.Output) {
	showFiles(v.Files, out)
	showLimits(v, out)
	showOperators(v, out)
}

func showFiles(files []busauth.File, out *command.Output) {
	const reload = "nats-server --signal reload"
	var t command.Rows
	next := "Nothing has changed."
	exchange := false
	for _, f := range files {
		state := f.State
		switch name := filepath.Base(f.Path); {
		case name == busauth.ListName:
			exchange = state != busauth.StateKept
			t.Add(f.Path, state)
			continue
		case filepath.Ext(name) == ".xk" && state == "new":
			t.Add(f.Path, state)
			continue
		}
		switch state {
		case "unused":
			state = "no user has it any more; delete it"
		case "extended":
			state = "changed, new accounts"
			next = "Have the NATS servers load it, twice: " + reload + " on each server, then once more. After the first time, the new accounts reach nothing."
		case "replaced":
			state = "changed, with accounts"
			next = "The streams must move to the account MESHLOG before the NATS servers load it: see Migration in deploy/nats/README.md."
		case "changed", "new":
			if next == "Nothing has changed." {
				next = "Have the NATS servers load it: " + reload + "."
			}
		}
		t.Add(f.Path, state)
	}
	out.Rows(&t)
	if exchange && next == "Nothing has changed." {
		next = "The NATS servers have nothing to load."
	}
	out.Line("%s", next)
	if exchange {
		out.Line("Give xkeys.pub to each frontend and watcher with --key-exchange.")
	}
}
