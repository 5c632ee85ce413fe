package index

import (
	"maps"

	"meshlog.dev/proto/ident"
	"meshlog.dev/services/mesh/table"
)

// addressed is a service that has an address as an endpoint.
type addressed struct {
	ident.Key // of the service, by its host
	id        ServiceID
}

// MemberKey returns a key that stands for the service.
func (a *addressed) MemberKey() ident.Key { return a.Key }

// targetEdit edits what finds the services of a workload.
type targetEdit struct {
	*transition
	addressed *table.GroupsEdit[addressIn, *addressed]
	listed    *table.Edit[ServiceID, bool]
	objects   map[ServiceID]struct{} // services whose objects changed
}

// service records the addresses of a service that selects no workloads: one that does is
// found by labels. Its endpoints were was, and now are is.
func (e *targetEdit) service(id ServiceID, claims []*claim, was, is Endpoints) {
	selects := false
	for _, c := range claims {
		selects = selects || c.selects()
	}
	var before, after map[string]uint64
	if e.listed.Get(id) {
		before = portsAt(was)
	}
	if !selects {
		after = portsAt(is)
	}
	_, object := e.objects[id]
	member := &addressed{ident.Key{Kind: "host", Namespace: id.Namespace, Name: id.Hostname}, id}
	for ip := range before {
		if _, still := after[ip]; !still {
			e.addressed.Drop(addressIn{id.Namespace, ip}, member.Key)
			e.changed(Input{Kind: InputTargets, A: id.Namespace, B: ip})
		}
	}
	for ip, ports := range after {
		if was, had := before[ip]; !had || was != ports || object {
			e.addressed.Put(addressIn{id.Namespace, ip}, member)
			e.changed(Input{Kind: InputTargets, A: id.Namespace, B: ip})
		}
	}
	e.listed.Keep(id, true, len(after) > 0)
}

// noteTargets records that the ports of a workload by name may have changed.
func (t *transition) noteTargets(was, is *workload) {
	if !was.proves(is) && maps.Equal(was.ports(), is.ports()) {
		return
	}
	for _, w := range []*workload{was, is} {
		if w == nil {
			continue
		}
		for _, ip := range w.addresses() {
			t.changed(Input{Kind: InputTargets, A: w.Namespace, B: ip})
		}
	}
}

// ports returns the ports of the workload by name.
func (w *workload) ports() map[string]uint32 {
	if w.pod != nil {
		return w.pod.GetPorts()
	}
	return w.entry.GetPorts()
}
