package act

import (
	"crypto/ed25519"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"meshlog.dev/services/internal/bus"
	"meshlog.dev/services/internal/busauth"
	"meshlog.dev/services/mesh/permit"
	"meshlog.dev/services/operate/command"
)

// operatorView is an operator with a key of their own.
type operatorView struct {
	Name string `json:"name"`
	Key  string `json:"key"` // the public one
	File string `json:"file"`
}

// operators makes the keys of operators that have none, each in a file that its owner
// alone can read.
func (v *busAuthView) operators(dir string, names []string) error {
	for _, name := range names {
		if name == "" || strings.ContainsAny(name, `/\`) || name != strings.TrimSpace(name) {
			return command.Usage("--operator %q: want a name without slashes", name)
		}
		path := filepath.Join(dir, "operator-"+name+".pem")
		key, err := command.ReadOperatorKey(path)
		state := busauth.StateKept
		if errors.Is(err, fs.ErrNotExist) {
			key, err = newOperatorKey(path)
			state = "new"
		}
		if err != nil {
			return fmt.Errorf("--operator %s: %w", name, err)
		}
		v.Files = append(v.Files, busauth.File{Path: path, State: state})
		v.Operators = append(v.Operators, operatorView{name, permit.KeyText(permit.Key(key.Public().(ed25519.PublicKey))), path})
	}
	return nil
}

func newOperatorKey(path string) (ed25519.PrivateKey, error) {
	_, key, err := ed25519.GenerateKey(nil)
	if err != nil {
		return nil, err
	}
	der, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		return nil, err
	}
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		return nil, err
	}
	return key, bus.ReplaceFile(path, pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: der}), 0o600)
}

func showOperators(v *busAuthView, out *command.Output) {
	if len(v.Operators) == 0 {
		return
	}
	out.Line("\nPut the operators into the MeshPolicy; from then on what others append in their place is void:\n")
	out.Line("  operators:")
	for _, o := range v.Operators {
		out.Line("  - name: %s", o.Name)
		out.Line("    keys: [%q]", o.Key)
	}
}
