package cli

import (
	"errors"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"meshlog.dev/proto/ident"
	"meshlog.dev/services/internal/bus"
	"meshlog.dev/services/internal/busauth"
	"meshlog.dev/services/internal/process"
)

func busAuthCommand() *cobra.Command {
	var watchers, tlsNames []string
	var domain string
	cmd := &cobra.Command{
		Use: "bus-auth DIR", Short: "Writes users for NATS servers, with no more permissions than each role needs",
		Args: args(1, 1, "the directory to write to"),
		Long: `Writes into DIR what NATS servers must know of the processes of a mesh, and a
key for each role:

  auth.conf     the users and what each may do; in the configuration of each
                server: include "auth.conf"
  builder.nk, frontend.nk, operator.nk, watcher-SOURCE-INSTANCE.nk,
  watcher-SOURCE.nk
                keys: give each process its own by --bus-nkey. All processes of
                a role may share one; operator is for this command line.

Run it again to add or remove watchers, and after an update of meshlog. Keys
that are there are kept; to replace one, delete it and run this again. Servers
take a new auth.conf by nats-server --signal reload, processes a new key with
their next connection.

With --tls it also writes certificates, for tests and demos: ca.pem, server.pem
and client.pem with their keys, for the names that clients use for the servers.
In production take those of your own authority.`,
		Example: `  meshlog bus-auth auth/ --watcher file/default --watcher kubernetes/eu
  meshlog bus-auth auth/ --watcher file/default --tls localhost,127.0.0.1
  frontend --bus tls://127.0.0.1:4222 --bus-nkey auth/frontend.nk --bus-ca auth/ca.pem ...`,
	}
	format := outputFlag(cmd)
	cmd.Flags().StringArrayVar(&watchers, "watcher", nil, "`SOURCE/INSTANCE` of a watcher; once for each. SOURCE/* is for one that watches all: watcher-kube with --remote-clusters")
	cmd.Flags().StringVar(&domain, "domain", process.DefaultDomain, "`name` of the mesh")
	cmd.Flags().StringSliceVar(&tlsNames, "tls", nil, "also write certificates, for servers of these `names` and IP addresses")
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		out, err := newOutput(cmd, *format)
		if err != nil {
			return err
		}
		roles, err := busRoles(watchers)
		if err != nil {
			return err
		}
		files, err := busauth.WriteUsers(args[0], domain, roles)
		if err != nil {
			return err
		}
		if len(tlsNames) > 0 {
			certs, err := busauth.WriteCertificates(args[0], tlsNames, time.Now())
			if err != nil {
				return err
			}
			files = append(files, certs...)
		}
		return out.print(files, func() error { return showFiles(files, out) })
	}
	return cmd
}

// busRoles are all roles, with those of the watchers of these shards.
func busRoles(watchers []string) ([]bus.Role, error) {
	roles := []bus.Role{bus.Builder(), bus.Frontend(), bus.Operator()}
	var errs []error
	for _, w := range watchers {
		source, instance, ok := strings.Cut(w, "/")
		if !ok || source == "" || instance == "" {
			errs = append(errs, usage("--watcher %q: want SOURCE/INSTANCE, as in file/default", w))
			continue
		}
		if instance == "*" {
			roles = append(roles, bus.Watchers(source))
			continue
		}
		roles = append(roles, bus.Watcher(ident.Shard{Source: source, Instance: instance}))
	}
	return roles, errors.Join(errs...)
}

func showFiles(files []busauth.File, out *output) error {
	t := table{head: []string{"FILE", ""}}
	reload := false
	for _, f := range files {
		state := f.State
		switch state {
		case "unused":
			state = "no longer a user's; delete it"
		case "changed", "new":
			reload = true
		}
		t.add(f.Path, state)
	}
	if err := out.table(&t, false); err != nil {
		return err
	}
	if !reload {
		return out.line("Nothing has changed.")
	}
	return out.line("Now let the NATS servers read it: nats-server --signal reload.")
}
