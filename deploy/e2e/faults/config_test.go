package faults

import (
	"fmt"
	"math/rand/v2"
	"strings"
	"sync"
	"time"

	"meshlog.dev/deploy/e2e/rig"
)

// The files of the configuration, in the order of their revisions.
const (
	routesFile = iota
	shopFile
	extraFile
	filesOfConfig
)

// The headers in which Envoy reports the revision of a file by which it routed.
const (
	routesHeader = "x-routes"
	extraHeader  = "x-extra"
)

// extraHost is the host of the requests that the file extra.yaml routes.
const extraHost = "extra.shop"

// gatewayYAML sets where an Envoy with the label listens.
const gatewayYAML = `apiVersion: networking.istio.io/v1
kind: Gateway
metadata: {name: %[1]s, namespace: demo}
spec:
  selector: {app: %[1]s}
  servers:
    - {port: {number: %[2]d, name: http, protocol: HTTP}, bind: 127.0.0.1, hosts: ["*"]}
---
`

// routesYAML carries its revision in a header, and changes the weights with it.
const routesYAML = `apiVersion: networking.istio.io/v1
kind: VirtualService
metadata: {name: shop, namespace: demo}
spec:
  hosts: ["*"]
  gateways: [sotw, delta]
  http:
    - headers: {response: {set: {x-routes: "%[1]d"}}}
      route:
        - {destination: {host: shop.internal, subset: v1}, weight: %[2]d}
        - {destination: {host: shop.internal, subset: v2}, weight: %[3]d}
`

// shopYAML carries its revision in the weights of its endpoints. The second
// endpoint of v1 comes and goes.
const shopYAML = `apiVersion: networking.istio.io/v1
kind: ServiceEntry
metadata: {name: shop, namespace: demo}
spec:
  hosts: [shop.internal]
  location: MESH_INTERNAL
  ports: [{number: 80, name: http, protocol: HTTP}]
  resolution: STATIC
  endpoints:
    - {address: 127.0.0.1, ports: {http: %[2]d}, weight: %[1]d, labels: {version: v1}}
%[4]s    - {address: 127.0.0.1, ports: {http: %[3]d}, weight: %[1]d, labels: {version: v2}}
---
apiVersion: networking.istio.io/v1
kind: DestinationRule
metadata: {name: shop, namespace: demo}
spec:
  host: shop.internal
  subsets:
    - {name: v1, labels: {version: v1}}
    - {name: v2, labels: {version: v2}}
`

// extraYAML is a service and the route to it. Each revision replaces the service by
// another one.
const extraYAML = `apiVersion: networking.istio.io/v1
kind: VirtualService
metadata: {name: extra, namespace: demo}
spec:
  hosts: [extra.shop]
  gateways: [sotw, delta]
  http:
    - headers: {response: {set: {x-extra: "%[1]d"}}}
      route: [{destination: {host: extra-%[2]d.internal}}]
---
apiVersion: networking.istio.io/v1
kind: ServiceEntry
metadata: {name: extra-%[2]d, namespace: demo}
spec:
  hosts: [extra-%[2]d.internal]
  location: MESH_INTERNAL
  ports: [{number: 80, name: http, protocol: HTTP}]
  resolution: STATIC
  endpoints: [{address: 127.0.0.1, ports: {http: %[3]d}}]
`

// extras is how many names the service of extra.yaml takes in turn.
const extras = 5

// writer is a load of changes: it saves one file after the other, each with a
// revision of its own.
type writer struct {
	dir      *rig.ConfigDir
	backends [3]*rig.Backend // v1, another v1, v2
	dice     *rand.Rand
	pause    time.Duration // between two saves
	stop     chan struct{}
	stopped  chan struct{}

	mu   sync.Mutex // while held, no file is saved
	last [filesOfConfig]int
	err  error
}

// newWriter saves the first revision of every file.
func newWriter(dir string, seed uint64, ports map[string]int) (*writer, error) {
	w := &writer{dice: rand.New(rand.NewPCG(seed, 0)), pause: 200 * time.Millisecond, stop: make(chan struct{}), stopped: make(chan struct{})}
	var err error
	if w.dir, err = rig.NewConfigDir(dir); err != nil {
		return nil, err
	}
	for i, name := range []string{"v1", "v1", "v2"} {
		if w.backends[i], err = rig.StartBackend(name); err != nil {
			return nil, err
		}
	}
	var gateways strings.Builder
	for name, port := range ports {
		fmt.Fprintf(&gateways, gatewayYAML, name, port)
	}
	if _, err := w.dir.Save("gateways.yaml", gateways.String()); err != nil {
		return nil, err
	}
	for file := range filesOfConfig {
		w.save(file)
	}
	return w, w.err
}

// run saves until close is called.
func (w *writer) run() {
	defer close(w.stopped)
	tick := time.NewTicker(w.pause)
	defer tick.Stop()
	for {
		select {
		case <-w.stop:
			return
		case <-tick.C:
		}
		w.mu.Lock()
		w.save(routesFile)
		if w.dice.IntN(2) == 0 {
			w.save(shopFile + w.dice.IntN(2))
		}
		w.mu.Unlock()
	}
}

// close ends run, and the backends.
func (w *writer) close() {
	close(w.stop)
	<-w.stopped
	for _, b := range w.backends {
		b.Stop()
	}
}

// revisions returns the revisions saved last.
func (w *writer) revisions() [filesOfConfig]int {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.last
}

// save saves the next revision of a file; mu is held.
func (w *writer) save(file int) {
	w.last[file]++
	n := w.last[file]
	var name, text string
	switch file {
	case routesFile:
		v2 := w.dice.IntN(101)
		name, text = "routes.yaml", fmt.Sprintf(routesYAML, n, 100-v2, v2)
	case shopFile:
		second, v1, v2 := "", w.backends[0].Port, w.backends[2].Port
		if n%2 == 0 {
			second = fmt.Sprintf("    - {address: 127.0.0.1, ports: {http: %d}, weight: %d, labels: {version: v1}}\n", w.backends[1].Port, n)
		}
		name, text = "shop.yaml", fmt.Sprintf(shopYAML, n, v1, v2, second)
	case extraFile:
		name, text = "extra.yaml", fmt.Sprintf(extraYAML, n, n%extras, w.backends[1].Port)
	}
	if _, err := w.dir.Save(name, text); err != nil && w.err == nil {
		w.err = err
	}
}
