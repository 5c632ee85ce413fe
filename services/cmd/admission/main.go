// Admission is a validating webhook: a Kubernetes API server asks it about objects of the
// mesh before it stores them.
package main

import (
	"context"
	"io"
	"os"

	"github.com/spf13/cobra"

	"meshlog.dev/services/internal/process"
	"meshlog.dev/services/roles/admission"
)

func main() { os.Exit(process.Main(command())) }

func command() *cobra.Command {
	s := admission.DefaultSettings()
	return process.Command(process.Spec{
		Use: "admission", Short: "Refuse invalid objects before Kubernetes stores them", Settings: &s,
		Long: `Answer a Kubernetes API server that asks about objects of the mesh before it stores
them, by the code of "meshlog validate -f". An invalid object is refused with field,
reason and what to do. The process needs neither the bus nor a version.

One replica keeps the ValidatingWebhookConfiguration: its rules, how the API server
reaches the webhook, and the roots of its certificate. An API server that gets no
answer stores the object, until the webhook has once refused an invalid object; from
then on it refuses what the webhook cannot check. "meshlog admission pause" ends that.`,
		Example: `  admission --tls-cert /etc/meshlog/tls/tls.crt --tls-key /etc/meshlog/tls/tls.key --tls-roots /etc/meshlog/tls/ca.crt
  admission --kubeconfig west.kubeconfig --url https://10.0.0.5:9443 --tls-cert cert.pem --tls-key key.pem --tls-roots ca.pem`,
		Verify: func(context.Context, io.Writer) error { return s.Verify() },
		Run:    s.Run,
	})
}
