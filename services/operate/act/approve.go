package act

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/spf13/cobra"

	reportv1 "meshlog.dev/proto/meshlog/report/v1"
	"meshlog.dev/services/internal/bus"
	"meshlog.dev/services/operate/command"
	"meshlog.dev/store"
)

// holdView is a hold, or a quarantine.
type holdView struct {
	ID     string `json:"id"`
	Kind   string `json:"kind"` // hold, quarantine
	Reason string `json:"reason,omitempty"`

	// A hold keeps the objects that a source lost.
	Source   string `json:"source,omitempty"`
	Instance string `json:"instance,omitempty"`
	Keys     uint32 `json:"keys,omitempty"`

	// A quarantine withholds a resource that proxies rejected.
	Type     string    `json:"type,omitempty"` // CDS, EDS, ...
	Resource string    `json:"resource,omitempty"`
	Client   string    `json:"client,omitempty"`
	Since    time.Time `json:"since,omitzero"`
	LastGood bool      `json:"lastGood,omitempty"` // the last good content is served
	Piece    string    `json:"piece,omitempty"`    // of the resource; empty: the whole
	Closed   bool      `json:"closed,omitempty"`   // requests or connections are refused

	parts []string // the overlays that make it
}

func (h *holdView) what() string {
	if h.Kind == "hold" {
		return fmt.Sprintf("%s of %s/%s", command.Plural(int(h.Keys), "object", "objects"), h.Source, h.Instance)
	}
	if h.Piece != "" {
		return fmt.Sprintf("%s of %s %s for %s", h.Piece, h.Type, h.Resource, h.Client)
	}
	return fmt.Sprintf("%s %s for %s", h.Type, h.Resource, h.Client)
}

// approvedView is the result of an approval.
type approvedView struct {
	Hold    string `json:"hold"`
	Seq     uint64 `json:"seq"`     // of the approval on the log
	Version string `json:"version"` // that shows it
}

// Approve returns the command `approve`.
func Approve() *cobra.Command {
	cmd := &cobra.Command{
		Use: "approve [ID]", Short: "Approve a loss that is held back, or a resource in quarantine", Args: command.Args(0, 1, ""),
		Long: `Show the losses that are held back and the resources in quarantine, or approve one
of them.

When a source loses many objects at once, the guard keeps serving them until the
loss is approved.

When two proxies reject a resource, or the only proxy does, it goes into
quarantine: proxies of that version of Envoy get the content before it, or none,
until its content changes. After an approval it is sent once more, and goes back
into quarantine if it is rejected again.

The newest version says what is held back, not the processes that answer. An
approval is a record of the log.`,
		Example: `  meshlog approve --data data/
  meshlog approve --data data/ hold-1-1.42-file-default
  meshlog approve --data data/ quarantine-0af7651916cd`,
	}
	timeout := cmd.Flags().Duration("timeout", 30*time.Second, "how long to wait for a version that shows the approval")
	return command.Live(cmd, func(ctx context.Context, e *command.Env, args []string) error {
		chain, err := e.Chain(ctx)
		if err != nil {
			return err
		}
		head, err := command.FetchHead(ctx, chain)
		if err != nil {
			return err
		}
		holds, err := viewHolds(head.Snapshot)
		if err != nil {
			return err
		}
		if len(args) == 0 {
			e.Print(holds, func() { showHolds(holds, e.Output) })
			return nil
		}
		i := slices.IndexFunc(holds, func(h holdView) bool { return h.ID == args[0] })
		if i < 0 {
			return command.NotFound("%q: nothing with this id is held back or in quarantine; `meshlog approve` lists the ids", args[0])
		}
		fleet, err := e.Fleet()
		if err != nil {
			return err
		}
		log, err := e.OperatorLog(ctx)
		if err != nil {
			return err
		}
		ctx, cancel := context.WithTimeout(ctx, *timeout)
		defer cancel()
		v, err := approve(ctx, log, fleet, holds[i])
		if err != nil {
			return err
		}
		e.Print(v, func() { e.Line("Approved: version %s no longer holds %s back.", v.Version, v.Hold) })
		return nil
	})
}

// viewHolds returns the holds and quarantines in the content of a version.
func viewHolds(content *store.Snapshot) ([]holdView, error) {
	holds, quarantines, err := command.HeldBack(content)
	if err != nil {
		return nil, err
	}
	return views(holds, quarantines), nil
}

func views(holds []*reportv1.Hold, quarantines []*reportv1.Quarantine) []holdView {
	views := []holdView{}
	for _, h := range holds {
		views = append(views, holdView{
			ID: h.GetId(), Kind: "hold", Reason: h.GetReason(),
			Source: h.GetSource(), Instance: h.GetInstance(), Keys: h.GetKeys(), parts: h.GetParts(),
		})
	}
	for _, q := range quarantines {
		views = append(views, holdView{
			ID: q.GetId(), Kind: "quarantine", Reason: q.GetReason(),
			Type: command.TypeName(q.GetTypeUrl()), Resource: q.GetName(), Client: q.GetClient(), Since: command.Stamp(q.GetSince().AsTime()),
			LastGood: q.GetLastGood(), Piece: q.GetPiece(), Closed: q.GetClosed(), parts: []string{q.GetId()},
		})
	}
	return views
}

func showHolds(holds []holdView, out *command.Output) {
	if len(holds) == 0 {
		out.Line("Nothing is held back or in quarantine.")
		return
	}
	t := command.Rows{Head: []string{"ID", "WHAT", "REASON"}}
	for _, h := range holds {
		t.Add(h.ID, h.what(), h.Reason)
	}
	out.Rows(&t)
}

// approve approves a hold or a quarantine, and waits until a version shows that.
func approve(ctx context.Context, log command.EventLog, fleet *bus.Fleet, hold holdView) (approvedView, error) {
	seq, version, err := command.Approve(ctx, log, fleet, hold.ID, hold.parts)
	if err != nil {
		return approvedView{}, err
	}
	return approvedView{Hold: hold.ID, Seq: seq, Version: version.String()}, nil
}
