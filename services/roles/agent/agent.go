// Package agent runs an Envoy and what it needs beside it: its bootstrap, its certificate,
// probes, and DNS (AGT-1 to AGT-7). cmd/agent and `meshlog agent` run it.
package agent

import (
	"bytes"
	"context"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	"google.golang.org/protobuf/types/known/structpb"

	"meshlog.dev/services/agent/bootstrap"
	"meshlog.dev/services/agent/caclient"
	"meshlog.dev/services/agent/certificates"
	"meshlog.dev/services/agent/child"
	"meshlog.dev/services/agent/dns"
	"meshlog.dev/services/agent/envoyadmin"
	"meshlog.dev/services/agent/meshstream"
	"meshlog.dev/services/agent/names"
	"meshlog.dev/services/agent/ready"
	"meshlog.dev/services/agent/sds"
	"meshlog.dev/services/internal/process"
	"meshlog.dev/services/mesh/proxy"
)

// socketName is the name of the socket in --dir.
const socketName = "sds.sock"

// look is how often the files that the bootstrap depends on are read.
const look = 5 * time.Second

// agent is a running agent.
type agent struct {
	*Settings

	conf    bootstrap.ProxyConfig
	log     *slog.Logger
	secrets *sds.Secrets
	keeper  *certificates.Keeper
	trust   *trust
	envoys  *child.Supervisor
	names   *names.Names // nil: the agent answers no DNS
	probe   *ready.Probe
	output  io.Writer
}

// Run runs an agent until ctx is done, and then drains it. Envoy writes to output.
func (s *Settings) Run(ctx context.Context, p *process.Process, output io.Writer) error {
	c, conf, err := s.complete()
	if err != nil {
		return err
	}
	a := &agent{Settings: c, conf: conf, log: p.Log.With(process.Component, "agent"), secrets: sds.NewSecrets(), output: output}
	if len(conf.WithoutEffect) > 0 {
		a.log.Warn("fields of PROXY_CONFIG have no effect", "fields", conf.WithoutEffect)
	}
	if err := a.prepare(); err != nil {
		return err
	}
	socket, err := sds.Listen(a.socket(), a.owner(), []int{os.Geteuid(), a.owner()}, a.log)
	if err != nil {
		return process.Invalid("dir", "%w", err)
	}
	defer socket.Close()
	probes, err := net.Listen("tcp", c.Ready)
	if err != nil {
		return fmt.Errorf("%w; give another address with --ready-listen", err)
	}
	defer probes.Close()
	resolver, err := a.dns()
	if err != nil {
		return err
	}
	a.publish(p)
	a.log.Info("started the agent", "node", a.Name+"."+a.Namespace, "probes", probes.Addr().String(), "dns", resolver.Addr(), "socket", a.socket())
	serve := process.Stage{
		func(ctx context.Context) error { return a.probe.Run(ctx, probes) },
		func(ctx context.Context) error { return sds.NewServer(a.secrets, a.log).Run(ctx, socket) },
		a.keeper.Run, a.follow, resolver.Run, a.signals,
	}
	if !a.XDSPlaintext {
		serve = append(serve, a.stream)
		if a.names != nil {
			serve = append(serve, a.names.Run)
		}
	}
	if os.Getpid() == 1 {
		serve = append(serve, child.Reap)
	}
	return process.RunStages(ctx,
		process.Stage{a.drainAtEnd}, // clients leave while all else serves
		process.Stage{a.envoys.Run, a.want},
		serve,
	)
}

// prepare makes the parts of the agent.
func (a *agent) prepare() error {
	if err := os.MkdirAll(a.Dir, 0o700); err != nil {
		return process.Invalid("dir", "%w", err)
	}
	if err := a.openState(); err != nil {
		return process.Invalid("state-dir", "%w", err)
	}
	if a.owner() != os.Geteuid() {
		if err := os.Chown(a.Dir, a.owner(), a.group()); err != nil {
			return process.Invalid("dir", "%w", err)
		}
	}
	path, err := exec.LookPath(a.Envoy)
	if err != nil {
		return process.Invalid("envoy", "%w", err)
	}
	a.trust = &trust{settings: a.Settings, secrets: a.secrets, saved: a.state(rootsFile), log: a.log, ready: make(chan struct{})}
	var tokens certificates.Tokens = certificates.TokenFile(a.TokenFile)
	if a.JoinTokenFile != "" {
		tokens = &certificates.JoinFile{Path: a.JoinTokenFile}
	}
	ca := &caclient.Client{Address: a.CA, ServerName: a.CAServerName, ClusterID: a.ClusterID}
	ca.Roots = func() (*x509.CertPool, error) { return a.trust.pool(a.CARoots) }
	conf := certificates.Config{Issuer: ca, Tokens: tokens, TTL: a.TTL, Log: a.log}
	if path := a.state(identityFile); path != "" {
		conf.Saved = certificates.File(path)
	}
	a.keeper = certificates.New(conf)
	a.trust.keeper = a.keeper
	if err := a.restore(); err != nil {
		a.log.Warn("cannot use the certificate of the state directory; the agent asks for one with its token", "error", err)
	}
	args := a.EnvoyArgs
	if a.Concurrency > 0 {
		args = append([]string{"--concurrency", strconv.Itoa(a.Concurrency)}, args...)
	}
	a.envoys = child.New(child.Config{
		Command: child.Command{Path: path, Args: args, UID: a.EnvoyUID, GID: a.group(), Output: a.output},
		Dir:     a.Dir, Drain: a.Drain, Log: a.log, Starter: child.Start,
	})
	a.probe = ready.New(envoyadmin.New(a.EnvoyAdmin), a.keeper.Ready)
	return nil
}

// publish adds the agent to the process's admin server.
func (a *agent) publish(p *process.Process) {
	p.Admin.Register(a.keeper)
	p.Admin.Ready("agent", func() error {
		ctx, cancel := context.WithTimeout(context.Background(), time.Second)
		defer cancel()
		return a.probe.Ready(ctx)
	})
	p.Admin.Warn("agent certificate", func() error {
		if err := a.keeper.Late(); err != nil {
			return err
		}
		return a.keeper.Trouble()
	})
	p.Admin.Report("agent", func() any {
		return struct {
			Certificate certificates.Report `json:"certificate"`
			Envoy       child.Report        `json:"envoy"`
		}{a.keeper.Report(), a.envoys.Report()}
	})
}

func (a *agent) socket() string { return filepath.Join(a.Dir, socketName) }

// owner returns the user that runs Envoy.
func (a *agent) owner() int {
	if a.EnvoyUID >= 0 {
		return a.EnvoyUID
	}
	return os.Geteuid()
}

func (a *agent) group() int {
	if a.EnvoyGID >= 0 {
		return a.EnvoyGID
	}
	return a.EnvoyUID
}

// follow gives each certificate to Envoy and to applications.
func (a *agent) follow(ctx context.Context) error {
	for {
		id, changed := a.keeper.Current()
		if id != nil {
			if err := a.trust.has(id); err != nil {
				return err
			}
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-changed:
		}
	}
}

// stream keeps the agent's own stream to a frontend.
func (a *agent) stream(ctx context.Context) error {
	select {
	case <-a.trust.ready:
	case <-ctx.Done():
		return ctx.Err()
	}
	node, err := a.node()
	if err != nil {
		return err
	}
	// Frontends know proxies by their ids, so the agent has one of its own.
	envoy := node.GetId()
	node.Id += proxy.AgentSuffix
	node.UserAgentName = "meshlog-agent"
	if a.names != nil {
		node.GetMetadata().GetFields()[proxy.NamesField] = structpb.NewStringValue("true")
	}
	return meshstream.New(meshstream.Config{
		Node: node, Addresses: a.XDS, TLS: a.trust.client, Apply: a.trust.told, Names: a.names,
		Proxy: envoy, EndConnections: a.envoys.EndConnections, Log: a.log,
	}).Run(ctx)
}

// node returns the node of the workload, with the labels that are in the file now.
func (a *agent) node() (*corev3.Node, error) {
	labels, err := bootstrap.ParseLabels(a.Labels)
	if err != nil {
		return nil, err
	}
	if a.LabelsFile != "" {
		b, err := os.ReadFile(a.LabelsFile)
		if err != nil {
			return nil, err
		}
		of, err := bootstrap.ReadLabels(string(b))
		if err != nil {
			return nil, fmt.Errorf("%s: %w", a.LabelsFile, err)
		}
		labels = bootstrap.Merge(of, labels)
	}
	place := append(strings.SplitN(a.Locality, "/", 3), "", "", "")
	return bootstrap.Node{
		Type: proxy.Type(a.Type), Name: a.Name, Namespace: a.Namespace, Account: a.Account, IPs: a.IPs, Domain: a.Domain, Cluster: a.Cluster,
		Labels: labels, Locality: proxy.Locality{Region: place[0], Zone: place[1], SubZone: place[2]},
		Variables: append(a.conf.Metadata, a.Environment...),
	}.Build()
}

// bootstrap returns the bootstrap that fits the files as they are now.
func (a *agent) bootstrap() ([]byte, error) {
	node, err := a.node()
	if err != nil {
		return nil, err
	}
	c := bootstrap.Config{
		Node: node, XDS: a.XDS, Plaintext: a.XDSPlaintext, ServerName: a.XDSServerName, Socket: a.socket(), Admin: a.EnvoyAdmin,
	}
	if a.XDSCA != "" {
		b, err := os.ReadFile(a.XDSCA)
		if err != nil {
			return nil, err
		}
		c.XDSRoots = string(b)
	}
	return c.Build()
}

// want starts Envoy once its certificate is here, and replaces it when the bootstrap
// changes. A new epoch without a certificate would take over from one that has one (S43).
func (a *agent) want(ctx context.Context) error {
	select {
	case <-a.trust.ready:
	case <-ctx.Done():
		return ctx.Err()
	}
	tick := time.NewTicker(look)
	defer tick.Stop()
	var last []byte
	var trouble string
	for {
		b, err := a.bootstrap()
		switch {
		case err != nil && last == nil:
			return err
		case err != nil && err.Error() != trouble:
			trouble = err.Error()
			a.log.Warn("cannot make Envoy's bootstrap; Envoy keeps the one that it has", "error", err)
		case err == nil && !bytes.Equal(b, last) && a.secrets.Has(sds.Default, sds.RootCA):
			last, trouble = b, ""
			a.envoys.Want(ctx, b)
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-tick.C:
		}
	}
}

// drainAtEnd lets clients leave when ctx is done.
func (a *agent) drainAtEnd(ctx context.Context) error {
	<-ctx.Done()
	if len(a.envoys.Report().PIDs) > 0 {
		a.probe.Drain(context.WithoutCancel(ctx), a.TerminationDrain, a.log)
	}
	return ctx.Err()
}

// signals hands on those that mean Envoy: it opens its logs again at SIGUSR1.
func (a *agent) signals(ctx context.Context) error {
	c := make(chan os.Signal, 1)
	signal.Notify(c, syscall.SIGUSR1)
	defer signal.Stop(c)
	for {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case sig := <-c:
			a.envoys.Signal(sig)
		}
	}
}

// dns returns the DNS server, which answers nothing without --dns-listen.
func (a *agent) dns() (*dns.Server, error) {
	s, err := dns.Listen(dns.Config{Address: a.DNS, ResolvConf: a.ResolvConf, Log: a.log})
	if err != nil {
		return nil, process.Invalid("dns-listen", "%w", err)
	}
	if a.DNS != "" {
		a.names = names.New(names.Config{Namespace: a.Namespace, File: a.state(namesFile), Apply: s.SetTable, Log: a.log})
	}
	return s, nil
}

// Verify checks the files that the settings name.
func (s *Settings) Verify() error {
	if s.Check() != nil {
		return nil // it has been reported
	}
	c, _, _ := s.complete()
	var errs []error
	for setting, path := range map[string]string{
		"ca-roots": c.CARoots, "xds-ca": c.XDSCA, "join-token-file": c.JoinTokenFile, "token-file": c.TokenFile, "labels-file": c.LabelsFile,
	} {
		if path == "" {
			continue
		}
		if _, err := os.ReadFile(path); err != nil {
			errs = append(errs, process.Invalid(setting, "%w", err))
		}
	}
	if _, err := exec.LookPath(c.Envoy); err != nil {
		errs = append(errs, process.Invalid("envoy", "%w", err))
	}
	return errors.Join(errs...)
}
