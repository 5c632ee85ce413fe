package mcpxds_test

import (
	"testing"
	"time"

	"google.golang.org/protobuf/types/known/anypb"
	networking "istio.io/api/networking/v1alpha3"

	"meshlog.dev/deploy/testkit/mcptest"
	"meshlog.dev/services/watcher"
	"meshlog.dev/services/watcher/mcpxds"
	"meshlog.dev/services/watcher/watchertest"
)

// TST-2: the acceptance suite, with a ServiceEntry for each object.
func TestSuite(t *testing.T) {
	watchertest.Run(t, func(t *testing.T) watchertest.Source {
		s := mcptest.Start(t, mcptest.Options{})
		entries := map[string]*anypb.Any{}
		push := func() {
			var set []*anypb.Any
			for _, e := range entries {
				set = append(set, e)
			}
			s.Set(mcptest.ServiceEntries, set...)
		}
		put := func(name, value string) {
			entries[name] = mcptest.Resource("shop/"+name, entry(name+"-"+value+".example.com"))
		}
		return watchertest.Source{
			Watcher: func() watcher.Watcher {
				return mcpxds.New(mcpxds.Config{Address: s.Address()}).Hasten(10*time.Second, time.Second, time.Second)
			},
			Put: func(name, value string) {
				put(name, value)
				push()
			},
			Delete: func(name string) {
				delete(entries, name)
				push()
			},
			PutAll: func(values map[string]string) {
				for name, value := range values {
					put(name, value)
				}
				push()
			},
			Down: s.Down,
			Up: func() {
				if err := s.Up(); err != nil {
					t.Error(err)
				}
			},
		}
	})
}

// entry returns a ServiceEntry with a host.
func entry(host string) *networking.ServiceEntry {
	return &networking.ServiceEntry{
		Hosts: []string{host}, Resolution: networking.ServiceEntry_DNS,
		Ports: []*networking.ServicePort{{Number: 80, Name: "http", Protocol: "HTTP"}},
	}
}
