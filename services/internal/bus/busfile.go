package bus

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"go.yaml.in/yaml/v3"
)

// FileName is the name of the bus file within a data directory.
const FileName = "bus"

// File is the content of a bus file.
type File struct {
	URL string `yaml:"url"`
	// PID of the process that runs the server.
	PID int `yaml:"pid"`
}

// authDir is the directory beside a bus file with a key for each role.
const authDir = "auth"

// keyOf returns the path of the key of a role, for clients that are given the path
// of a bus file. A client without a role is the administrator. The watchers of all
// instances of a source may share a key.
func keyOf(busFile string, r Role) (string, error) {
	dir := filepath.Join(filepath.Dir(busFile), authDir)
	if r == (Role{}) {
		r = Admin()
	}
	own := filepath.Join(dir, r.KeyName())
	paths := []string{own}
	if s, ok := r.Shard(); ok {
		paths = append(paths, filepath.Join(dir, Watchers(s.Source).KeyName()))
	}
	for _, path := range paths {
		if _, err := os.Stat(path); err == nil {
			return path, nil
		}
	}
	if s, ok := r.Shard(); ok {
		return "", fmt.Errorf("bus file %s: there is no key %s: start `meshlog up` with --bus-watcher %s/%s", busFile, own, s.Source, s.Instance)
	}
	return "", fmt.Errorf("bus file %s: there is no key %s; was the file moved away from its data directory?", busFile, own)
}

// ErrNoBusFile reports that no server runs on a data directory, or that it is
// still starting.
var ErrNoBusFile = errors.New("nothing runs on this data directory")

// ReadBusFile reads the bus file at path; ErrNoBusFile if there is none.
func ReadBusFile(path string) (File, error) {
	b, err := os.ReadFile(path)
	if errors.Is(err, fs.ErrNotExist) {
		return File{}, fmt.Errorf("bus file %s: %w", path, ErrNoBusFile)
	}
	if err != nil {
		return File{}, fmt.Errorf("bus file: %w", err)
	}
	var f File
	d := yaml.NewDecoder(bytes.NewReader(b))
	d.KnownFields(true)
	if err := d.Decode(&f); err != nil {
		return File{}, fmt.Errorf("bus file %s: %w", path, err)
	}
	if f.URL == "" {
		return File{}, fmt.Errorf("bus file %s: url: is missing; is this the file that `meshlog up` writes?", path)
	}
	return f, nil
}

// write replaces the file at path.
func (f File) write(path string) error {
	b, err := yaml.Marshal(f)
	if err == nil {
		b = append([]byte("# Address of the bus. The keys of its users are in the directory "+authDir+".\n"), b...)
		err = ReplaceFile(path, b, 0o600)
	}
	if err != nil {
		return fmt.Errorf("bus file: %w", err)
	}
	return nil
}

// ReplaceFile writes a file at path as a whole: another process sees the old
// file or the new one.
func ReplaceFile(path string, content []byte, mode fs.FileMode) error {
	tmp, err := os.CreateTemp(filepath.Dir(path), filepath.Base(path)+".*")
	if err != nil {
		return err
	}
	_, err = tmp.Write(content)
	if err = errors.Join(err, tmp.Chmod(mode), tmp.Close()); err == nil {
		err = os.Rename(tmp.Name(), path)
	}
	if err != nil {
		return errors.Join(err, os.Remove(tmp.Name()))
	}
	return nil
}
