//go:build registries

package nacostest_test

import (
	"context"
	"fmt"
	"net/http"
	"net/url"
	"testing"
	"time"

	"meshlog.dev/deploy/testkit/nacostest"
	"meshlog.dev/deploy/testkit/program"
)

const instance = "/nacos/v1/ns/instance"

// register registers an instance of the service web. A persistent one is data.
func register(t *testing.T, s *nacostest.Server, token string, ephemeral bool) {
	t.Helper()
	v := url.Values{"serviceName": {"web"}, "ip": {"127.0.0.9"}, "port": {"8080"}, "ephemeral": {fmt.Sprint(ephemeral)}}
	if token != "" {
		v.Set("accessToken", token)
	}
	if err := s.Call(t.Context(), http.MethodPost, instance, v, nil); err != nil {
		t.Fatal(err)
	}
}

// awaitInstances waits until the service web has this number of instances.
func awaitInstances(t *testing.T, s *nacostest.Server, token string, want int) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	err := program.Until(ctx, "the instances", func(ctx context.Context) error {
		var list struct{ Hosts []struct{ IP string } }
		v := url.Values{"serviceName": {"web"}}
		if token != "" {
			v.Set("accessToken", token)
		}
		if err := s.Call(ctx, http.MethodGet, instance+"/list", v, &list); err != nil {
			return err
		}
		if len(list.Hosts) != want {
			return fmt.Errorf("web has %v, want %d instances", list.Hosts, want)
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
}

// TestServer registers and reads an instance (TST-4). A restart loses it, because it is
// ephemeral (NAC-17).
func TestServer(t *testing.T) {
	s := nacostest.Start(t, nacostest.Options{})
	register(t, s, "", true)
	awaitInstances(t, s, "", 1)
	if err := s.Restart(t.Context()); err != nil {
		t.Fatal(err)
	}
	awaitInstances(t, s, "", 0)
	register(t, s, "", true)
	awaitInstances(t, s, "", 1)
	s.Kill()
	if err := s.Wipe(); err != nil {
		t.Fatal(err)
	}
	if err := s.Start(t.Context()); err != nil {
		t.Fatal(err)
	}
	awaitInstances(t, s, "", 0)
}

// TestAuthentication checks that a server with an account refuses requests without its
// token (NAC-12).
func TestAuthentication(t *testing.T) {
	s := nacostest.Start(t, nacostest.Options{User: "mesh", Password: "log-of-the-mesh"})
	v := url.Values{"serviceName": {"web"}}
	if err := s.Call(t.Context(), http.MethodGet, instance+"/list", v, nil); err == nil {
		t.Error("a request without a token was answered, want an error")
	}
	token, err := s.Login(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	register(t, s, token, true)
	awaitInstances(t, s, token, 1)
}
