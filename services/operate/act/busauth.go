package act

import (
	"context"
	"errors"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"meshlog.dev/proto/ident"
	"meshlog.dev/services/internal/bus"
	"meshlog.dev/services/internal/busauth"
	"meshlog.dev/services/internal/process"
	"meshlog.dev/services/operate/command"
)

// BusAuth returns the command `bus-auth`.
func BusAuth() *cobra.Command {
	cmd := &cobra.Command{
		Use: "bus-auth DIR", Short: "Write users for NATS servers, with the least permissions for each role",
		Args: command.Args(1, 1, "the directory to write to"),
		Long: `Write to DIR the users that the NATS servers of a mesh need, and a key for each
role:

  auth.conf     the users and their permissions; in the configuration of each
                server: include "auth.conf"
  builder.nk, frontend.nk, operator.nk, watcher-SOURCE-INSTANCE.nk,
  watcher-SOURCE.nk
                keys: give each process its own with --bus-nkey. All processes of
                a role may share one; operator is for this command line.

Run the command again to add or remove watchers, and after an update of meshlog. It
keeps existing keys; to replace a key, delete it and run the command again. Servers
load a new auth.conf with nats-server --signal reload, processes use a new key with
their next connection.

With --tls it also writes certificates, for tests and demos: ca.pem, server.pem and
client.pem with their keys, for the names by which clients reach the servers. In
production use certificates of your own authority.`,
		Example: `  meshlog bus-auth auth/ --watcher file/default --watcher kubernetes/eu
  meshlog bus-auth auth/ --watcher file/default --tls localhost,127.0.0.1
  frontend --bus tls://127.0.0.1:4222 --bus-nkey auth/frontend.nk --bus-ca auth/ca.pem ...`,
	}
	f := cmd.Flags()
	watchers := f.StringArray("watcher", nil, "`SOURCE/INSTANCE` of a watcher; once for each. SOURCE/* is for one that watches all: watcher-kube with --remote-clusters")
	domain := f.String("domain", process.DefaultDomain, "`name` of the mesh")
	names := f.StringSlice("tls", nil, "also write certificates, for servers with these `names` and IP addresses")
	return command.Local(cmd, func(_ context.Context, e *command.Env, args []string) error {
		roles, err := busRoles(*watchers)
		if err != nil {
			return err
		}
		files, err := busauth.WriteUsers(args[0], *domain, roles)
		if err != nil {
			return err
		}
		if len(*names) > 0 {
			certs, err := busauth.WriteCertificates(args[0], *names, time.Now())
			if err != nil {
				return err
			}
			files = append(files, certs...)
		}
		e.Print(files, func() { showFiles(files, e.Output) })
		return nil
	})
}

// busRoles returns all roles, including the watchers of these shards.
func busRoles(watchers []string) ([]bus.Role, error) {
	roles := []bus.Role{bus.Builder(), bus.Frontend(), bus.Operator()}
	var errs []error
	for _, w := range watchers {
		switch source, instance, _ := strings.Cut(w, "/"); {
		case source == "" || instance == "":
			errs = append(errs, command.Usage("--watcher %q: want SOURCE/INSTANCE, as in file/default", w))
		case instance == "*":
			roles = append(roles, bus.Watchers(source))
		default:
			roles = append(roles, bus.Watcher(ident.Shard{Source: source, Instance: instance}))
		}
	}
	return roles, errors.Join(errs...)
}

func showFiles(files []busauth.File, out *command.Output) {
	var t command.Rows
	next := "Nothing has changed."
	for _, f := range files {
		state := f.State
		switch state {
		case "unused":
			state = "no user has it any more; delete it"
		case "changed", "new":
			next = "Have the NATS servers load it: nats-server --signal reload."
		}
		t.Add(f.Path, state)
	}
	out.Rows(&t)
	out.Line("%s", next)
}
