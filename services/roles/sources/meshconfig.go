package sources

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	meshconfig "istio.io/api/mesh/v1alpha1"

	"meshlog.dev/proto/ident"
	"meshlog.dev/services/mesh/kind"
	"meshlog.dev/services/mesh/kubeconv"
	"meshlog.dev/services/mesh/manifest"
	"meshlog.dev/services/mesh/problem"
	"meshlog.dev/services/roles/watcher"
	watchers "meshlog.dev/services/watcher"
	"meshlog.dev/services/watcher/mcpxds"
)

// meshConfigShard publishes the MeshConfig of the file. Its name is no directory's:
// fs:///mesh-config is fs-mesh-config.
var meshConfigShard = ident.Shard{Source: "file", Instance: "mesh-config"}

// meshConfig is the file with the MeshConfig.
func (s *Settings) meshConfig() listFile { return listFile{s.MeshConfig, s.parseMeshConfig} }

// keepNaming returns f, which has an error if it names sources unlike before: the process
// has decided at its start whether those of its other settings are watched.
func (f listFile) keepNaming(sources bool) listFile {
	parse := f.parse
	f.parse = func(path string, data []byte) (list, error) {
		l, err := parse(path, data)
		switch names := err == nil && len(l.entries) > 1; {
		case err != nil || names == sources:
			return l, err
		case names:
			return list{}, fmt.Errorf("%s: configSources name sources now, and named none when the process started: restart it", path)
		}
		return list{}, fmt.Errorf("%s: configSources name no sources any more: restart the process", path)
	}
	return f
}

// parseMeshConfig reads a MeshConfig: the entry of the MeshConfig itself, and one for each
// of its configSources (MC-18). An error has all errors of the configSources.
func (s *Settings) parseMeshConfig(path string, data []byte) (list, error) {
	k, _ := kind.ByName("MeshConfig")
	d := manifest.Spec(data)
	decoded, bad := kubeconv.DecodeSpec(k, &d)
	if bad != nil {
		return list{}, located(path, bad)
	}
	m := decoded.(*meshconfig.MeshConfig)
	named := m.ConfigSources
	m.ConfigSources = nil // the watchers are their effect
	value, err := kubeconv.Encode(k, m)
	if err != nil {
		return list{}, fmt.Errorf("%s: %w", path, err)
	}
	line := 1
	if found := k.Validate("", m); len(found) > 0 && found[0].Severity == problem.Error {
		line = d.FieldLine(found[0].Field)
	}
	own := &meshConfigSource{publish{watchers.Object{Kind: k.Name, Name: k.Only, Value: value, Origin: fmt.Sprintf("%s:%d", path, line)}}}
	l := list{entries: []entry{{runnable: own, line: line, text: string(value.Bytes)}}}
	var errs []error
	for i, c := range named {
		field := fmt.Sprintf("configSources[%d]", i)
		e := entry{line: d.FieldLine("spec." + field + ".address"), text: c.String()}
		if e.runnable, err = s.configSource(c); err != nil {
			errs = append(errs, fmt.Errorf("%s:%d: %s.%w", path, e.line, field, err))
			continue
		}
		l.add(path, e, "name it once")
	}
	return l, errors.Join(errs...)
}

// Near returns the MeshConfig of the file, and those of its configSources that a mesh waits
// for at its start, as it does for the directory and the cluster of other settings: all but
// sources of MCP-over-xDS, which may be down (AGG-8).
func Near(named []ident.Shard) []ident.Shard {
	near := []ident.Shard{meshConfigShard}
	for _, shard := range named {
		if shard.Source != mcpxds.Source {
			near = append(near, shard)
		}
	}
	return near
}

// located returns a problem in a file as an error.
func located(path string, d *problem.Diagnostic) error {
	text := fmt.Sprintf("%s:%d: %s: %s", path, max(d.Line, 1), strings.TrimPrefix(d.Field, "spec."), d.Reason)
	if d.Advice != "" {
		text += "; " + d.Advice
	}
	return errors.New(text)
}

// meshConfigSource publishes the MeshConfig. It has no other content for as long as it runs:
// a changed file starts another one.
type meshConfigSource struct{ publish }

func (s *meshConfigSource) Verify() error { return nil }

func (s *meshConfigSource) Shard() ident.Shard { return meshConfigShard }

func (s *meshConfigSource) Run(ctx context.Context, at watcher.Place) error {
	return at.Run(ctx, meshConfigShard, "", s.publish, nil)
}

// publish is the watcher of one object.
type publish struct{ object watchers.Object }

// Run implements watchers.Watcher.
func (p publish) Run(ctx context.Context, sink watchers.Sink) error {
	object := p.object
	object.Observed = time.Now()
	if err := sink.List(ctx, watchers.Listing{Objects: []watchers.Object{object}}); err != nil {
		return err
	}
	<-ctx.Done()
	return ctx.Err()
}
