package proxy

// NamesField is the field of an agent's metadata that is "true" if the agent answers the
// names of the mesh by DNS, and so asks for them (NDS-1). Envoys do not have it.
const NamesField = "NAME_TABLE"

// AgentSuffix ends the id of the stream that an agent has beside its proxy's: before it
// is the id of the proxy.
const AgentSuffix = "~agent"

// WantsNames reports whether the client is an agent that asks for the names of the mesh.
func (p *Proxy) WantsNames() bool { return p.Text(NamesField) == "true" }
