// Package admission holds the commands that pause and resume the webhook that a Kubernetes
// API server asks about objects of the mesh. They change its configuration in the API
// server, so that they work while the bus and the webhook are away.
package admission

import (
	"context"
	"fmt"
	"log/slog"
	"time"

	"github.com/spf13/cobra"
	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	admissionclient "k8s.io/client-go/kubernetes/typed/admissionregistration/v1"

	auditv1 "meshlog.dev/proto/meshlog/audit/v1"
	"meshlog.dev/services/admission"
	"meshlog.dev/services/internal/audit"
	"meshlog.dev/services/internal/bus"
	"meshlog.dev/services/internal/kubeaccess"
	"meshlog.dev/services/operate/command"
)

// Command returns the command `admission`.
func Command() *cobra.Command {
	cmd := &cobra.Command{
		Use: "admission", Short: "Pause or resume the check of objects by Kubernetes",
		Long: `Pause or resume the webhook that a Kubernetes API server asks about objects of the mesh
before it stores them (the program admission).`,
		Example: "  meshlog admission pause --reason 'the webhook does not answer'",
		Args:    command.Args(0, 0, ""),
		RunE:    func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	cmd.AddCommand(pause(), resume())
	return cmd
}

// change is a change of the webhook's configuration by an operator.
type change struct {
	server   kubeaccess.Settings
	revision string
	reason   string
	action   auditv1.Action
	done     string
	apply    func(*admissionregistrationv1.ValidatingWebhookConfiguration)
}

// view is the result of a command.
type view struct {
	Configuration string `json:"configuration"`
	Paused        string `json:"paused,omitempty"`
}

func (c *change) flags(cmd *cobra.Command) {
	c.server.Flags(cmd.Flags())
	cmd.Flags().Lookup("kubeconfig").Usage = "kubeconfig `file` with the API server's address and credentials; the default is that of kubectl"
	cmd.Flags().StringVar(&c.revision, "revision", "", "`name` of the revision of the control plane, if the webhook has one")
}

func pause() *cobra.Command {
	c := &change{action: auditv1.Action_ACTION_ADMISSION_PAUSED, done: "paused"}
	cmd := &cobra.Command{
		Use: "pause --reason TEXT", Short: "Store objects that the webhook cannot check", Args: command.Args(0, 0, ""),
		Long: `Let the API server store objects that the webhook cannot check: it sets failurePolicy of
the webhook to Ignore, until "meshlog admission resume". Objects that the webhook finds
invalid are still refused while it answers.

It needs the right to update the ValidatingWebhookConfiguration, and neither the webhook
nor the bus. The configuration shows who paused it, and why. The audit of the mesh gets
a record; if it cannot be written, the pause counts, and the command fails.`,
		Example: `  meshlog admission pause --bus nats://127.0.0.1:4222 --reason 'an upgrade of the nodes'`,
	}
	c.flags(cmd)
	cmd.Flags().StringVar(&c.reason, "reason", "", "`why`, for other operators and the audit")
	c.apply = func(w *admissionregistrationv1.ValidatingWebhookConfiguration) {
		admission.Pause(w, command.Operator(), c.reason, time.Now())
	}
	return command.Live(cmd, func(ctx context.Context, e *command.Env, _ []string) error {
		if c.reason == "" {
			return command.Usage("--reason is missing: other operators must see why the webhook is paused")
		}
		return c.run(ctx, e)
	})
}

func resume() *cobra.Command {
	c := &change{action: auditv1.Action_ACTION_ADMISSION_RESUMED, done: "resumed", apply: admission.Resume}
	cmd := &cobra.Command{
		Use: "resume", Short: "End a pause of the webhook", Args: command.Args(0, 0, ""),
		Long: `End a pause. Once the webhook has refused an invalid object, which its leader tries every
few seconds, the API server refuses again what the webhook cannot check.`,
		Example: `  meshlog admission resume --bus nats://127.0.0.1:4222`,
	}
	c.flags(cmd)
	return command.Live(cmd, func(ctx context.Context, e *command.Env, _ []string) error { return c.run(ctx, e) })
}

// conflicts is how often a change is repeated that another writer overtakes.
const conflicts = 5

func (c *change) run(ctx context.Context, e *command.Env) error {
	if err := c.server.Check(); err != nil {
		return command.Usage("%w", err)
	}
	r, err := c.server.Operator()
	if err != nil {
		return err
	}
	client, err := admissionclient.NewForConfig(r)
	if err != nil {
		return err
	}
	name := admission.ConfigurationName(c.revision)
	now, err := c.write(ctx, client.ValidatingWebhookConfigurations(), name)
	if apierrors.IsNotFound(err) {
		return command.NotFound("the cluster has no ValidatingWebhookConfiguration %s: no webhook is installed, or it has another --revision", name)
	}
	if err != nil {
		return err
	}
	v := view{name, admission.Paused(now)}
	e.Print(v, func() { e.Line("The webhook %s is %s.", v.Configuration, c.done) })
	if err := c.record(ctx, e, name); err != nil {
		return fmt.Errorf("the webhook is %s, but the audit of the mesh has no record of that: %w", c.done, err)
	}
	return nil
}

func (c *change) write(ctx context.Context, to admissionclient.ValidatingWebhookConfigurationInterface, name string) (now *admissionregistrationv1.ValidatingWebhookConfiguration, err error) {
	for range conflicts {
		if now, err = to.Get(ctx, name, metav1.GetOptions{}); err != nil {
			return nil, err
		}
		c.apply(now)
		if now, err = to.Update(ctx, now, metav1.UpdateOptions{FieldManager: "meshlog"}); !apierrors.IsConflict(err) {
			return now, err
		}
	}
	return nil, err
}

func (c *change) record(ctx context.Context, e *command.Env, name string) error {
	conn, err := e.Conn()
	if err != nil {
		return err
	}
	w, err := audit.NewWriter(conn, audit.WriterOptions{
		Domain: e.Bus.Domain, Role: bus.Operator(), Process: command.Operator(), Log: slog.New(slog.DiscardHandler),
	})
	if err != nil {
		return err
	}
	return w.Store(ctx, &auditv1.Record{Action: c.action, Name: name, Reason: c.reason})
}
