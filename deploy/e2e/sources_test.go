package e2e

import (
	"context"
	"os"
	"path/filepath"
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
	f.source("that the file does not list", func(s sourceView) bool { return s.Source == "file" && s.State == "not configured" })
	f.share(shop.V2, 100)
	f.nothingRejected()
}

// TestMeshConfig runs a mesh whose directory the configSources of a MeshConfig name: the
// directory is served, another field of the file has its effect and follows the file, and an
// error in the file changes nothing (MC-18).
func TestMeshConfig(t *testing.T) {
	var file, sources string
	f := start(t, func(ctx context.Context, dir, config string) (*rig.Mesh, error) {
		file, sources = filepath.Join(dir, "mesh.yaml"), "configSources: [{address: 'fs://"+config+"'}]\n"
		if err := os.WriteFile(file, []byte(sources+"connectTimeout: 3s\n"), 0o600); err != nil {
			return nil, err
		}
		return rig.UpWith(ctx, dir, nil, "--mesh-config", file)
	})
	f.share(shop.V2, 10)
	f.source("of the MeshConfig", func(s sourceView) bool {
		return s.Source == "file" && s.Instance == "mesh-config" && s.State == "following"
	})
	save := func(text string) { f.must(os.WriteFile(file, []byte(text), 0o600)) }

	save(sources + "connectTimeout: 4s\n")
	f.acked(rig.Cluster)

	save("configSources: [{address: 'zk://elsewhere'}]")
	f.shift(0, 100)
	f.share(shop.V2, 100)
	f.nothingRejected()
}
