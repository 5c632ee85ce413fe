package admission

import (
	"errors"
	"strings"
	"testing"

	"github.com/spf13/cobra"
	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	admissionclient "k8s.io/client-go/kubernetes/typed/admissionregistration/v1"

	"meshlog.dev/deploy/testkit/certtest"
	"meshlog.dev/deploy/testkit/kubetest"
	"meshlog.dev/services/admission"
	"meshlog.dev/services/operate/history"
	"meshlog.dev/services/operate/operatetest"
)

func TestMain(m *testing.M) { operatetest.Main(m) }

func must(t *testing.T, errs ...error) {
	t.Helper()
	if err := errors.Join(errs...); err != nil {
		t.Fatal(err)
	}
}

// ADM-3, KEY-13: a pause and its end are on the object and in the audit of the mesh, with
// who and why.
func TestPauseIsAudited(t *testing.T) {
	s, m := kubetest.Start(t), operatetest.Start(t, nil)
	kubeconfig, err := kubetest.Kubeconfig(s.Config())
	must(t, err)
	file := certtest.WriteFile(t, t.TempDir(), "kubeconfig", kubeconfig)
	meshlog := func(args ...string) (string, error) {
		var out strings.Builder
		root := &cobra.Command{SilenceErrors: true, SilenceUsage: true}
		root.AddCommand(Command(), history.Audit())
		root.SetOut(&out)
		root.SetArgs(append(args, "--data", m.Data))
		err := root.ExecuteContext(t.Context())
		return out.String(), err
	}
	_, err = meshlog("admission", "pause", "--reason", "x", "--kubeconfig", file)
	if coded := interface{ ExitCode() int }(nil); !errors.As(err, &coded) || coded.ExitCode() != 3 || !strings.Contains(err.Error(), "has no ValidatingWebhookConfiguration meshlog-admission") {
		t.Errorf("without a webhook: %v", err)
	}
	client, err := admissionclient.NewForConfig(s.Config())
	must(t, err)
	hooks, url := client.ValidatingWebhookConfigurations(), "https://127.0.0.1:1/validate"
	_, err = hooks.Create(t.Context(), &admissionregistrationv1.ValidatingWebhookConfiguration{
		ObjectMeta: metav1.ObjectMeta{Name: "meshlog-admission"},
		Webhooks: admission.Webhooks(admission.Options{
			Namespace: "meshlog", Client: admissionregistrationv1.WebhookClientConfig{URL: &url}, Policy: admissionregistrationv1.Fail,
		}),
	}, metav1.CreateOptions{})
	must(t, err)

	out, err := meshlog("admission", "pause", "--reason", "an upgrade", "--kubeconfig", file)
	must(t, err)
	now, err := hooks.Get(t.Context(), "meshlog-admission", metav1.GetOptions{})
	must(t, err)
	if *now.Webhooks[0].FailurePolicy != admissionregistrationv1.Ignore || !strings.HasSuffix(admission.Paused(now), ": an upgrade") || !strings.Contains(out, "meshlog-admission is paused") {
		t.Errorf("the command says %q, and the webhook is %s, %q", out, *now.Webhooks[0].FailurePolicy, admission.Paused(now))
	}
	out, err = meshlog("admission", "resume", "--kubeconfig", file)
	must(t, err)
	if now, err = hooks.Get(t.Context(), "meshlog-admission", metav1.GetOptions{}); err != nil || admission.Paused(now) != "" || !strings.Contains(out, "meshlog-admission is resumed") {
		t.Errorf("the command says %q, and the webhook is %q, %v", out, admission.Paused(now), err)
	}
	out, err = meshlog("audit")
	must(t, err)
	for _, want := range []string{"ADMISSION PAUSED", "meshlog-admission", "operator ", "an upgrade", "ADMISSION RESUMED"} {
		if !strings.Contains(out, want) {
			t.Errorf("the audit does not show %q:\n%s", want, out)
		}
	}
}
