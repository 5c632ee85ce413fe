package process

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"io"
	"os"
	"runtime/debug"
)

// Version of meshlog.
const Version = "0.1.0-dev"

// Build names the code of the running binary: two builds of different code
// have different names, so that what one made is never taken for the other's.
// It is the version with the revision from which the binary was built; where
// that is not recorded, or files were changed after it, or build tags chose
// other ones, with the hash of the binary itself.
func Build() (string, error) {
	if info, ok := debug.ReadBuildInfo(); ok {
		if r := revision(info.Settings); r != "" {
			return Version + "+" + r, nil
		}
	}
	path, err := os.Executable()
	if err != nil {
		return "", fmt.Errorf("build: %w", err)
	}
	f, err := os.Open(path)
	if err != nil {
		return "", fmt.Errorf("build: %w", err)
	}
	defer f.Close()
	h := sha256.New()
	if _, err := io.Copy(h, f); err != nil {
		return "", fmt.Errorf("build: read %s: %w", path, err)
	}
	return Version + "+bin." + hex.EncodeToString(h.Sum(nil)[:6]), nil
}

// revision is the short name of the revision that info records; empty if it
// does not tell the whole truth.
func revision(info []debug.BuildSetting) string {
	r := ""
	for _, s := range info {
		switch {
		case s.Key == "vcs.modified" && s.Value != "false", s.Key == "-tags":
			return ""
		case s.Key == "vcs.revision" && len(s.Value) >= 12:
			r = s.Value[:12]
		}
	}
	return r
}
