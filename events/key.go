package events

// Shard is the part of the world that one source instance speaks for.
type Shard struct {
	Source   string // "file", "kubernetes"
	Instance string // "default", "cluster-1"
}

// String is source/instance.
func (s Shard) String() string { return s.Source + "/" + s.Instance }

// Key names one object of one source: two clusters may hold the same object.
type Key struct {
	Source    string
	Instance  string
	Kind      string // "Resource", "VirtualService"
	Namespace string // empty for what has none
	Name      string
}

// Shard is whose word about the key counts.
func (k Key) Shard() Shard { return Shard{k.Source, k.Instance} }

// String is for people: Kind namespace/name (source/instance).
func (k Key) String() string {
	name := k.Name
	if k.Namespace != "" {
		name = k.Namespace + "/" + name
	}
	return k.Kind + " " + name + " (" + k.Source + "/" + k.Instance + ")"
}
