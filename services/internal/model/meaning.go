package model

import (
	networking "istio.io/api/networking/v1alpha3"
)

func (pc *PushContext) rawOne(t ResourceType, selector, name string) *RawResource {
	for _, r := range pc.Raw(RawInput(t, selector)) {
		if r.Name == name {
			return r
		}
	}
	return nil
}
func (pc *PushContext) servicesOf(string) []*Service                           { return nil }
func (pc *PushContext) serviceByHost(string, string) *Service                  { return nil }
func (pc *PushContext) service(ServiceID) *Service                             { return nil }
func (pc *PushContext) endpointsOf(ServiceID) Endpoints                        { return nil }
func (pc *PushContext) virtualServicesOf(string, string) []*VirtualServiceHead { return nil }
func (pc *PushContext) virtualService(Key) *networking.VirtualService          { return nil }
func (pc *PushContext) ruleOf(string, string, string) (RuleID, bool)           { return RuleID{}, false }
func (pc *PushContext) rule(RuleID) (*networking.DestinationRule, []Key)       { return nil, nil }
func (pc *PushContext) gatewaysOf(string) []Gateway                            { return nil }
