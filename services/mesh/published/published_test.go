package published_test

import (
	"bytes"
	"log/slog"
	"testing"

	"github.com/google/go-cmp/cmp"

	"meshlog.dev/proto/ident"
	snapshotv1 "meshlog.dev/proto/meshlog/snapshot/v1"
	"meshlog.dev/services/mesh/published"
	"meshlog.dev/store"
)

func TestAttrs(t *testing.T) {
	route := ident.Key{Source: "file", Instance: "default", Kind: "VirtualService", Namespace: "demo", Name: "shop"}.Row()
	at := func(epoch, seq uint64) *snapshotv1.Version {
		return store.VersionProto(ident.Position{Epoch: epoch, Seq: seq})
	}
	for _, c := range []struct {
		name     string
		manifest *store.Manifest
		want     string
	}{
		{"one key", &store.Manifest{Version: at(7, 12), Previous: at(7, 10), ChangeCount: 1, Changes: []*snapshotv1.KeyChange{{Key: route, Seq: 12}}},
			`version=7.12 positions=2 keys=1 cause="VirtualService demo/shop (file/default), #12"`},
		{"many, the first removed", &store.Manifest{Version: at(7, 12), Previous: at(7, 10), ChangeCount: 3, Changes: []*snapshotv1.KeyChange{{Key: route, Removed: true}}},
			`version=7.12 positions=2 keys=3 cause="VirtualService demo/shop (file/default) removed, and 2 more"`},
		{"an overlay", &store.Manifest{Version: at(7, 12), Previous: at(7, 11), ChangeCount: 1, Changes: []*snapshotv1.KeyChange{{Key: ident.OverlayRow("pin-1"), Seq: 12}}},
			`version=7.12 positions=1 keys=1 cause="overlay pin-1, #12"`},
		{"the previous version has another epoch", &store.Manifest{Version: at(8, 3), Previous: at(7, 10)},
			`version=8.3 positions=3 keys=0 cause=""`},
	} {
		t.Run(c.name, func(t *testing.T) {
			var line bytes.Buffer
			log := slog.New(slog.NewTextHandler(&line, &slog.HandlerOptions{ReplaceAttr: func(_ []string, a slog.Attr) slog.Attr {
				if a.Key == slog.TimeKey || a.Key == slog.LevelKey || a.Key == slog.MessageKey {
					return slog.Attr{}
				}
				return a
			}}))
			log.Info("published", published.Attrs(c.manifest)...)
			if diff := cmp.Diff(c.want+"\n", line.String()); diff != "" {
				t.Errorf("line (-want +got):\n%s", diff)
			}
		})
	}
}
