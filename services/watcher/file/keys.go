package file

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"

	"k8s.io/apimachinery/pkg/util/validation"

	"meshlog.dev/services/mesh/credential"
	"meshlog.dev/services/watcher/keeper"
)

// Credential implements keeper.Source: it reads a credential of the directory now.
func (w *Watcher) Credential(_ context.Context, namespace, name string) (credential.Source, error) {
	for _, l := range w.dirs {
		if l, ok := l.(credentials); ok {
			return l.now(namespace, name)
		}
	}
	return credential.Source{}, keeper.ErrGone
}

func (l credentials) now(namespace, name string) (credential.Source, error) {
	if !isPlace(namespace, name) { // it could be a path to elsewhere
		return credential.Source{}, keeper.ErrGone
	}
	root, err := filepath.EvalSymlinks(l.dir)
	if err != nil {
		return credential.Source{}, fmt.Errorf("directory %s: %w", l.dir, unwrap(err))
	}
	unit := filepath.Join(namespace, name)
	t := &tree{dir: l.dir, root: root}
	s := credential.Source{Data: map[string][]byte{}}
	var failed error
	for part, found := range l.parts(t, unit) {
		s.Data[part] = found.content
		if found.err != nil && failed == nil {
			failed = errors.New(l.unread(unit, part, found.err).Reason)
			if _, open := errors.AsType[openError](found.err); open {
				failed = fmt.Errorf("%w: %w", keeper.ErrRefused, failed)
			}
		}
	}
	if len(s.Data) == 0 {
		return s, keeper.ErrGone
	}
	return s, failed
}

// isPlace reports whether NAMESPACE/NAME is a place for a credential.
func isPlace(namespace, name string) bool {
	return len(validation.IsDNS1123Label(namespace)) == 0 && len(validation.IsDNS1123Subdomain(name)) == 0
}
