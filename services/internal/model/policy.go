package model

// Policy is the MeshPolicy that counts, with the defaults filled in.
type Policy struct {
	// SourcePriority names sources, the one that wins first; unnamed ones
	// come last, by name.
	SourcePriority []string
	// Required must each have listed everything before anything is published.
	Required      []RequiredSource
	Guard         Guard
	RootNamespace string
	DomainSuffix  string
}

// RequiredSource is a shard that must be SYNCED before a version.
type RequiredSource struct {
	Shard
	// AcceptPartial: a listing that could not read everything will do.
	AcceptPartial bool
}

// Guard says which mass losses are held back.
type Guard struct {
	Disabled bool
	// MaxLossPercent is the share of a source's keys that may go at once.
	MaxLossPercent int
	// MinKeys: the loss of fewer keys is never held.
	MinKeys int
}
