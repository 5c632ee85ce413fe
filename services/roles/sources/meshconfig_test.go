package sources

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	meshconfig "istio.io/api/mesh/v1alpha1"

	"meshlog.dev/proto/ident"
	"meshlog.dev/services/mesh/kind"
	"meshlog.dev/services/roles/mcpxds"
	"meshlog.dev/services/roles/watcher"
	mcp "meshlog.dev/services/watcher/mcpxds"
)

// withMeshConfig returns settings with a MeshConfig in a file.
func withMeshConfig(t *testing.T, text string) *Settings {
	t.Helper()
	s := DefaultSettings()
	s.MeshConfig = filepath.Join(t.TempDir(), "mesh.yaml")
	if err := os.WriteFile(s.MeshConfig, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return &s
}

// MC-18: configSources name watchers, whose revision and cluster are those of the process,
// and the MeshConfig is published without them.
func TestMeshConfig(t *testing.T) {
	dir := t.TempDir()
	s := withMeshConfig(t, `# the mesh
configSources:
- address: fs://`+dir+`/
- address: xds://istiod.example.com:15012
  tlsSettings: {mode: MUTUAL, clientCertificate: a.crt, privateKey: a.key, caCertificates: ca.crt, sni: istiod}
- address: k8s://
- {address: 'xds://[::1]:15010', tlsSettings: {mode: DISABLE}}
- address: xds://istiod.example.com:15012
connectTimeout: 3s
`)
	s.Cluster.Cluster, s.Cluster.Revision.Name = "east", "canary"
	l, _, err := s.meshConfig().read()
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	for _, e := range l.entries {
		got = append(got, fmt.Sprintf("%d %s", e.line, e.Shard()))
	}
	if want := fmt.Sprintf("1 file/mesh-config, 3 file/fs%s, 4 mcpxds/istiod.example.com-15012, 6 kubernetes/east, 7 mcpxds/--1-15010", strings.ReplaceAll(dir, "/", "-")); strings.Join(got, ", ") != want {
		t.Fatalf("got %s, want %s", strings.Join(got, ", "), want)
	}
	if want := "mesh.yaml:8: the source mcpxds/istiod.example.com-15012 is there already in line 4: this entry is ignored; name it once"; len(l.warnings) != 1 || !strings.HasSuffix(l.warnings[0], want) {
		t.Errorf("warnings %q, want %q", l.warnings, want)
	}
	canary := watcher.Revision{Name: "canary"}
	if f := l.entries[1].runnable.(*fileSource); f.Config != dir || f.Revision != canary {
		t.Errorf("the directory: %+v", f)
	}
	if x := l.entries[2].runnable.(*mcpxds.Settings); x.TLS != "MUTUAL" || x.Files != (mcp.TLS{CA: "ca.crt", Certificate: "a.crt", Key: "a.key", ServerName: "istiod"}) || x.Revision != canary {
		t.Errorf("the first source of MCP-over-xDS: %+v", x)
	}
	if k := l.entries[3].runnable.(*kubeSource); k.Cluster != "east" || k.Revision != canary {
		t.Errorf("the cluster: %+v", k)
	}
	object := l.entries[0].runnable.(*meshConfigSource).object
	k, _ := kind.ByName("MeshConfig")
	m, err := k.Decode(object.Value.Type, object.Value.Bytes)
	if err != nil {
		t.Fatal(err)
	}
	if c := m.(*meshconfig.MeshConfig); len(c.ConfigSources) != 0 || c.ConnectTimeout.GetSeconds() != 3 {
		t.Errorf("published as %v", c)
	}
	if object.Name != "default" || object.Namespace != "" || object.Origin != s.MeshConfig+":1" {
		t.Errorf("published as %s/%s of %s", object.Namespace, object.Name, object.Origin)
	}
	named, err := s.ConfigSources()
	if err != nil || len(named) != 4 || named[2] != (ident.Shard{Source: "kubernetes", Instance: "east"}) {
		t.Errorf("configSources %v, %v", named, err)
	}
	if near := Near(named); len(near) != 3 || near[0] != meshConfigShard || near[2] != named[2] {
		t.Errorf("a mesh waits for %v", near)
	}
}

// MC-18: an error names the file, its line and the field; nothing that configSources say is
// ignored.
func TestMeshConfigErrors(t *testing.T) {
	for text, want := range map[string]string{
		"address: istiod:15010":                            `mesh.yaml:2: configSources[0].address: "istiod:15010"`,
		"address: '://'":                                   `configSources[0].address: "://" is no URL: want fs:///DIR, xds://HOST:PORT or k8s://`,
		"tlsSettings: {}":                                  `configSources[0].address: "" is no URL`,
		"address: mcp://istiod:15010":                      `configSources[0].address: "mcp://istiod:15010": there is no scheme "mcp"`,
		"address: 'fs://'":                                 `configSources[0].address: "fs://" has no absolute path of a directory`,
		"address: 'fs:///'":                                `has no absolute path of a directory`,
		"address: fs://etc/mesh":                           `configSources[0].address: "fs://etc/mesh" has no absolute path of a directory: want fs:///DIR`,
		"address: fs:///not/there":                         `configSources[0].address: "fs:///not/there": stat /not/there: no such file`,
		"address: xds://istiod":                            `configSources[0].address: "xds://istiod": want xds://HOST:PORT`,
		"address: xds://istiod:15010/v3":                   `want xds://HOST:PORT`,
		"address: xds://a:b@istiod:1":                      `, without anything else`,
		"address: k8s://cluster":                           `configSources[0].address: "k8s://cluster": want k8s:// alone`,
		"address: k8s:///path":                             `want k8s:// alone`,
		"address: 'k8s://?x'":                              `, without anything else`,
		"{address: 'k8s://', tlsSettings: {mode: SIMPLE}}": `configSources[0].tlsSettings: has no effect with k8s://`,
		"{address: 'xds://a:1', subscribedResources: [SERVICE_REGISTRY]}":                                          `configSources[0].subscribedResources: has no effect`,
		"{address: 'xds://a:1', tlsSettings: {mode: ISTIO_MUTUAL}}":                                                `configSources[0].tlsSettings.mode: ISTIO_MUTUAL is not supported, because the process has no identity of the mesh; write MUTUAL`,
		"{address: 'xds://a:1', tlsSettings: {caCertificates: ca.crt}}":                                            `configSources[0].tlsSettings.caCertificates: has no effect with mode DISABLE`,
		"{address: 'xds://a:1', tlsSettings: {mode: SIMPLE, privateKey: k}}":                                       `privateKey: has no effect with mode SIMPLE`,
		"{address: 'xds://a:1', tlsSettings: {mode: SIMPLE, insecureSkipVerify: true}}":                            `insecureSkipVerify: is not supported`,
		"{address: 'xds://a:1', tlsSettings: {mode: SIMPLE, subjectAltNames: [b]}}":                                `subjectAltNames: is not supported`,
		"{address: 'xds://a:1', tlsSettings: {mode: SIMPLE, credentialName: b}}":                                   `credentialName: is not supported`,
		"{address: 'xds://a:1', tlsSettings: {mode: SIMPLE, caCrl: b}}":                                            `caCrl: is not supported`,
		"{address: 'xds://a:1', tlsSettings: {mode: MUTUAL, clientCertificate: c}}":                                `tlsSettings.mode: MUTUAL needs the files clientCertificate and privateKey`,
		"{address: 'xds://a:1', adress: x}":                                                                        `unknown field "adress"`,
		"{address: 'k8s://'}\nrootNamespace: 7":                                                                    `mesh.yaml:3: rootNamespace: `,
		"{address: 'k8s://'}\n---\n{}":                                                                             `more than one document`,
		"{address: 'k8s://'}\ningressClass: \"-----BEGIN EC PRIVATE KEY-----\\nx\\n-----END EC PRIVATE KEY-----\"": `holds a private key`,
	} {
		_, err := withMeshConfig(t, "configSources:\n- "+text+"\n").ConfigSources()
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s:\n%v, want\n%s", text, err, want)
		}
	}
}

// MC-18: a process has its sources from configSources or from its other settings, and a
// file that changes from one to the other changes nothing.
func TestMeshConfigAlone(t *testing.T) {
	s := withMeshConfig(t, "configSources: [{address: 'k8s://'}]")
	if err := s.Check(); err != nil {
		t.Errorf("alone: %v", err)
	}
	s.File = "sources.yaml"
	if err := s.Check(); err == nil || !strings.Contains(err.Error(), "--sources has no effect: configSources of "+s.MeshConfig+" name the only sources") {
		t.Errorf("with a list of sources: %v", err)
	}
	if err := withMeshConfig(t, "connectTimeout: 1s").Check(); err != nil {
		t.Errorf("without configSources: %v", err)
	}
	f := s.meshConfig().keepNaming(true)
	if _, err := f.parse("mesh.yaml", []byte("configSources: [{address: 'xds://a:1'}]")); err != nil {
		t.Errorf("other configSources: %v", err)
	}
	if _, err := f.parse("mesh.yaml", []byte("{}")); err == nil || !strings.Contains(err.Error(), "mesh.yaml: configSources name no sources any more: restart the process") {
		t.Errorf("no configSources: %v", err)
	}
	f = s.meshConfig().keepNaming(false)
	if _, err := f.parse("mesh.yaml", []byte("configSources: [{address: 'xds://a:1'}]")); err == nil || !strings.Contains(err.Error(), "and named none when the process started: restart it") {
		t.Errorf("the first configSources: %v", err)
	}
}

// MC-18: --check shows what of the MeshConfig has no effect, and fails for what is invalid.
func TestMeshConfigVerify(t *testing.T) {
	var out bytes.Buffer
	s := withMeshConfig(t, "ingressClass: istio\ndnsRefreshRate: 1ms\n")
	err := s.Verify(t.Context(), &out)
	if err == nil || !strings.Contains(err.Error(), "1 error in the MeshConfig") {
		t.Errorf("got %v", err)
	}
	for _, want := range []string{"mesh.yaml:2: spec.dnsRefreshRate: ", "spec.ingressClass: has no effect yet"} {
		if !strings.Contains(out.String(), want) {
			t.Errorf("got %s, want %s", &out, want)
		}
	}
}
