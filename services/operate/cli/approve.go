package cli

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"os/user"
	"slices"
	"time"

	"github.com/spf13/cobra"

	"meshlog.dev/events"
	"meshlog.dev/proto/ident"
	reportv1 "meshlog.dev/proto/meshlog/report/v1"
	"meshlog.dev/services/internal/bus"
	"meshlog.dev/store"
)

// holdView is a hold, or a quarantine, as it is printed whole.
type holdView struct {
	ID     string `json:"id"`
	Kind   string `json:"kind"` // hold, quarantine
	Reason string `json:"reason,omitempty"`

	// Of a hold: what a source lost.
	Source   string `json:"source,omitempty"`
	Instance string `json:"instance,omitempty"`
	Keys     uint32 `json:"keys,omitempty"`

	// Of a quarantine: what clients rejected.
	Type     string     `json:"type,omitempty"` // CDS, EDS, ...
	Resource string     `json:"resource,omitempty"`
	Client   string     `json:"client,omitempty"`
	Since    *time.Time `json:"since,omitempty"`
	LastGood bool       `json:"lastGood,omitempty"` // is served instead

	parts []string // the overlays it consists of
}

// what names it for people.
func (h holdView) what() string {
	if h.Kind == "hold" {
		return fmt.Sprintf("%s of %s/%s", plural(int(h.Keys), "object", "objects"), h.Source, h.Instance)
	}
	return fmt.Sprintf("%s %s for %s", h.Type, h.Resource, h.Client)
}

// approvedView is what an approval came to.
type approvedView struct {
	Hold    string `json:"hold"`
	Seq     uint64 `json:"seq"`     // of the approval
	Version string `json:"version"` // that shows it
}

func approveCommand() *cobra.Command {
	var timeout time.Duration
	cmd := &cobra.Command{
		Use: "approve [ID]", Short: "Shows what is held back or in quarantine, or lets it through", Args: args(0, 1, ""),
		Long: `Shows what is held back or in quarantine, or lets one of it through.

Where a source loses much at once, the guard goes on serving what is gone, until
somebody approves the loss.

What two proxies reject, or the only one, is put into quarantine: proxies of that
version are served what they had before, or nothing of that name, until its
content changes. Approved, it is sent once more; if it is rejected again, it is
in quarantine again.

An approval is a record of the log like any other.`,
		Example: `  meshlog approve --data data/
  meshlog approve --data data/ hold-1-1.42-file-default
  meshlog approve --data data/ quarantine-0af7651916cd`,
	}
	t := targetFlags(cmd)
	format := outputFlag(cmd)
	cmd.Flags().DurationVar(&timeout, "timeout", 30*time.Second, "how long to wait for a version that shows it")
	cmd.RunE = func(cmd *cobra.Command, args []string) (err error) {
		defer func() { err = errors.Join(err, t.close()) }()
		out, err := newOutput(cmd, *format)
		if err != nil {
			return err
		}
		nc, err := t.connect()
		if err != nil {
			return err
		}
		reports, err := t.fleet(nc).Reports(cmd.Context(), bus.Summary)
		if err != nil {
			return err
		}
		if len(reports.Builders) == 0 {
			return errors.New("no builder reports, so it is not known what is held back; is one running?")
		}
		holds := viewHolds(newest(reports.Builders))
		if len(args) == 0 {
			return out.print(holds, func() error { return showHolds(holds, out) })
		}
		i := slices.IndexFunc(holds, func(h holdView) bool { return h.ID == args[0] })
		if i < 0 {
			return notFound("%q: nothing of this name is held back or in quarantine; `meshlog approve` lists what is", args[0])
		}
		log, err := t.log(cmd.Context(), nc)
		if err != nil {
			return err
		}
		chain, err := t.chain(cmd.Context(), nc)
		if err != nil {
			return err
		}
		ctx, cancel := context.WithTimeout(cmd.Context(), timeout)
		defer cancel()
		v, err := approve(ctx, log, chain, holds[i])
		if err != nil {
			return err
		}
		return out.print(v, func() error {
			return out.line("Approved: from version %s on, %s is no more.", v.Version, v.Hold)
		})
	}
	return cmd
}

func viewHolds(r *reportv1.BuilderReport) []holdView {
	views := []holdView{}
	for _, h := range r.GetHolds() {
		views = append(views, holdView{
			ID: h.GetId(), Kind: "hold", Reason: h.GetReason(),
			Source: h.GetSource(), Instance: h.GetInstance(), Keys: h.GetKeys(), parts: h.GetParts(),
		})
	}
	for _, q := range r.GetQuarantines() {
		views = append(views, holdView{
			ID: q.GetId(), Kind: "quarantine", Reason: q.GetReason(),
			Type: typeName(q.GetTypeUrl()), Resource: q.GetName(), Client: q.GetClient(), Since: when(q.GetSince().AsTime()),
			LastGood: q.GetLastGood(), parts: []string{q.GetId()},
		})
	}
	return views
}

func showHolds(holds []holdView, out *output) error {
	if len(holds) == 0 {
		return out.line("Nothing is held back or in quarantine.")
	}
	t := table{head: []string{"ID", "WHAT", "REASON"}}
	for _, h := range holds {
		t.add(h.ID, h.what(), h.Reason)
	}
	return out.table(&t, true)
}

// approve removes a hold, all parts at once, or a quarantine, and waits until a version shows it.
func approve(ctx context.Context, log events.Appender, chain store.Chain, hold holdView) (approvedView, error) {
	id := hold.ID
	var batch []events.Event
	for _, part := range hold.parts {
		batch = append(batch, events.Event{
			ID: "approve/" + rand.Text(), Observed: time.Now(), Actor: operator(),
			Body: &events.Overlay{ID: part, Remove: true},
		})
	}
	ack, err := log.Append(ctx, batch, events.Fence{})
	if err != nil {
		return approvedView{}, fmt.Errorf("approve %s: %w", id, err)
	}
	f, err := chain.Follow(ctx)
	if err != nil {
		return approvedView{}, fmt.Errorf("approved %s at %d, but the version chain cannot be followed: %w", id, ack.Seq, err)
	}
	defer f.Close()
	var have ident.Position
	var root ident.Hash
	for have.Seq < ack.Seq {
		links, err := f.Next(ctx, have, root)
		if errors.Is(err, context.DeadlineExceeded) {
			return approvedView{}, fmt.Errorf("approved %s at %d, but no version shows it yet; /readyz of the builder says what it waits for", id, ack.Seq)
		}
		if err != nil {
			return approvedView{}, fmt.Errorf("approved %s at %d, but the version chain cannot be followed: %w", id, ack.Seq, err)
		}
		newest := links[len(links)-1].Manifest
		have, root = store.VersionOf(newest.GetVersion()), store.RootOf(newest)
	}
	return approvedView{Hold: id, Seq: ack.Seq, Version: have.String()}, nil
}

// operator is who sits at the terminal.
func operator() string {
	u, err := user.Current()
	if err != nil {
		return "operator"
	}
	return u.Username
}
