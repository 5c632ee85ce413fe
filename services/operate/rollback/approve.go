package rollback

import (
	"context"

	"meshlog.dev/services/operate/command"
)

// approve plans the approval of a hold or a quarantine, as `meshlog approve` does it.
func (p *Plan) approve(ctx context.Context) error {
	if err := p.read(ctx); err != nil {
		return err
	}
	holds, quarantines, err := command.HeldBack(p.head.Snapshot)
	if err != nil {
		return err
	}
	id := p.Intent.ID
	var parts []string
	for _, h := range holds {
		if h.GetId() == id {
			parts = h.GetParts()
		}
	}
	for _, q := range quarantines {
		if q.GetId() == id {
			parts = []string{id}
		}
	}
	if len(parts) == 0 {
		return command.NotFound("%q: nothing with this id is held back or in quarantine; `meshlog approve` lists the ids", id)
	}
	p.Done = "Approved " + id
	return p.propose(id, command.Approval(parts))
}
