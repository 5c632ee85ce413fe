package e2e

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"testing"

	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"
	networking "istio.io/api/networking/v1alpha3"
	"sigs.k8s.io/yaml"

	"meshlog.dev/deploy/e2e/rig"
	"meshlog.dev/deploy/e2e/shop"
	"meshlog.dev/deploy/testkit/mcptest"
	"meshlog.dev/deploy/testkit/program"
)

// mcpSource is a source of MCP-over-xDS that has the objects of a shop.
type mcpSource struct {
	*mcptest.Source
	sets map[string]proto.Message // by kind; the shop has one of each
}

// publish sends what the shop's files have.
func (s *mcpSource) publish(t *testing.T, files *rig.ConfigDir) {
	t.Helper()
	for _, name := range shop.Files {
		text, err := files.Read(name)
		if err != nil {
			t.Fatal(err)
		}
		for document := range bytes.SplitSeq([]byte(text), []byte("\n---\n")) {
			var o struct {
				Kind     string
				Metadata struct{ Name, Namespace string }
				Spec     json.RawMessage
			}
			if err := yaml.Unmarshal(document, &o); err != nil {
				t.Fatal(err)
			}
			m := map[string]proto.Message{
				"Gateway": &networking.Gateway{}, "VirtualService": &networking.VirtualService{},
				"ServiceEntry": &networking.ServiceEntry{}, "DestinationRule": &networking.DestinationRule{},
			}[o.Kind]
			if err := protojson.Unmarshal(o.Spec, m); err != nil {
				t.Fatal(err)
			}
			if was := s.sets[o.Kind]; was == nil || !proto.Equal(was, m) {
				s.sets[o.Kind] = m
				s.Set("networking.istio.io/v1/"+o.Kind, mcptest.Resource(o.Metadata.Namespace+"/"+o.Metadata.Name, m))
			}
		}
	}
}

// sourceView is a source as `meshlog sources` shows it.
type sourceView struct {
	Source, Instance, State string
	Frozen                  bool
	Registry                struct{ Services, Instances int }
}

// source waits until `meshlog sources` shows a source that fits.
func (f *fixture) source(what string, fits func(sourceView) bool) {
	f.Helper()
	f.must(program.Until(f.ctx, "the source to be "+what, func(ctx context.Context) error {
		var all []sourceView
		if err := f.mesh.CLI(ctx, &all, "sources"); err != nil {
			return err
		}
		if !slices.ContainsFunc(all, fits) {
			return fmt.Errorf("the sources are %+v", all)
		}
		return nil
	}))
}

// TestMCP runs a mesh whose only source speaks MCP-over-xDS: what it pushes configures a
// real Envoy, and while it is away Envoy serves on (MCP-2, MCP-5).
func TestMCP(t *testing.T) {
	for name, run := range map[string]func(ctx context.Context, dir, source string) (*rig.Mesh, error){
		"up": func(ctx context.Context, dir, source string) (*rig.Mesh, error) {
			file, err := rig.SourcesFile(dir, "{type: xds, mcp-source: "+source+", instance: shop}")
			if err != nil {
				return nil, err
			}
			return rig.UpWith(ctx, dir, nil, "--sources", file)
		},
		"apart": func(ctx context.Context, dir, source string) (*rig.Mesh, error) {
			nats, err := rig.StartNATSFor(ctx, dir, "mcpxds/shop")
			if err != nil {
				return nil, err
			}
			return rig.Assemble(ctx, dir, "", rig.Parts{NATS: nats, Builders: 1, Frontends: 1, MCP: source})
		},
	} {
		t.Run(name, func(t *testing.T) {
			source := &mcpSource{Source: mcptest.Start(t, mcptest.Options{}), sets: map[string]proto.Message{}}
			f := start(t, func(ctx context.Context, dir, config string) (*rig.Mesh, error) {
				source.publish(t, &rig.ConfigDir{Path: config})
				return run(ctx, dir, "xds://"+source.Address())
			})
			f.share(shop.V2, 10)
			f.source("read", func(s sourceView) bool {
				return s.Source == "mcpxds" && s.Registry.Services == 1 && s.Registry.Instances == 2
			})
			move := func(v1, v2 int) {
				f.weigh(v1, v2)
				source.publish(t, f.shop.ConfigDir)
			}
			f.during("the source pushes new weights", func() {
				move(0, 100)
				f.acked(rig.RouteConfiguration)
				f.share(shop.V2, 100)
			})
			f.during("the source is away", func() {
				source.Down()
				f.source("down", func(s sourceView) bool { return s.State == "down" && s.Frozen })
				f.share(shop.V2, 100)
				move(100, 0)
				f.must(source.Up())
				f.acked(rig.RouteConfiguration)
				f.share(shop.V2, 0)
			})
			f.nothingRejected()
		})
	}
}
