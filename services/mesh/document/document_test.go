package document_test

import (
	"bytes"
	"encoding/json"
	"flag"
	"fmt"
	"strings"
	"testing"

	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"

	"meshlog.dev/deploy/testkit/goldentest"
	registryv1 "meshlog.dev/proto/meshlog/registry/v1"
	"meshlog.dev/services/mesh/document"
	"meshlog.dev/services/mesh/kind"
	"meshlog.dev/services/mesh/manifest"
)

var update = flag.Bool("update", false, "rewrite the expected output in testdata")

// TestRead reads pairs of a file and its objects. It encodes and decodes each
// payload on the way.
func TestRead(t *testing.T) {
	goldentest.Pairs(t, *update, "txt", func(t *testing.T, _ string, file []byte) string { return dump(t, file) })
}

func dump(t *testing.T, file []byte) string {
	t.Helper()
	var b strings.Builder
	for _, d := range manifest.Parse(file) {
		o, bad := document.Read(&d)
		if o.Kind != nil {
			fmt.Fprintf(&b, "%s %s/%s", o.Kind.Name, o.Namespace, o.Name)
		} else {
			fmt.Fprintf(&b, "%s %s", d.APIVersion, d.Kind)
		}
		switch {
		case o.Foreign:
			fmt.Fprintf(&b, ": foreign: %v; %s\n", bad, bad.Advice)
		case bad != nil:
			fmt.Fprintf(&b, ": %v; %s\n", bad, bad.Advice)
		default:
			fmt.Fprintf(&b, "\n%s\n", payload(t, o))
			for _, p := range o.Kind.Validate(o.Namespace, o.Message) {
				fmt.Fprintf(&b, "line %d: %s: %s; %s\n", d.FieldLine(p.Field), p.Field, p.Reason, p.Advice)
			}
		}
	}
	return b.String()
}

// payload returns the payload of an object's event as JSON.
func payload(t *testing.T, o document.Object) string {
	t.Helper()
	encoded, err := o.Kind.Encode(o.Message)
	if err != nil {
		t.Fatal(err)
	}
	m, err := o.Kind.Decode(o.Kind.TypeOf(o.Message), encoded)
	if err != nil {
		t.Fatal(err)
	}
	if !proto.Equal(m, o.Message) {
		t.Errorf("%s: decodes to %v", o.Name, m)
	}
	raw, err := protojson.Marshal(m)
	if err != nil {
		t.Fatal(err)
	}
	if whole, ok := m.(*registryv1.Object); ok {
		raw = whole.GetJson()
	}
	var b bytes.Buffer
	if err := json.Indent(&b, raw, "", " "); err != nil {
		t.Fatal(err)
	}
	return b.String()
}

// TestEveryKind writes a document of each kind of the table, in each version.
func TestEveryKind(t *testing.T) {
	for _, k := range kind.All() {
		for _, v := range k.Versions {
			apiVersion := v
			if k.Group != "" {
				apiVersion = k.Group + "/" + v
			}
			text := fmt.Sprintf("apiVersion: %s\nkind: %s\nmetadata: {name: x}\n", apiVersion, k.DocumentKind())
			if k.Name == "EndpointSlice" {
				text += "addressType: IPv4\nendpoints: []\n"
			}
			d := manifest.Parse([]byte(text))[0]
			o, bad := document.Read(&d)
			notInFiles := k.ClusterOnly || k.Form == kind.Produced
			if notInFiles && o.Foreign && bad != nil {
				continue
			}
			if bad != nil || o.Kind != k || notInFiles || o.Name != "x" || (o.Namespace == "default") != k.Namespaced {
				t.Errorf("%s %s: read as %+v: %v", apiVersion, k.Name, o, bad)
			}
		}
	}
}

// TestNoSecret checks that Read refuses a Secret as a Secret even if it has other
// errors. Otherwise a watcher would publish its text as an undecoded object.
func TestNoSecret(t *testing.T) {
	for _, text := range []string{
		"apiVersion: v1\nkind: Secret\nmetadata: {name: x}\ndata: {tls.key: c2VjcmV0}\n",
		"apiVersion: v2\nkind: Secret\nmetadata: {name: x}\nstringData: {tls.key: secret}\n",
		"apiVersion: v1\nkind: Secret\nmetadata: {name: x, labels: 7}\n",
	} {
		d := manifest.Parse([]byte(text))[0]
		o, bad := document.Read(&d)
		if !o.Foreign || bad == nil || bad.Code != "secret" || o.Kind != nil {
			t.Errorf("%s: %+v, %v", text, o, bad)
		}
	}
}

func FuzzRead(f *testing.F) {
	for _, file := range goldentest.Inputs(f) {
		f.Add(file)
	}
	f.Fuzz(func(t *testing.T, file []byte) {
		lines := bytes.Count(file, []byte("\n")) + 2
		for _, d := range manifest.Parse(file) {
			o, bad := document.Read(&d)
			if bad != nil && (bad.Line < 1 || bad.Line > lines || bad.Reason == "") {
				t.Errorf("%+v in %d lines", bad, lines)
			}
			if bad != nil {
				continue
			}
			if line := document.FirstProblem(&d, o); line < 1 || line > lines {
				t.Errorf("a problem on line %d of %d", line, lines)
			}
			if !o.Kind.EndpointsOnly(o.Message, o.Message) && o.Kind.EndpointsOnly(nil, o.Message) {
				t.Errorf("%s: a new object is endpoints only, an unchanged one is not", o.Kind.Name)
			}
		}
	})
}

// TestInlineKey checks that Read refuses an object that contains a private key. The
// error names the field and does not quote the key.
func TestInlineKey(t *testing.T) {
	const pem = "-----BEGIN PRIVATE KEY-----\n        c2VjcmV0\n        -----END PRIVATE KEY-----\n"
	gateway := func(field string) string {
		return "apiVersion: networking.istio.io/v1\nkind: Gateway\nmetadata: {name: edge}\nspec:\n  servers:\n  - hosts: [\"*\"]\n    port: {number: 443, name: https, protocol: HTTPS}\n    tls:\n      mode: SIMPLE\n" + field
	}
	for _, test := range []struct {
		name, file, field string
		line              int
	}{
		{"in its field", gateway("      serverCertificate: /etc/cert.pem\n      privateKey: |\n        " + pem), "spec.servers[0].tls.privateKey", 11},
		{"in a list", "apiVersion: networking.istio.io/v1alpha3\nkind: EnvoyFilter\nmetadata: {name: x}\nspec:\n  configPatches:\n  - patch:\n      value:\n        keys:\n        - a\n        - \"" + strings.ReplaceAll(pem, "\n", `\n`) + "\"\n", "spec.configPatches[0].patch.value.keys[1]", 10},
		{"where nothing is expected", gateway("      privateKye: |\n        " + pem), "spec.servers[0].tls.privateKye", 10},
		{"in the key of a map", "apiVersion: networking.istio.io/v1alpha3\nkind: EnvoyFilter\nmetadata:\n  name: x\n  annotations:\n    ? |\n        " + pem + "    : x\n", "metadata.annotations", 6},
		{"beside another error", gateway("      mode: MUTUAL\n      privateKey: |\n        " + pem), "", 1},
	} {
		t.Run(test.name, func(t *testing.T) {
			d := manifest.Parse([]byte(test.file))[0]
			o, bad := document.Read(&d)
			if bad == nil || o.Kind == nil || o.Message != nil {
				t.Fatalf("read as %+v, %v", o, bad)
			}
			if !strings.Contains(bad.Reason, "holds a private key") || strings.Contains(bad.Reason+bad.Field, "c2VjcmV0") || bad.Advice == "" {
				t.Errorf("refused with %+v", bad)
			}
			if bad.Field != test.field || bad.Line != test.line {
				t.Errorf("refused in line %d, field %q, want %d, %q", bad.Line, bad.Field, test.line, test.field)
			}
		})
	}
	d := manifest.Parse([]byte(gateway("      serverCertificate: /etc/cert.pem\n      privateKey: /etc/key.pem # no -----BEGIN PRIVATE KEY-----\n")))[0]
	if _, err := document.Read(&d); err != nil {
		t.Errorf("Read refuses the path of a key: %v", err)
	}
}
