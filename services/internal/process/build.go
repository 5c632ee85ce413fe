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

// Build names the code of the running binary. Builds of different code have
// different names, so that one never takes the other's results for its own. The
// name is the version with the revision that the binary was built from. If no
// revision is recorded, the working tree was modified or build tags were set, the
// name has a hash of the binary instead.
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

// revision returns the short revision in info, or "" if the revision does not
// identify the code.
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
