package names

import (
	"sync"
	"weak"

	"meshlog.dev/services/mesh/xds"
)

const (
	// sumsKept is in how many Sets the Sum of one set of names is remembered: in
	// those of the versions that a client which resumes may name.
	sumsKept = 20
	// sumsFrom is how many names make that worth its memory.
	sumsFrom = 64
)

// sums remembers Sums of one set of names. In a storm, many clients with the same
// names ask for their Sum in the same earlier versions. The zero sums is empty.
type sums struct {
	mu   sync.Mutex
	made []sumIn
	next int // is replaced next, once sumsKept are made
}

// sumIn is a Sum and the Set that it is of, which it does not keep in memory.
type sumIn struct {
	set weak.Pointer[xds.Set]
	sum xds.Sum
}

func (s *sums) find(set weak.Pointer[xds.Set]) (xds.Sum, bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, m := range s.made {
		if m.set == set {
			return m.sum, true
		}
	}
	return xds.Sum{}, false
}

func (s *sums) add(set weak.Pointer[xds.Set], sum xds.Sum) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.made) < sumsKept {
		s.made = append(s.made, sumIn{set, sum})
		return
	}
	s.made[s.next] = sumIn{set, sum}
	s.next = (s.next + 1) % sumsKept
}

// SumIn returns the Sum of a subscription to n in set.
func (n *Names) SumIn(set *xds.Set) xds.Sum {
	if n.Len() < sumsFrom || set == nil {
		return n.sumIn(set)
	}
	key := weak.Make(set)
	sum, ok := n.sums.find(key)
	if !ok {
		sum = n.sumIn(set)
		n.sums.add(key, sum)
	}
	return sum
}

func (n *Names) sumIn(set *xds.Set) xds.Sum {
	var sum xds.Sum
	n.Select(set, func(name string, r *xds.Resource) { sum = sum.Add(SumOf(name, r)) })
	return sum
}
