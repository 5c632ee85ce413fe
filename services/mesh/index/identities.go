package index

import (
	"cmp"
	"slices"
)

// Identities are what clients must know of the workloads behind a service before they
// call them in mutual TLS of the mesh. They change less often than endpoints.
type Identities struct {
	// MutualTLS: one of the endpoints at least speaks it.
	MutualTLS bool
	// Accounts are the service accounts of the endpoints, NAMESPACE/NAME, sorted.
	Accounts []string
}

func (i *Identities) equal(o *Identities) bool {
	return i == o || i != nil && o != nil && i.MutualTLS == o.MutualTLS && slices.Equal(i.Accounts, o.Accounts)
}

// identitiesOf returns nil if the endpoints have none and speak no mutual TLS.
func identitiesOf(id ServiceID, endpoints Endpoints) *Identities {
	var out Identities
	for _, list := range endpoints {
		for i := range list {
			e := &list[i]
			out.MutualTLS = out.MutualTLS || e.MutualTLS
			if e.ServiceAccount == "" {
				continue
			}
			account := cmp.Or(e.WorkloadNamespace, id.Namespace) + "/" + e.ServiceAccount
			if at, have := slices.BinarySearch(out.Accounts, account); !have {
				out.Accounts = slices.Insert(out.Accounts, at, account)
			}
		}
	}
	if !out.MutualTLS && len(out.Accounts) == 0 {
		return nil
	}
	return &out
}

// Identities returns the identities of the workloads behind a service.
func (r *Reader) Identities(id ServiceID) Identities {
	r.note(Input{Kind: InputIdentities, A: id.Namespace, B: id.Hostname})
	if i := r.pc.endpoints.identities.Get(id); i != nil {
		return *i
	}
	return Identities{}
}

// mutual reports whether there is mutual TLS of the mesh: an endpoint speaks it, or a
// DestinationRule demands it. Otherwise the certificates of clients make no difference.
func (pc *PushContext) mutual() bool { return pc.endpoints.mutual > 0 || pc.rules.mutual > 0 }

// MutualTLS reports whether an endpoint of any service speaks mutual TLS of the mesh, or a
// DestinationRule demands it.
func (r *Reader) MutualTLS() bool {
	r.note(Input{Kind: InputMutualTLS})
	return r.pc.mutual()
}
