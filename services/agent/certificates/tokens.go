package certificates

import (
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
	"sync/atomic"
)

// maxToken is the size of the largest token that a CA takes.
const maxToken = 16 << 10

// TokenFile is a file with a token that its owner replaces, as Kubernetes does: it is read
// for each request.
type TokenFile string

// Token implements Tokens.
func (f TokenFile) Token(bool) (string, error) { return readToken(string(f)) }

// Used implements Tokens.
func (TokenFile) Used() {}

// JoinFile is a file with a join token, which is good for one certificate. From then on
// the certificate proves the identity, and the token is used again only if that has
// ended: a new one may be in the file then.
type JoinFile struct {
	Path  string
	spent atomic.Pointer[string]
	last  atomic.Pointer[string]
}

// Token implements Tokens.
func (f *JoinFile) Token(has bool) (string, error) {
	if has {
		return "", nil
	}
	token, err := readToken(f.Path)
	if err != nil {
		return "", err
	}
	if spent := f.spent.Load(); spent != nil && *spent == token {
		return "", fmt.Errorf("the join token in %s is spent, and the certificate has ended: make another one with `meshlog ca token` and write it into that file", f.Path)
	}
	f.last.Store(&token)
	return token, nil
}

// Used implements Tokens.
func (f *JoinFile) Used() { f.spent.Store(f.last.Load()) }

func readToken(path string) (string, error) {
	file, err := os.Open(path)
	if err != nil {
		return "", fmt.Errorf("the token for the CA: %w", err)
	}
	defer file.Close()
	b, err := io.ReadAll(io.LimitReader(file, maxToken+1))
	token := strings.TrimSpace(string(b))
	switch {
	case err != nil:
		return "", fmt.Errorf("the token for the CA: %w", err)
	case token == "":
		return "", fmt.Errorf("the token for the CA: %s is empty", path)
	case len(b) > maxToken:
		return "", fmt.Errorf("the token for the CA: %s has more than %d bytes", path, maxToken)
	case strings.ContainsAny(token, "\r\n"):
		return "", errors.New("the token for the CA has several lines: " + path)
	}
	return token, nil
}
