package services_test

import (
	"os/exec"
	"strings"
	"testing"
)

const module = "meshlog.dev/services/"

// law is one rule of who may import whom.
type law struct {
	who    []string // packages, with "/..." for a whole tree
	except []string // packages within who that may
	never  []string // what they must not import
	but    []string // packages within never that they may
	direct bool     // only their own imports count, not those of what they import
	reason string
}

var laws = []law{
	{
		who:    []string{module + "internal/model", module + "internal/fold", module + "internal/xds/...", module + "internal/kind", module + "internal/kubeconv", module + "internal/document", module + "internal/manifest", module + "internal/published"},
		except: []string{module + "internal/xds/envoytest"},
		never:  []string{"context", "os", "io/fs", "net", "log/...", "os/...", "math/rand/...", "crypto/rand", "syscall"},
		direct: true,
		reason: "pure packages do no IO, keep no clock or log, and throw no dice: same log, same bytes",
	},
	{
		who: []string{module + "internal/model", module + "internal/fold", module + "internal/xds/...", module + "internal/kind"},
		// A real Envoy in tests.
		except: []string{module + "internal/xds/envoytest"},
		never:  []string{"net/http", "google.golang.org/grpc/...", "github.com/nats-io/...", "go.etcd.io/...", "github.com/envoyproxy/go-control-plane/envoy/service/..."},
		reason: "pure packages are linked into everything, and pull no server or client with them",
	},
	{
		who:    []string{module + "internal/model", module + "internal/fold", module + "internal/xds/...", module + "internal/kind", module + "internal/published"},
		except: []string{module + "internal/xds/envoytest"},
		never:  []string{"go.opentelemetry.io/otel/..."}, direct: true,
		reason: "spans are made where time passes, of what pure packages have done",
	},
	{
		who:    []string{module + "..."},
		except: []string{module + "internal/process"},
		never:  []string{"go.opentelemetry.io/otel", "go.opentelemetry.io/otel/sdk/...", "go.opentelemetry.io/otel/exporters/..."}, direct: true,
		reason: "where traces go is the process's business; all others know the API at most",
	},
	{
		who:    []string{module + "internal/model"},
		never:  []string{"meshlog.dev/events/...", "meshlog.dev/store/..."},
		reason: "the world knows nothing of how it came about or where it is kept",
	},
	{
		who: []string{module + "frontend/..."},
		never: []string{
			module + "watcher/...", module + "builder/...", module + "internal/fold", module + "internal/bus", module + "internal/up/...",
			"meshlog.dev/events/...", "github.com/nats-io/...", "go.etcd.io/...",
		},
		reason: "the snapshot is the only way out: a frontend serves what was published, whoever made it",
	},
	{
		who: []string{module + "watcher/..."},
		never: []string{
			module + "frontend/...", module + "builder/...", module + "internal/fold", module + "internal/xds/...", module + "internal/up/...",
			"meshlog.dev/store/...", "github.com/nats-io/...", "google.golang.org/grpc/...",
		},
		reason: "the log is the only way in: a watcher says what it sees and knows nothing of what becomes of it",
	},
	{
		who: []string{module + "builder/..."},
		never: []string{
			module + "frontend/...", module + "watcher/...", module + "internal/bus", module + "internal/up/...",
			"github.com/nats-io/...", "go.etcd.io/...", "google.golang.org/grpc/...",
		},
		reason: "log, store and feed come in as interfaces, so that a simulation can take their place",
	},
	{
		who: []string{module + "..."}, except: []string{module + "internal/bus", module + "internal/busauth"},
		never: []string{"github.com/nats-io/..."}, direct: true,
		reason: "the bus is spoken by internal/bus and by the drivers of events and store",
	},
	{
		who:    []string{module + "..."},
		never:  []string{"go.etcd.io/..."},
		direct: true,
		reason: "files are the business of store/bolt",
	},
	{
		who:    []string{module + "..."},
		except: []string{module + "cmd/...", module + "internal/cli", module + "internal/up/...", module + "internal/faultsim", module + "internal/busauth"},
		never: []string{
			"meshlog.dev/events/natslog", "meshlog.dev/events/memlog",
			"meshlog.dev/store/bolt", "meshlog.dev/store/memstore", "meshlog.dev/store/natsfeed",
		},
		direct: true,
		reason: "drivers are chosen where processes are put together, nowhere else",
	},
	{
		who: []string{module + "frontend/...", module + "builder/...", module + "internal/model", module + "internal/fold",
			module + "internal/xds/...", module + "internal/kind", module + "internal/manifest", module + "cmd/frontend", module + "cmd/builder"},
		except: []string{module + "frontend/frontendtest"},
		never:  []string{"k8s.io/...", "sigs.k8s.io/json/...", module + "internal/kubeconv", module + "internal/document"},
		reason: "the log carries converted objects: only who reads Kubernetes objects pays for their types",
	},
	{
		who:    []string{module + "watcher/kube/kubetest"},
		never:  []string{module + "...", "meshlog.dev/events/...", "meshlog.dev/store/...", "meshlog.dev/proto/..."},
		but:    []string{"meshlog.dev/events/freeport"},
		reason: "deploy/e2e uses it too, whose tests share no code with what they test",
	},
	{
		who:    []string{module + "..."},
		except: []string{module + "watcher/kube/...", module + "internal/up", module + "internal/up/kubeup", module + "internal/cli", module + "cmd/watcher-kube", module + "cmd/meshlog"},
		never:  []string{"k8s.io/client-go/..."},
		reason: "client-go belongs to the Kubernetes watcher and to the CLI",
	},
}

func TestImportLaw(t *testing.T) {
	imports, deps := list(t, "Imports"), list(t, "Deps")
	for _, l := range laws {
		uses := deps
		if l.direct {
			uses = imports
		}
		for pkg, of := range uses {
			if !matches(pkg, l.who) || matches(pkg, l.except) {
				continue
			}
			for _, p := range of {
				if matches(p, l.never) && !matches(p, l.but) {
					t.Errorf("%s uses %s: %s", pkg, p, l.reason)
				}
			}
		}
	}
	for _, l := range laws { // a rule about nobody holds nothing
		found := false
		for pkg := range deps {
			found = found || matches(pkg, l.who)
		}
		if !found {
			t.Errorf("no package matches %v", l.who)
		}
	}
}

// list returns a field of `go list` for each package of this module.
func list(t *testing.T, field string) map[string][]string {
	t.Helper()
	out, err := exec.Command("go", "list", "-f", `{{.ImportPath}} {{join .`+field+` " "}}`, "./...").Output()
	if err != nil {
		t.Fatalf("go list: %v (is go in PATH?)", err)
	}
	found := map[string][]string{}
	for line := range strings.Lines(string(out)) {
		f := strings.Fields(line)
		found[f[0]] = f[1:]
	}
	return found
}

// matches says whether pkg is one of the patterns, or below one that ends in
// "/...".
func matches(pkg string, patterns []string) bool {
	for _, p := range patterns {
		tree, isTree := strings.CutSuffix(p, "/...")
		if pkg == p || isTree && (pkg == tree || strings.HasPrefix(pkg, tree+"/")) {
			return true
		}
	}
	return false
}
