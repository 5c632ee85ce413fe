package fold

import "fmt"

// rules are the rules whose absence the simulation must notice, named as in
// shared/model, which has no kinds. A fold in production has all of them.
type rules struct {
	sessionFence bool // only records of the session begun last are applied
	pOrder       bool // of one key and session a record with a pseq not above the last one is dropped
	gap          bool // a pseq below low that is not on the log: nothing more of the session counts
	stage        bool // what is sent while listing waits for the closing alive
	digest       bool // a listing counts only if the digest over the whole shard agrees
	partial      bool // a partial listing removes nothing, is not compared, makes nothing SYNCED
	kinds        bool // what is not of the kinds that a session speaks for is neither compared nor removed
	stranger     bool // an alive of another session than the last begun asks for a new listing
	atomic       bool // a batch is applied when all of it is there
	lastGood     bool // last good values travel in the base of a segment
	overlayBase  bool // an overlay lifts, key by key, when another value than its base is offered
	once         bool // a removed overlay id never returns
	gate         bool // nothing is published before every required source is SYNCED
}

func allRules() rules {
	return rules{true, true, true, true, true, true, true, true, true, true, true, true, true}
}

// WithoutRule takes one rule away, by its name in shared/model. It is for
// suite/faultsim, which checks that each rule is needed; an unknown name
// panics.
func WithoutRule(name string) Option {
	return func(f *Fold) {
		named := map[string]*bool{
			"session_fence": &f.rules.sessionFence,
			"p_order":       &f.rules.pOrder,
			"gap":           &f.rules.gap,
			"stage":         &f.rules.stage,
			"digest":        &f.rules.digest,
			"partial":       &f.rules.partial,
			"kinds":         &f.rules.kinds,
			"stranger":      &f.rules.stranger,
			"atomic":        &f.rules.atomic,
			"last_good":     &f.rules.lastGood,
			"overlay_base":  &f.rules.overlayBase,
			"once":          &f.rules.once,
			"gate":          &f.rules.gate,
		}
		rule, ok := named[name]
		if !ok {
			panic(fmt.Sprintf("fold: no rule is called %q", name))
		}
		*rule = false
	}
}
