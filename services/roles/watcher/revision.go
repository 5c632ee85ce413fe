package watcher

import (
	"github.com/spf13/pflag"

	"meshlog.dev/services/internal/process"
	"meshlog.dev/services/mesh/kind"
	"meshlog.dev/services/mesh/kind/validate"
)

// Revision is the setting of watchers whose objects may be for another control plane.
type Revision struct {
	Name string // empty: all objects are seen
}

// Flags binds the setting.
func (r *Revision) Flags(fs *pflag.FlagSet) {
	fs.StringVar(&r.Name, "revision", r.Name, "`name` of the revision of this control plane: objects whose label "+kind.RevisionLabel+" has another value are not part of the mesh, those without the label are. Objects of Kubernetes itself, such as Services, always are. "+
		"Set it if several control planes read the same objects, as in a canary upgrade")
}

// Check returns an error for a name that no label can have.
func (r *Revision) Check() error {
	if !validate.IsLabel(kind.RevisionLabel, r.Name) {
		return process.Invalid("revision", "%q is not a value of a label: use at most 63 letters, digits, '-', '_' and '.'", r.Name)
	}
	return nil
}
