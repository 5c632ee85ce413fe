//go:build registries

package manifests

import (
	"context"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"testing"

	"meshlog.dev/deploy/e2e/cluster"
	"meshlog.dev/deploy/testkit/consultest"
	"meshlog.dev/deploy/testkit/nacostest"
	"meshlog.dev/deploy/testkit/program"
)

// TestRegistries runs the components watcher-consul and watcher-nacos beside the deployment,
// with Secrets and settings as the README says. They publish what a real Consul, with a token,
// and a real Nacos server, with an account, have.
func TestRegistries(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	const token = "8c7a5f0e-7f1d-4c6f-9d56-0f7d0a1f7e11"
	consul := consultest.Start(t, consultest.Options{Token: token})
	must(t, consul.Put(ctx, "/v1/catalog/register", map[string]any{
		"Node": "n", "Address": "10.2.0.1", "Service": map[string]any{"ID": "web-0", "Service": "web", "Port": 8080},
	}, nil))
	nacos := nacostest.Start(t, nacostest.Options{User: "meshlog", Password: "of-the-test"})

	render, secrets := kustomize(t), filepath.Join(t.TempDir(), "secrets")
	busAuth(ctx, t, secrets, "consul/*", "nacos/*")
	c, err := cluster.Start(ctx, t.TempDir(), "default")
	must(t, err)
	t.Cleanup(c.End)
	text := render(own(t, []string{"."}, []string{"components/watcher-consul", "components/watcher-nacos"}))
	must(t, c.Apply(ctx, text))
	k := newKubelet(ctx, t)
	k.know(parse(t, text))
	k.know(parse(t, render(secrets)))
	k.accounts["watcher-kube"] = serviceAccount(ctx, t, c, "watcher-kube")
	k.knowRegistry(t, secrets, "consul", consul.Addr, "8500", "consul: [http://consul.registry:8500]\nconsul-token-file: /etc/meshlog/credentials/token", map[string][]byte{"token": []byte(token)})
	k.knowRegistry(t, secrets, "nacos", nacos.Addr, "8848", "nacos: [nacos.registry:8848]\nnacos-username-file: /etc/meshlog/credentials/username\nnacos-password-file: /etc/meshlog/credentials/password",
		map[string][]byte{"username": []byte("meshlog"), "password": []byte("of-the-test")})
	all := workloads(t, parse(t, text))
	names := []string{"nats", "builder", "watcher-kube", "watcher-consul", "watcher-nacos", "frontend"}
	for _, name := range names {
		k.start(all[name])
	}
	for _, name := range names {
		k.ready(all[name])
	}
	must(t, program.Until(ctx, "both registries to be followed", func(context.Context) error {
		found := map[string]bool{}
		got := sources(t, k, secrets)
		for _, s := range got {
			found[s.Source] = s.State == "following" && s.Synced && len(s.Standbys) == 1
		}
		if !found["consul"] || !found["nacos"] {
			return fmt.Errorf("%+v", got)
		}
		return nil
	}))
	k.permitted()
}

// knowRegistry makes what the watcher of a registry needs, as the README says: the key of its
// user of the bus, its settings, and the files that they name. The registry is at an address
// of this machine.
func (k *kubelet) knowRegistry(t *testing.T, secrets, name, address, port, settings string, credentials map[string][]byte) {
	t.Helper()
	watcher := "watcher-" + name
	bus := map[string][]byte{}
	for file, from := range map[string]string{"bus.nk": watcher + ".nk", "ca.pem": "ca.pem"} {
		content, err := os.ReadFile(filepath.Join(secrets, from))
		must(t, err)
		bus[file] = content
	}
	k.know(parse(t, secret(watcher+"-bus", bus)))
	k.know(parse(t, secret(watcher, credentials)))
	k.know(parse(t, fmt.Sprintf("{apiVersion: v1, kind: ConfigMap, metadata: {name: %s, namespace: meshlog}, data: {settings.yaml: %q}}", watcher, settings)))
	_, here, err := net.SplitHostPort(address)
	must(t, err)
	k.services[name+".registry"] = name
	k.ports[name+":"+port], err = strconv.Atoi(here)
	must(t, err)
}
