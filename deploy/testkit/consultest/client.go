package consultest

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
)

// Client calls Consul's HTTP API.
type Client struct {
	// URL is the address of an agent, with its scheme.
	URL string
	// Token is sent with each request if it is not empty.
	Token string
	// HTTP sends the requests.
	HTTP *http.Client
}

// As returns a client with another token.
func (c Client) As(token string) Client {
	c.Token = token
	return c
}

// Request makes a request for a path, such as "/v1/status/leader", with body as JSON
// unless it is nil, or as it is if it is a []byte.
func (c Client) Request(ctx context.Context, method, path string, body any) (*http.Request, error) {
	var content io.Reader
	switch body := body.(type) {
	case nil:
	case []byte:
		content = bytes.NewReader(body)
	default:
		b, err := json.Marshal(body)
		if err != nil {
			return nil, err
		}
		content = bytes.NewReader(b)
	}
	req, err := http.NewRequestWithContext(ctx, method, c.URL+path, content)
	if err != nil {
		return nil, err
	}
	if c.Token != "" {
		req.Header.Set("X-Consul-Token", c.Token)
	}
	return req, nil
}

// Get reads a path into a value, unless it is nil, and returns the headers of the
// response.
func (c Client) Get(ctx context.Context, path string, into any) (http.Header, error) {
	return c.do(ctx, http.MethodGet, path, nil, into)
}

// Put writes body to a path and reads the response into a value, unless it is nil.
func (c Client) Put(ctx context.Context, path string, body, into any) error {
	_, err := c.do(ctx, http.MethodPut, path, body, into)
	return err
}

// Delete deletes a path.
func (c Client) Delete(ctx context.Context, path string) error {
	_, err := c.do(ctx, http.MethodDelete, path, nil, nil)
	return err
}

// do sends a request and returns an error unless the answer is 200. If into is a *[]byte,
// it gets the body as it is.
func (c Client) do(ctx context.Context, method, path string, body, into any) (http.Header, error) {
	req, err := c.Request(ctx, method, path, body)
	if err != nil {
		return nil, err
	}
	resp, err := c.HTTP.Do(req)
	if err != nil {
		return nil, err
	}
	defer resp.Body.Close()
	b, err := io.ReadAll(resp.Body)
	if err != nil {
		return nil, err
	}
	if resp.StatusCode != http.StatusOK {
		return nil, fmt.Errorf("%s %s: %s: %s", method, path, resp.Status, bytes.TrimSpace(b))
	}
	switch into := into.(type) {
	case nil:
		return resp.Header, nil
	case *[]byte:
		*into = b
		return resp.Header, nil
	default:
		return resp.Header, json.Unmarshal(b, into)
	}
}

// Token is an ACL token with a policy of its own.
type Token struct {
	// Secret is the text that a client sends as its token.
	Secret string

	accessor, policy, name string
}

// NewToken creates a policy with rules, in HCL, and a token that has only this policy.
func (c Client) NewToken(ctx context.Context, name, rules string) (*Token, error) {
	var policy struct{ ID string }
	if err := c.Put(ctx, "/v1/acl/policy", map[string]string{"Name": name, "Rules": rules}, &policy); err != nil {
		return nil, err
	}
	var token struct{ AccessorID, SecretID string }
	err := c.Put(ctx, "/v1/acl/token", map[string]any{"Policies": []any{map[string]string{"ID": policy.ID}}}, &token)
	return &Token{Secret: token.SecretID, accessor: token.AccessorID, policy: policy.ID, name: name}, err
}

// SetRules replaces the rules of a token's policy.
func (c Client) SetRules(ctx context.Context, t *Token, rules string) error {
	return c.Put(ctx, "/v1/acl/policy/"+t.policy, map[string]string{"ID": t.policy, "Name": t.name, "Rules": rules}, nil)
}

// DeleteToken deletes a token.
func (c Client) DeleteToken(ctx context.Context, t *Token) error {
	return c.Delete(ctx, "/v1/acl/token/"+t.accessor)
}
