package simulate

import (
	accesslogv3 "github.com/envoyproxy/go-control-plane/envoy/config/accesslog/v3"
	filev3 "github.com/envoyproxy/go-control-plane/envoy/extensions/access_loggers/file/v3"
)

// logged notes the access logs that get an entry about the call.
func (o *Outcome) logged(logs []*accesslogv3.AccessLog) {
	for _, l := range logs {
		to := l.GetName()
		f := new(filev3.FileAccessLog)
		if l.GetTypedConfig().MessageIs(f) && l.GetTypedConfig().UnmarshalTo(f) == nil {
			to = f.GetPath()
		}
		o.note("logged to %s", to)
	}
}
