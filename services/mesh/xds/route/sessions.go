package route

import (
	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	sessionv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/http/stateful_session/v3"
	cookiev3 "github.com/envoyproxy/go-control-plane/envoy/extensions/http/stateful_session/cookie/v3"
	headerv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/http/stateful_session/header/v3"
	httpv3 "github.com/envoyproxy/go-control-plane/envoy/type/http/v3"
	"google.golang.org/protobuf/types/known/anypb"
	networking "istio.io/api/networking/v1alpha3"

	"meshlog.dev/services/mesh/index"
	"meshlog.dev/services/mesh/xds/piece"
)

// SessionFilter is the HTTP filter that binds clients to endpoints, as routes say.
const SessionFilter = "envoy.filters.http.stateful_session"

// sessionOf returns the settings by which clients stay with an endpoint of a service
// (VSA-18); nil: they do not. The cookie ends when the client does, as in Istio.
func sessionOf(s *index.Service) *anypb.Any {
	session := s.Session()
	var state *corev3.TypedExtensionConfig
	switch {
	case session.Cookie != "":
		state = &corev3.TypedExtensionConfig{Name: "envoy.http.stateful_session.cookie", TypedConfig: piece.Any(&cookiev3.CookieBasedSessionState{
			Cookie: &httpv3.Cookie{Name: session.Cookie, Path: session.Path},
		})}
	case session.Header != "":
		state = &corev3.TypedExtensionConfig{Name: "envoy.http.stateful_session.header", TypedConfig: piece.Any(&headerv3.HeaderBasedSessionState{Name: session.Header})}
	default:
		return nil
	}
	return piece.Any(&sessionv3.StatefulSessionPerRoute{Override: &sessionv3.StatefulSessionPerRoute_StatefulSession{
		StatefulSession: &sessionv3.StatefulSession{SessionState: state},
	}})
}

// session returns the settings for the destinations of a route. Of several destinations
// Envoy chooses one for each request before it looks at the session, so there are none.
func (t *translation) session(at string, in *networking.HTTPRoute) *anypb.Any {
	if t.GRPC || in.GetRedirect() != nil || in.GetDirectResponse() != nil {
		return nil
	}
	shares := Weighted(in.GetRoute())
	if len(shares) == 1 {
		return sessionOf(t.Service(shares[0].GetDestination().GetHost()))
	}
	for _, d := range shares {
		if t.Service(d.GetDestination().GetHost()).Sticky() {
			t.warn(at+".route", "the service of a destination keeps clients at one endpoint, and requests are shared by weight before that", "route to one destination",
				"requests of one client go to all destinations")
			break
		}
	}
	return nil
}
