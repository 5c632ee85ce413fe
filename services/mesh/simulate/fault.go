package simulate

import (
	"strconv"

	routev3 "github.com/envoyproxy/go-control-plane/envoy/config/route/v3"
	faultv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/http/fault/v3"
	typev3 "github.com/envoyproxy/go-control-plane/envoy/type/v3"
)

const faultFilter = "envoy.filters.http.fault"

// fault notes the faults that a route injects.
func fault(r *routev3.Route, o *Outcome) {
	a := r.GetTypedPerFilterConfig()[faultFilter]
	if a == nil {
		return
	}
	f := new(faultv3.HTTPFault)
	if err := a.UnmarshalTo(f); err != nil {
		o.note("filter %s: %v", faultFilter, err)
		return
	}
	if d := f.GetDelay(); d != nil {
		o.note("%s delayed by %s", percent(d.GetPercentage()), d.GetFixedDelay().AsDuration())
	}
	switch e := f.GetAbort().GetErrorType().(type) {
	case *faultv3.FaultAbort_HttpStatus:
		o.note("%s aborted with %d", percent(f.GetAbort().GetPercentage()), e.HttpStatus)
	case *faultv3.FaultAbort_GrpcStatus:
		o.note("%s aborted with gRPC status %d", percent(f.GetAbort().GetPercentage()), e.GrpcStatus)
	}
}

func percent(p *typev3.FractionalPercent) string {
	of := map[typev3.FractionalPercent_DenominatorType]float64{
		typev3.FractionalPercent_HUNDRED: 100, typev3.FractionalPercent_TEN_THOUSAND: 1e4, typev3.FractionalPercent_MILLION: 1e6,
	}[p.GetDenominator()]
	return strconv.FormatFloat(100*float64(p.GetNumerator())/of, 'g', -1, 64) + "%"
}
