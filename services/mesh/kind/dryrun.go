package kind

import (
	"fmt"
	"strconv"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/anypb"
	security "istio.io/api/security/v1beta1"

	"meshlog.dev/proto/ident"
	registryv1 "meshlog.dev/proto/meshlog/registry/v1"
	"meshlog.dev/services/mesh/problem"
)

// DryRunAnnotation marks an AuthorizationPolicy that is evaluated and not enforced
// (AZ-8).
const DryRunAnnotation = "istio.io/dry-run"

// DryRun is the message of an AuthorizationPolicy with a DryRunAnnotation, and the
// policy that its payload holds.
type DryRun struct {
	*registryv1.DryRun
	Inner *security.AuthorizationPolicy
}

// Annotated returns the message of an object with annotations, whose spec is m. A
// DryRunAnnotation is read as in Istio: "1" and "T" are true, too. A value that cannot be
// read is on the log as such, so that the builder reports it.
func (k *Kind) Annotated(m proto.Message, annotations map[string]string) (proto.Message, error) {
	if p, is := m.(*security.RequestAuthentication); is {
		if text, annotated := annotations[KeysAnnotation]; annotated {
			return k.keysBy(p, text)
		}
		return m, nil
	}
	inner, ok := m.(*security.AuthorizationPolicy)
	text, annotated := annotations[DryRunAnnotation]
	if !ok || !annotated {
		return m, nil
	}
	dry, err := strconv.ParseBool(text)
	if err == nil && !dry {
		return m, nil
	}
	b, encodeErr := k.Encode(m)
	if encodeErr != nil {
		return nil, encodeErr
	}
	return &DryRun{&registryv1.DryRun{Policy: &anypb.Any{TypeUrl: k.TypeURL, Value: b}, InvalidAnnotation: err != nil}, inner}, nil
}

// TypeOf returns the type URL of the payload that Encode makes of m.
func (k *Kind) TypeOf(m proto.Message) string {
	switch m.(type) {
	case *DryRun:
		return ident.DryRun
	case *ProxyKeys:
		return ident.ProxyKeys
	}
	return k.TypeURL
}

// Enforced reports whether proxies enforce the policy all the same: a dry run exists
// for ALLOW and DENY only, as in Istio, and the annotation has to be readable.
func (d *DryRun) Enforced() bool {
	switch d.Inner.GetAction() {
	case security.AuthorizationPolicy_ALLOW, security.AuthorizationPolicy_DENY:
		return d.GetInvalidAnnotation()
	}
	return true
}

// selectionOf returns the message whose selector and targets count.
func selectionOf(m proto.Message) proto.Message {
	switch m := m.(type) {
	case *DryRun:
		return m.Inner
	case *ProxyKeys:
		return m.Inner
	}
	return m
}

// decodeDryRun reads the payload of a DryRun.
func (k *Kind) decodeDryRun(b []byte) (proto.Message, error) {
	d := &DryRun{DryRun: &registryv1.DryRun{}}
	m, err := k.decodeInner(ident.DryRun, b, d.DryRun)
	if err != nil {
		return nil, err
	}
	d.Inner = m.(*security.AuthorizationPolicy)
	return d, nil
}

// decodeInner reads a payload of this type, which holds a policy of this kind, into outer,
// and returns the policy.
func (k *Kind) decodeInner(typeURL string, b []byte, outer interface {
	proto.Message
	GetPolicy() *anypb.Any
},
) (proto.Message, error) {
	if err := proto.Unmarshal(b, outer); err != nil {
		return nil, undecoded("", fmt.Sprintf("%s: %v", typeURL, err))
	}
	if is := outer.GetPolicy().GetTypeUrl(); is != k.TypeURL {
		return nil, undecoded("", fmt.Sprintf("%s of a %s holds %s, not %q", typeURL, k.Name, k.TypeURL, is))
	}
	return k.Decode(k.TypeURL, outer.GetPolicy().GetValue())
}

// problem says what the annotation does.
func (d *DryRun) problem() problem.Diagnostic {
	p := problem.Diagnostic{Severity: problem.Warning, Code: "dry-run", Field: "metadata.annotations", Advice: "remove the annotation " + DryRunAnnotation}
	action := d.Inner.GetAction()
	switch {
	case d.GetInvalidAnnotation():
		p.Reason, p.Advice = DryRunAnnotation+" is neither true nor false, so the policy is enforced", "write \"true\" or \"false\""
	case action == security.AuthorizationPolicy_AUDIT:
		p.Reason = "there is no dry run of AUDIT, which refuses no request; it is audited"
	case d.Enforced():
		p.Reason = fmt.Sprintf("there is no dry run of %s, so the policy is enforced", action)
	default:
		p.Severity, p.Reason = problem.Info, "the policy is evaluated, and not enforced ("+DryRunAnnotation+")"
		p.Advice += " to enforce it"
	}
	return p
}

// isDryRun reports whether v, which is not good, is a dry run for sure: nothing of it
// would be enforced if it were good (AZ-8).
func (k *Kind) isDryRun(v ident.Value) bool {
	if k.Name != "AuthorizationPolicy" {
		return false
	}
	if m, err := k.Decode(v.Type, v.Bytes); err == nil {
		d, is := m.(*DryRun)
		return is && !d.Enforced()
	}
	of, spec := source(v)
	if dry, err := strconv.ParseBool(of.Annotations[DryRunAnnotation]); spec == nil || err != nil || !dry {
		return false
	}
	switch string(spec["action"]) {
	case "", `"ALLOW"`, `"DENY"`:
		return true
	}
	return false
}
