package apply

import (
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"meshlog.dev/services/operate/draft"
)

// maxFile is the largest file that is read.
const maxFile = 64 << 20

// readFiles reads into d files, directories, and "-" for stdin.
func readFiles(d *draft.Documents, paths []string, stdin io.Reader) error {
	for _, path := range paths {
		if path == "-" {
			text, err := limited(stdin)
			if err != nil {
				return fmt.Errorf("standard input: %w", err)
			}
			d.Parse("stdin", text)
			continue
		}
		files, err := filesOf(path)
		if err != nil {
			return err
		}
		for _, file := range files {
			text, err := readFile(file)
			if err != nil {
				return err
			}
			d.Parse(filepath.ToSlash(file), text)
		}
	}
	if len(d.Items)+len(d.Problems) == 0 {
		return fmt.Errorf("%s: no object is in it", strings.Join(paths, ", "))
	}
	return nil
}

// filesOf returns the files of a path: itself or, of a directory, those that the file
// watcher reads.
func filesOf(path string) (files []string, err error) {
	info, err := os.Stat(path)
	if err != nil || !info.IsDir() {
		return []string{path}, err
	}
	err = filepath.WalkDir(path, func(name string, e fs.DirEntry, err error) error {
		switch {
		case err != nil:
			return err
		case strings.HasPrefix(e.Name(), ".") && name != path:
			if e.IsDir() {
				return fs.SkipDir
			}
		case !e.IsDir() && slices.Contains([]string{".yaml", ".yml", ".json"}, filepath.Ext(name)):
			files = append(files, name)
		}
		return nil
	})
	if err == nil && len(files) == 0 {
		err = fmt.Errorf("%s: holds no file that ends in .yaml, .yml or .json", path)
	}
	return files, err
}

func readFile(name string) ([]byte, error) {
	f, err := os.Open(name)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	text, err := limited(f)
	if err != nil {
		err = fmt.Errorf("%s: %w", name, err)
	}
	return text, err
}

func limited(r io.Reader) ([]byte, error) {
	text, err := io.ReadAll(io.LimitReader(r, maxFile+1))
	if err == nil && len(text) > maxFile {
		err = fmt.Errorf("it has more than %d bytes", maxFile)
	}
	return text, err
}
