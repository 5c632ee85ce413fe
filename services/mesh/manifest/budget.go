package manifest

import (
	"go.yaml.in/yaml/v3"
	"meshlog.dev/services/mesh/problem"
)

// A few hundred bytes of anchors, aliases and merge keys can stand for billions
// of fields. So work has a budget. What a reader visits costs units, about one
// for each byte that is read, compared or written. Each object may spend what
// its own text is worth, which is enough without aliases, and the objects of a
// file share the rest. So one object never takes the work of another.
const (
	unitsOfFile = 16 << 20
	unitsOfByte = 64
	// costOfNode is what a visit costs besides the bytes.
	costOfNode = 32
)

// Allowance is the work that the objects of a file may cost beyond what their own texts
// are worth. One goroutine uses it.
type Allowance struct {
	units    int
	exceeded bool
}

// NewAllowance returns the allowance of a file.
func NewAllowance() *Allowance { return &Allowance{units: unitsOfFile} }

// budget is the work that an object may cost, and what need not be done again.
// One goroutine uses it.
type budget struct {
	own    int
	shared *Allowance // of the file
	// merges holds the entries of mappings with merge keys, because each alias
	// of such a mapping would merge them again.
	merges map[*yaml.Node][]entry
}

func newBudget(n *yaml.Node, shared *Allowance) *budget {
	return &budget{own: unitsOfByte * textOf(n), shared: shared, merges: make(map[*yaml.Node][]entry)}
}

// textOf estimates the bytes in a file that n takes, without what its aliases
// refer to.
func textOf(n *yaml.Node) int {
	bytes := len(n.Value) + 2
	for _, c := range n.Content {
		bytes += textOf(c)
	}
	return bytes
}

// spend takes what a visit of n costs. It returns an error if the budget does
// not have it.
func (r reader) spend(n *yaml.Node, path string, units int) *problem.Diagnostic {
	if own := min(units, r.own); own > 0 {
		r.own -= own
		units -= own
	}
	if units > r.shared.units {
		*r.shared = Allowance{exceeded: true}
		return r.fail(n, cut(path), "use fewer aliases and merge keys (<<), or give each object a file of its own",
			"the object takes too much work to read up to here: aliases and merge keys repeat too much of it, or long names are nested too deep")
	}
	r.shared.units -= units
	return nil
}

// cut limits the path in an error.
func cut(path string) string {
	const most = 256
	if len(path) <= most {
		return path
	}
	return path[:most] + "..."
}
