package clusters

import (
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"meshlog.dev/services/watcher/kube/index"
)

const kubeconfig = `
apiVersion: v1
kind: Config
current-context: c
contexts: [{name: c, context: {cluster: c, user: u}}]
clusters: [{name: c, cluster: {server: "https://west.example.com:6443"}}]
users: [{name: u, user: {token: secret}}]
`

var start = time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)

func TestSelfContained(t *testing.T) {
	for _, test := range []struct{ name, old, new, want string }{
		{"as it should be", "", "", ""},
		{"empty", kubeconfig, " ", "is empty"},
		{"no YAML", kubeconfig, "{", "is not a kubeconfig"},
		{"no context", "current-context: c", "current-context: d", "current-context: does not name a context"},
		{"no user", "user: u}", "user: v}", "current-context: its cluster or its user is missing"},
		{"a program", "token: secret", "exec: {apiVersion: client.authentication.k8s.io/v1, command: rm, interactiveMode: Never}", "user.exec: a program is not run"},
		{"a provider", "token: secret", "auth-provider: {name: gcp}", "user.auth-provider: a program is not run"},
		{"a file with a token", "token: secret", "tokenFile: /etc/passwd", "user.tokenFile: a file is not read"},
		{"a file with a certificate", "token: secret", "client-certificate: /etc/passwd", "user.client-certificate: a file is not read"},
		{"a file with a key", "token: secret", "client-key: /etc/passwd", "user.client-key: a file is not read"},
		{"a file with an authority", "{server:", "{certificate-authority: /etc/passwd, server:", "cluster.certificate-authority: a file is not read"},
		{"insecure", "{server:", "{insecure-skip-tls-verify: true, server:", "cluster.insecure-skip-tls-verify: "},
		{"in the clear", "https://", "http://", "cluster.server: "},
	} {
		t.Run(test.name, func(t *testing.T) {
			c, err := selfContained([]byte(strings.Replace(kubeconfig, test.old, test.new, 1)))
			switch {
			case test.want != "" && (err == nil || !strings.Contains(err.Error(), test.want)):
				t.Errorf("%v, want %q", err, test.want)
			case test.want == "" && err != nil:
				t.Error(err)
			case test.want == "" && (c.Host != "https://west.example.com:6443" || c.BearerToken != "secret"):
				t.Errorf("read as %v", c)
			}
		})
	}
}

func TestRemotes(t *testing.T) {
	secret := func(name string, age time.Duration, data ...string) *index.Object {
		s := &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: name, CreationTimestamp: metav1.Time{Time: start.Add(-age)}}, Data: map[string][]byte{}}
		for i := 0; i < len(data); i += 2 {
			s.Data[data[i]] = []byte(data[i+1])
		}
		o, ok := read(s)
		if !ok {
			t.Fatal("read did not accept a cluster's Secret")
		}
		for _, content := range s.Data {
			if strings.Trim(string(content), "\x00") != "" {
				t.Error("a kubeconfig was not erased from memory")
			}
		}
		return o
	}
	c := &Config{Home: "east"}
	remotes, ds := c.clusters([]*index.Object{
		secret("b", time.Hour, "west", kubeconfig),
		secret("a", time.Minute, "west", kubeconfig, "south", kubeconfig),
		secret("c", 0, "east", kubeconfig, "broken", "x"),
	})
	var names, problems []string
	for _, r := range remotes {
		names = append(names, r.Name)
		if r.REST == nil || r.Version == "" {
			t.Errorf("%+v", r)
		}
	}
	for _, d := range ds {
		problems = append(problems, d.Origin+": "+strings.SplitN(d.Reason, ":", 2)[0])
		if d.Advice == "" || d.Effect == "" {
			t.Errorf("%+v", d)
		}
	}
	if diff := cmp.Diff([]string{"south", "west"}, names); diff != "" {
		t.Errorf("clusters (-want +got):\n%s", diff)
	}
	want := []string{
		"Secret ns/a, west: the name west is already used by Secret ns/b, west",
		"Secret ns/c, broken: is not a kubeconfig",
		"Secret ns/c, east: the name east is already used by the cluster of this watcher",
	}
	if diff := cmp.Diff(want, problems); diff != "" {
		t.Errorf("problems (-want +got):\n%s", diff)
	}
	again := c.mustRead(t, secret("a", 0, "west", kubeconfig))
	if other := c.mustRead(t, secret("a", 0, "west", kubeconfig+"\n")); again.Version == other.Version {
		t.Error("another kubeconfig has the same version")
	}
}

func (c *Config) mustRead(t *testing.T, o *index.Object) Cluster {
	t.Helper()
	remotes, ds := c.clusters([]*index.Object{o})
	if len(remotes) != 1 || len(ds) != 0 {
		t.Fatalf("%v, %v", remotes, ds)
	}
	return remotes[0]
}
