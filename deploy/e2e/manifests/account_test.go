package manifests

import (
	"context"
	"net/url"
	"os"
	"path/filepath"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/dynamic"

	"meshlog.dev/deploy/e2e/cluster"
)

// account is a ServiceAccount, as a pod gets it.
type account struct {
	dir        string // with its token
	host, port string // of the API server
}

// serviceAccount requests a token for a ServiceAccount in the namespace meshlog
// from the API server.
func serviceAccount(ctx context.Context, t *testing.T, c *cluster.Cluster, name string) account {
	t.Helper()
	access, token := c.Config(), requestToken(ctx, t, c, "meshlog", name, map[string]any{})
	api, err := url.Parse(access.Host)
	must(t, err)
	a := account{dir: t.TempDir(), host: api.Hostname(), port: api.Port()}
	for file, content := range map[string]string{"token": token, "ca.crt": string(access.CAData), "namespace": "meshlog"} {
		must(t, os.WriteFile(filepath.Join(a.dir, file), []byte(content), 0o600))
	}
	return a
}

// requestToken requests a token for a ServiceAccount.
func requestToken(ctx context.Context, t *testing.T, c *cluster.Cluster, namespace, name string, spec map[string]any) string {
	t.Helper()
	objects, err := dynamic.NewForConfig(c.Config())
	must(t, err)
	answer, err := objects.Resource(schema.GroupVersionResource{Version: "v1", Resource: "serviceaccounts"}).Namespace(namespace).
		Create(ctx, &unstructured.Unstructured{Object: map[string]any{
			"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest",
			"metadata": map[string]any{"name": name}, "spec": spec,
		}}, metav1.CreateOptions{}, "token")
	must(t, err)
	token, _, err := unstructured.NestedString(answer.Object, "status", "token")
	must(t, err)
	return token
}

// mountAccount runs a command with an account mounted at the path where a kubelet
// would mount it.
const mountAccount = `set -e
run=$(readlink -f /var/run)
mount -t tmpfs none "$run"
mkdir -p "$run/secrets/kubernetes.io"
cp -R "$0" "$run/secrets/kubernetes.io/serviceaccount"
exec "$@"`

// given returns the command line and environment that run a command with the account.
func (a account) given(argv, env []string) (with, withEnv []string) {
	return append([]string{"unshare", "--mount", "sh", "-c", mountAccount, a.dir}, argv...),
		append(env, "KUBERNETES_SERVICE_HOST="+a.host, "KUBERNETES_SERVICE_PORT="+a.port)
}
