package ident

import (
	"crypto/sha256"
	"encoding/binary"
	"fmt"
	"strings"
	"time"
)

// RolloutState says which proxies an overlay of kind Rollout serves its values to. The
// numbers are those on the log.
type RolloutState uint8

// The states of a rollout.
const (
	RolloutWaiting RolloutState = 1 // it has reached no proxy, and all are served its values
	RolloutRunning RolloutState = 2 // the proxies that it has not reached are served its values
	RolloutStopped RolloutState = 3 // all proxies are served its values
)

// String returns waiting, running or stopped.
func (s RolloutState) String() string {
	switch s {
	case RolloutWaiting:
		return "waiting"
	case RolloutRunning:
		return "running"
	case RolloutStopped:
		return "stopped"
	}
	return "unknown"
}

// Group are the proxies that one of the selectors matches, and a share of all proxies.
type Group struct {
	Proxies []Proxies
	Percent int // by the node ids
}

// String returns the group for people.
func (g Group) String() string {
	var parts []string
	for _, p := range g.Proxies {
		parts = append(parts, p.String())
	}
	if g.Percent > 0 {
		parts = append(parts, fmt.Sprintf("%d%% of all", g.Percent))
	}
	if len(parts) == 0 {
		return "none"
	}
	return strings.Join(parts, "; ")
}

// Share reports whether a node is in the share of all proxies that the rollout with that
// id has reached. Another rollout begins with other nodes; a greater share has all nodes
// of a smaller one.
func (g Group) Share(rollout, node string) bool {
	if g.Percent <= 0 {
		return false
	}
	h := sha256.Sum256([]byte(rollout + "\x00" + node))
	return binary.BigEndian.Uint64(h[:])%100 < uint64(g.Percent)
}

// Staging is how far an overlay of kind Rollout is.
type Staging struct {
	State   RolloutState
	Step    int   // from 1; 0: none has begun
	Reached Group // by all steps so far
	Ordered bool  // an operator has ordered it
	// Since is when the log took the record that began the step or stopped the rollout.
	// An event leaves it zero: the record has the time.
	Since time.Time
}
