package bus

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"

	"github.com/nats-io/nats-server/v2/server"

	"meshlog.dev/proto/jsapi"
)

// userInfo is the request for the permissions of the own user. The server that a
// client is connected to answers it, in every account.
const userInfo = "$SYS.REQ.USER.INFO"

// Permitted asks the server for the permissions of the connection's user, and returns
// a function that reports whether the user may publish to a subject. The function
// knows nothing of later changes; it is safe for concurrent use.
func Permitted(ctx context.Context, nc *Conn) (func(subject string) bool, error) {
	bound, cancel := jsapi.Bound(ctx, nc, jsapi.Timeout, userInfo)
	defer cancel()
	m, err := nc.RequestWithContext(bound, userInfo, nil)
	if err != nil {
		return nil, fmt.Errorf("ask for the permissions on the bus: %w", jsapi.Cause(bound, err))
	}
	var answer struct {
		Data  *server.UserInfo `json:"data"`
		Error *server.ApiError `json:"error"`
	}
	err = json.Unmarshal(m.Data, &answer)
	switch {
	case err == nil && answer.Error != nil:
		err = answer.Error
	case err == nil && answer.Data == nil:
		err = errors.New("the answer is empty")
	}
	if err != nil {
		return nil, fmt.Errorf("ask for the permissions on the bus: %w", err)
	}
	p := answer.Data.Permissions
	if p == nil || p.Publish == nil {
		return func(string) bool { return true }, nil
	}
	allow, deny := subjectsOf(p.Publish.Allow), subjectsOf(p.Publish.Deny)
	return func(subject string) bool {
		return (len(p.Publish.Allow) == 0 || allow.cover(subject)) && !deny.cover(subject)
	}, nil
}

// DeniedPublish returns the subject that the user may not publish to, if that is what
// err reports.
func DeniedPublish(err error) (subject string, denied bool) {
	var d *jsapi.DeniedError
	if !errors.As(err, &d) || !d.Publish {
		return "", false
	}
	return d.Subject, true
}

// subjectSet is a set of subjects, some of them with wildcards.
type subjectSet struct {
	exact map[string]struct{}
	wide  [][]string // tokens
}

func subjectsOf(all []string) subjectSet {
	s := subjectSet{exact: map[string]struct{}{}}
	for _, subject := range all {
		tokens := strings.Split(subject, ".")
		if tokens[len(tokens)-1] == ">" || strings.Contains(subject, anyToken) {
			s.wide = append(s.wide, tokens)
		}
		s.exact[subject] = struct{}{}
	}
	return s
}

// cover reports whether a subject without wildcards is in the set.
func (s subjectSet) cover(subject string) bool {
	if _, ok := s.exact[subject]; ok {
		return true
	}
	tokens := strings.Split(subject, ".")
	for _, wide := range s.wide {
		if matches(wide, tokens) {
			return true
		}
	}
	return false
}

func matches(wide, tokens []string) bool {
	for i, w := range wide {
		switch {
		case i == len(tokens):
			return false
		case w == ">":
			return true
		case w != anyToken && w != tokens[i]:
			return false
		}
	}
	return len(wide) == len(tokens)
}
