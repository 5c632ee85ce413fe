//go:build registries

package registries

import (
	"context"
	"fmt"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"testing"

	"meshlog.dev/deploy/testkit/nacostest"
)

// nacosHost is the host of the service web of Nacos.
const nacosHost = "web.DEFAULT-GROUP.public.nacos"

// inNacos registers or, with DELETE, removes an instance that needs no provider.
func (w *world) inNacos(ctx context.Context, t *testing.T, s *nacostest.Server, method string, i int) {
	t.Helper()
	must(t, s.Call(ctx, method, "/nacos/v1/ns/instance", url.Values{
		"serviceName": {"web"}, "ip": {address(i)}, "port": {strconv.Itoa(w.port)}, "ephemeral": {"false"},
	}, nil))
}

func nacosComes(ctx context.Context, t *testing.T, w *world) (entry, documents string, come func()) {
	s := nacostest.Start(t, nacostest.Options{})
	s.Kill()
	documents = strings.Replace(fmt.Sprintf(config, w.port), "web.service.consul", nacosHost, 1)
	return "{type: nacos, nacos: [" + s.Addr + "]}", documents, func() {
		must(t, s.Start(ctx))
		w.inNacos(ctx, t, s, http.MethodPost, 0)
	}
}

// TestIstiodFedFromNacos is the same with the services of a real Nacos server (r-nacos).
func TestIstiodFedFromNacos(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	w := &world{}
	w.serveInstances(t, 2)
	nacos := nacostest.Start(t, nacostest.Options{})
	w.inNacos(ctx, t, nacos, http.MethodPost, 0)
	f := feed(ctx, t, "{type: nacos, nacos: ["+nacos.Addr+"]}")
	f.answers(ctx, t, nacosHost, w.port, address(0))
	w.inNacos(ctx, t, nacos, http.MethodPost, 1)
	w.inNacos(ctx, t, nacos, http.MethodDelete, 0)
	f.answers(ctx, t, nacosHost, w.port, address(1))
	f.wellFed(ctx, t)
}
