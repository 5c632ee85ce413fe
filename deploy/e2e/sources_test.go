package e2e

import (
	"context"
	"os"
	"testing"

	"meshlog.dev/deploy/e2e/rig"
	"meshlog.dev/deploy/e2e/shop"
)

// TestSources runs a mesh whose directory is named by a file of sources: the directory is
// served, an error in the file changes nothing, and a source that is taken off the file
// freezes: Envoy serves on (AGG-6, AGG-7).
func TestSources(t *testing.T) {
	var file string
	f := start(t, func(ctx context.Context, dir, config string) (*rig.Mesh, error) {
		var err error
		if file, err = rig.SourcesFile(dir, "{type: file, config: "+config+", instance: shop}"); err != nil {
			return nil, err
		}
		return rig.UpWith(ctx, dir, nil, "--sources", file)
	})
	f.share(shop.V2, 10)
	save := func(text string) { f.must(os.WriteFile(file, []byte(text), 0o600)) }

	save("sources: [{type: zookeeper}]")
	f.shift(0, 100)
	f.share(shop.V2, 100)

	save("sources: []")
	f.source("without a watcher", func(s sourceView) bool { return s.Source == "file" && s.State == "silent" })
	f.share(shop.V2, 100)
	f.nothingRejected()
}
