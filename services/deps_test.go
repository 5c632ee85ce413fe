package services_test

import (
	"os/exec"
	"slices"
	"strings"
	"testing"
)

const module = "meshlog.dev/services/"

// law is one rule about imports.
type law struct {
	of     []string // packages, with "/..." for a whole tree
	except []string // packages within of that the rule leaves out
	never  []string // packages that of must not import
	but    []string // packages within never that of may import
	direct bool     // only direct imports count
	reason string
}

// tests are packages that only tests link.
var tests = []string{
	module + "mesh/meshtest", module + "suite/...", module + "watcher/watchertest", module + "frontend/frontendtest", module + "internal/process/processtest",
	module + "operate/operatetest",
}

var laws = []law{
	{
		of: []string{module + "operate/..."}, except: tests,
		never:  []string{module + "roles/...", module + "cmd/..."},
		reason: "commands inspect and change a mesh over its bus and its data; cmd/meshlog adds those that run one",
	},
	{
		of:     []string{module + "operate/past"},
		never:  []string{module + "operate/command"},
		reason: "imports point downwards: cli > inspect, history, act > command > past",
	},
	{
		of:     []string{module + "operate/command"},
		never:  []string{module + "operate/inspect", module + "operate/explain", module + "operate/history", module + "operate/act", module + "operate/cli"},
		reason: "imports point downwards: cli > inspect, history, act > command > past",
	},
	{
		of:     []string{module + "operate/inspect"},
		never:  []string{module + "operate/history", module + "operate/act", module + "operate/cli"},
		reason: "inspect, history and act share only command: a command that shows a mesh cannot change it",
	},
	{
		of:     []string{module + "operate/explain"},
		never:  []string{module + "operate/inspect", module + "operate/history", module + "operate/act", module + "operate/apply", module + "operate/cli"},
		reason: "inspect, explain, history and act share only command: a command that explains a mesh cannot change it",
	},
	{
		of:     []string{module + "operate/serve", module + "operate/bisect"},
		never:  []string{module + "operate/inspect", module + "operate/explain", module + "operate/history", module + "operate/act", module + "operate/apply", module + "operate/cli"},
		reason: "serve and bisect share only command with the other commands: what shows the past cannot change the mesh",
	},
	{
		of:     []string{module + "operate/history"},
		never:  []string{module + "operate/inspect", module + "operate/act", module + "operate/cli"},
		reason: "inspect, history and act share only command",
	},
	{
		of:     []string{module + "operate/draft"},
		never:  []string{module + "operate/inspect", module + "operate/explain", module + "operate/history", module + "operate/act", module + "operate/apply", module + "operate/rollback", module + "operate/cli", module + "watcher/..."},
		reason: "a draft is judged and never written: apply writes one, and the console, which must not, only shows it",
	},
	{
		of:     []string{module + "operate/draft"},
		never:  []string{"os", "io/fs", "net", "net/http", "github.com/spf13/cobra"},
		direct: true,
		reason: "a draft is a text: whoever has it reads the file or the form",
	},
	{
		of:     []string{module + "operate/act"},
		never:  []string{module + "operate/inspect", module + "operate/history", module + "operate/apply", module + "operate/cli"},
		reason: "inspect, history, act and apply share only command",
	},
	{
		of:     []string{module + "operate/apply"},
		never:  []string{module + "operate/inspect", module + "operate/history", module + "operate/act", module + "operate/cli", module + "watcher/..."},
		reason: "inspect, history, act and apply share only command; an apply is a session of its own, and no watcher",
	},
	{
		of: []string{module + "operate/..."}, except: tests,
		never:  []string{module + "console/..."},
		reason: "the console shows what the commands print, and they know nothing of it",
	},
	{
		of:     []string{module + "console/..."},
		never:  []string{module + "operate/cli", module + "operate/act", module + "operate/apply", module + "roles/...", module + "cmd/...", module + "watcher/...", module + "ca/signer", "k8s.io/client-go/..."},
		reason: "the console changes a mesh by operate/rollback only, with an operator's key; roles put it together",
	},
	{
		of:     []string{module + "console/..."},
		never:  []string{module + "builder", module + "frontend", "net/http/pprof"},
		direct: true,
		reason: "what a page shows comes from the functions of the commands",
	},
	{
		of: []string{module + "mesh/..."}, except: append(slices.Clip(tests), module+"mesh/kind/validate/gen"),
		never:  []string{"context", "os", "io/fs", "net", "log/...", "os/...", "math/rand/...", "crypto/rand", "syscall"},
		direct: true,
		reason: "mesh is pure: no IO, clock, log or randomness, so that the same log gives the same bytes",
	},
	{
		of: []string{module + "mesh/..."}, except: append(slices.Clip(tests), module+"mesh/kubeconv", module+"mesh/document", module+"mesh/simulate"),
		never:  []string{"net/http", "google.golang.org/grpc/...", "github.com/nats-io/...", "go.etcd.io/...", "github.com/envoyproxy/go-control-plane/envoy/service/..."},
		reason: "pure packages are linked into everything, and pull no server or client with them",
	},
	{
		of:    []string{module + "mesh/..."},
		never: []string{"go.opentelemetry.io/otel/..."}, direct: true,
		reason: "spans are made where time passes, of what pure packages have done",
	},
	{
		of: []string{module + "mesh/..."},
		never: []string{
			module + "internal/...", module + "watcher/...", module + "builder/...", module + "frontend/...",
			module + "ca/...", module + "roles/...", module + "operate/...", module + "suite/...", module + "cmd/...",
		},
		reason: "imports point downwards: the meaning of a mesh knows no process, and no plumbing",
	},
	{
		of: []string{module + "mesh/..."}, except: []string{module + "mesh/fold"},
		never:  []string{"meshlog.dev/events/..."},
		reason: "only the fold knows that the world comes from a log",
	},
	{
		of: []string{module + "mesh/..."}, except: []string{module + "mesh/published"},
		never:  []string{"meshlog.dev/store/..."},
		reason: "only published knows how a world is kept",
	},
	{
		of: []string{module + "mesh/..."}, except: append(slices.Clip(tests), module+"mesh/kubeconv", module+"mesh/document"),
		never:  []string{"k8s.io/...", "sigs.k8s.io/json/..."},
		reason: "the log carries converted objects: only what reads Kubernetes objects pays for their types",
	},
	{
		of:     []string{module + "mesh/world", module + "mesh/proxy", module + "mesh/kind/...", module + "mesh/problem", module + "mesh/table", module + "mesh/manifest", module + "mesh/permit", module + "mesh/hostname", module + "mesh/spiffe", module + "mesh/credential", module + "mesh/jwks"},
		never:  []string{module + "mesh/index", module + "mesh/xds/...", module + "mesh/gate", module + "mesh/fold", module + "mesh/simulate"},
		reason: "imports point downwards: simulate > xds > index > world, proxy > kind > problem",
	},
	{
		of:     []string{module + "mesh/index"},
		never:  []string{module + "mesh/xds/...", module + "mesh/gate", module + "mesh/fold", module + "mesh/simulate", module + "mesh/why"},
		reason: "imports point downwards: the index answers what generation asks, and generates nothing",
	},
	{
		of:     []string{module + "mesh/fold"},
		never:  []string{module + "mesh/index", module + "mesh/xds/...", module + "mesh/gate", module + "mesh/simulate"},
		reason: "the fold knows objects, not resources: what generation says of a value comes in with the judge",
	},
	{
		of:     []string{module + "internal/..."},
		never:  []string{module + "mesh/...", module + "roles/...", module + "operate/...", module + "watcher/...", module + "builder/...", module + "frontend/...", module + "ca/..."},
		reason: "plumbing knows nothing of what flows through it",
	},
	{
		of: []string{module + "..."}, except: tests,
		never:  append([]string{"testing", "meshlog.dev/deploy/testkit/..."}, tests...),
		direct: true,
		reason: "no process carries test code",
	},
	{
		of:     []string{module + "..."},
		except: []string{module + "internal/process"},
		never:  []string{"go.opentelemetry.io/otel", "go.opentelemetry.io/otel/sdk/...", "go.opentelemetry.io/otel/exporters/..."}, direct: true,
		reason: "where traces go is the process's business; all others know the API at most",
	},
	{
		of: []string{module + "frontend/..."},
		never: []string{
			module + "watcher/...", module + "builder/...", module + "mesh/fold", module + "internal/bus", module + "roles/...", module + "operate/...",
			"meshlog.dev/events/...", "github.com/nats-io/...", "go.etcd.io/...",
		},
		but:    []string{"github.com/nats-io/nkeys/..."},
		reason: "the snapshot is the only way out: a frontend serves what was published, whichever process made it; nkeys has the ciphers of requests for private keys, and no client",
	},
	{
		of:     []string{module + "frontend/keys"},
		never:  []string{module + "frontend", "google.golang.org/grpc/...", "net/http"},
		direct: true,
		reason: "what keeps private keys talks to no network and knows no proxy: the server asks it for a key, and decides which proxy gets it",
	},
	{
		of:     []string{module + "roles/frontend", module + "cmd/frontend"},
		never:  []string{module + "watcher/...", module + "roles/watcher", module + "roles/kube"},
		reason: "a frontend asks watchers for private keys, and cannot read the sources that have them (KEY-3), but for files of its own machine (KEY-7)",
	},
	{
		of: []string{module + "watcher/..."},
		never: []string{
			module + "frontend/...", module + "builder/...", module + "mesh/fold", module + "mesh/xds/...", module + "roles/...", module + "operate/...",
			"meshlog.dev/store/...", "github.com/nats-io/...",
		},
		reason: "the log is the only way in: a watcher publishes what it sees and does not know how it is used",
	},
	{
		of: []string{module + "watcher/..."}, except: []string{module + "watcher/nacos", module + "watcher/mcpxds"},
		never:  []string{"google.golang.org/grpc/..."},
		reason: "only the watchers of sources that speak gRPC pay for it (REG-13)",
	},
	{
		of:     []string{module + "..."},
		except: append(slices.Clip(tests), module+"watcher/mcpxds", module+"roles/mcpxds", module+"roles/sources", module+"roles/up", module+"cmd/watcher-xds", module+"cmd/watcher-sources", module+"cmd/meshlog"),
		never:  []string{module + "watcher/mcpxds"},
		reason: "the client of MCP-over-xDS belongs to its watcher and to the processes that run it (REG-13)",
	},
	{
		of: []string{module + "builder/..."}, except: []string{module + "builder/streams"},
		never: []string{
			module + "frontend/...", module + "watcher/...", module + "internal/audit", module + "internal/bus", module + "roles/...", module + "operate/...",
			"github.com/nats-io/...", "go.etcd.io/...", "google.golang.org/grpc/...",
		},
		reason: "log, store and feed come in as interfaces, so that a simulation can take their place",
	},
	{
		of: []string{module + "frontend/...", module + "roles/frontend", module + "cmd/frontend", module + "watcher/...", module + "builder/..."}, except: tests,
		never:  []string{module + "ca/..."},
		reason: "what ends the streams of proxies, or reads sources, must not be able to mint identities (CA-2)",
	},
	{
		of: []string{module + "operate/..."}, except: tests,
		never:  []string{module + "ca/signer"},
		reason: "commands that inspect a mesh have no use for the CA's key",
	},
	{
		of: []string{module + "ca/..."},
		never: []string{
			module + "frontend/...", module + "watcher/...", module + "builder/...", module + "mesh/fold", module + "mesh/xds/...", module + "internal/bus",
			module + "roles/...", module + "operate/...", "meshlog.dev/events/...", "meshlog.dev/store/...", "github.com/nats-io/...", "go.etcd.io/...",
		},
		reason: "the CA's key is in a process that links little: bus, audit and stores come in as functions and interfaces",
	},
	{
		of:     []string{module + "ca/signer"},
		never:  []string{module + "ca/authn", "google.golang.org/grpc/...", "net/http", "k8s.io/..."},
		reason: "what holds the key talks to no network",
	},
	{
		of:     []string{module + "ca/jointoken"},
		never:  []string{module + "ca/signer", module + "ca/authn", "google.golang.org/grpc/...", "net/http", "k8s.io/..."},
		reason: "the command line makes join tokens, and has no use for the CA's key",
	},
	{
		of: []string{module + "admission/...", module + "roles/admission", module + "cmd/admission"},
		never: []string{
			module + "internal/bus", module + "internal/audit", module + "builder/...", module + "frontend/...", module + "ca/...", module + "operate/...",
			"meshlog.dev/events/...", "meshlog.dev/store/...", "github.com/nats-io/...",
		},
		direct: true,
		reason: "the webhook answers while bus and log are away: it has none (ADM-1)",
	},
	{
		of:     []string{module + "roles/kubeevents", module + "cmd/kube-events"},
		never:  []string{module + "watcher/...", module + "builder/...", module + "frontend/...", module + "ca/...", module + "admission/...", "meshlog.dev/store/..."},
		reason: "what writes Events knows problems as others report them",
	},
	{
		of: []string{module + "..."}, except: append(slices.Clip(tests), module+"watcher/nacos", module+"roles/nacos", module+"roles/sources", module+"roles/up", module+"cmd/watcher-nacos", module+"cmd/watcher-sources", module+"cmd/meshlog"),
		never:  []string{module + "watcher/nacos"},
		reason: "only the processes that watch Nacos link its client (REG-13)",
	},
	{
		of:     []string{module + "..."},
		never:  []string{"github.com/hashicorp/consul/...", "github.com/nacos-group/..."},
		reason: "the clients of registries are our own: those of their makers read the environment, and hide what was left out (CON-21, NAC-4)",
	},
	{
		of: []string{module + "roles/ca", module + "cmd/ca"},
		never: []string{
			module + "frontend/...", module + "builder/...", module + "watcher/kube/...",
			module + "roles/builder", module + "roles/frontend", module + "roles/kube", module + "roles/up", module + "operate/...", "meshlog.dev/store/...",
		},
		reason: "the process with the CA's key links little: of watchers the publisher only",
	},
	{
		of: []string{module + "agent/...", module + "roles/agent", module + "cmd/agent"},
		never: []string{
			module + "frontend/...", module + "builder/...", module + "watcher/...", module + "ca/...", module + "mesh/fold", module + "mesh/index", module + "mesh/world",
			module + "operate/...", "meshlog.dev/store/...", "go.etcd.io/...",
		},
		reason: "an agent is beside each workload: it has no part of the control plane",
	},
	{
		of:     []string{module + "builder/ledger", module + "builder/jury"},
		never:  []string{module + "builder", module + "internal/..."},
		reason: "imports point downwards: the builder's parts do not know it, and operate/past replays with one of them",
	},
	{
		of:     []string{module + "builder/jury"},
		never:  []string{"context"},
		direct: true,
		reason: "the jury proposes and writes nothing: without a context it reaches neither log nor store",
	},
	{
		of: []string{module + "..."}, except: []string{module + "internal/audit", module + "internal/bus", module + "internal/busauth", module + "internal/cakv", module + "internal/keyexchange/..."},
		never: []string{"github.com/nats-io/...", "meshlog.dev/proto/jsapi"}, direct: true,
		reason: "only internal/bus, internal/audit, internal/cakv and the drivers of events and store talk to NATS",
	},
	{
		of:     []string{module + "internal/keyexchange/..."},
		never:  []string{"github.com/nats-io/nats.go/...", "github.com/nats-io/nats-server/...", module + "internal/bus", "net"},
		reason: "what seals and opens private keys reaches no network",
	},
	{
		of:     []string{module + "internal/keyexchange"},
		never:  []string{"context", "os", "io/fs", "log/...", "time"},
		direct: true,
		reason: "the protocol is pure but for random bytes, so that its tests try each attack on the bytes",
	},
	{
		of: []string{module + "..."}, except: []string{module + "internal/logcopy", module + "console/record"},
		never:  []string{"go.etcd.io/..."},
		direct: true,
		reason: "files are the business of store/bolt, and of what the console keeps beside versions",
	},
	{
		of: []string{module + "..."},
		except: []string{
			module + "cmd/...", module + "roles/...", module + "builder/streams", module + "operate/command", module + "operate/serve", module + "suite/faultsim", module + "internal/busauth",
		},
		never: []string{
			"meshlog.dev/events/natslog", "meshlog.dev/events/memlog",
			"meshlog.dev/store/bolt", "meshlog.dev/store/memstore", "meshlog.dev/store/natsfeed",
		},
		direct: true,
		reason: "drivers are chosen where processes are put together, nowhere else",
	},
	{
		of: []string{module + "frontend/...", module + "builder/...", module + "cmd/frontend", module + "cmd/builder"}, except: []string{module + "frontend/frontendtest"},
		never:  []string{"k8s.io/...", "sigs.k8s.io/json/...", module + "mesh/kubeconv", module + "mesh/document"},
		reason: "the log carries converted objects: only what reads Kubernetes objects pays for their types",
	},
	{
		of:     []string{module + "..."},
		never:  []string{"github.com/hashicorp/consul/..."},
		reason: "the watcher of Consul has a client of its own, which reads no environment and shows the headers of ACLs",
	},
	{
		of: []string{module + "..."},
		except: append(slices.Clip(tests), module+"watcher/kube/...", module+"roles/sources", module+"cmd/watcher-sources", module+"roles/up", module+"roles/kube", module+"roles/ca", module+"cmd/ca", module+"cmd/watcher-kube", module+"cmd/meshlog",
			module+"internal/kubeaccess", module+"roles/admission", module+"cmd/admission", module+"operate/admission", module+"roles/kubeevents", module+"cmd/kube-events"),
		never:  []string{"k8s.io/client-go/..."},
		reason: "client-go belongs to the Kubernetes watcher, to the CA, whose tokens an API server reviews, to the webhook, to what writes Events, and to the processes that run one",
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
			if !matches(pkg, l.of) || matches(pkg, l.except) {
				continue
			}
			for _, p := range of {
				if matches(p, l.never) && !matches(p, l.but) {
					t.Errorf("%s uses %s: %s", pkg, p, l.reason)
				}
			}
		}
	}
	for _, l := range laws { // a rule that matches no package checks nothing
		found := false
		for pkg := range deps {
			found = found || matches(pkg, l.of)
		}
		if !found {
			t.Errorf("no package matches %v", l.of)
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

// matches reports whether pkg is one of the patterns, or below a pattern that ends
// in "/...".
func matches(pkg string, patterns []string) bool {
	for _, p := range patterns {
		tree, isTree := strings.CutSuffix(p, "/...")
		if pkg == p || isTree && (pkg == tree || strings.HasPrefix(pkg, tree+"/")) {
			return true
		}
	}
	return false
}
