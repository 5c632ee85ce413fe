// Backend is the servers behind the Envoys of the compose deployment: they answer
// every HTTP request with their name, or call another one. It also has the health check
// and the kill command for containers whose images have no shell, and makes the
// certificates of the deployment.
package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/signal"
	"strconv"
	"strings"
	"syscall"
	"time"
)

const usage = `Usage:
  backend serve ADDRESS NAME              answer every request with NAME, and the caller's identity if a sidecar tells it
  backend forward ADDRESS URL HOST        answer as URL does when it is asked for HOST; /healthz with 200
  backend get URL                         exit with 0 if URL answers with 200: a health check
  backend kill PID                        end a process as a crash does
  backend certificate DIR NAME HOST...    write NAME.crt and NAME.key for these names, and NAME.ca of a CA made for it alone
  backend own UID FILE...                 give files to a user, whom alone they are readable by
Examples:
  backend serve :8080 shop-v1
  backend get http://127.0.0.1:8222/healthz
`

// timeout bounds reading a request, answering it while the server ends, and
// answering a health check.
const timeout = 5 * time.Second

func main() { os.Exit(run(os.Args[1:])) }

// run returns 2 if it does not understand its arguments.
func run(args []string) int {
	var err error
	switch {
	case len(args) == 3 && args[0] == "serve":
		err = serve(args[1], named(args[2]))
	case len(args) == 4 && args[0] == "forward":
		err = serve(args[1], forward(args[2], args[3]))
	case len(args) > 3 && args[0] == "certificate":
		err = certificate(args[1], args[2], args[3:])
	case len(args) > 2 && args[0] == "own":
		err = own(args[1], args[2:])
	case len(args) == 2 && args[0] == "get":
		err = get(args[1])
	case len(args) == 2 && args[0] == "kill":
		err = kill(args[1])
	default:
		fmt.Fprint(os.Stderr, usage)
		return 2
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "backend:", err)
		return 1
	}
	return 0
}

// serve answers until it gets a signal to end, and then finishes the open
// requests.
func serve(addr string, handler http.Handler) error {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM)
	defer stop()
	server := &http.Server{Addr: addr, ReadHeaderTimeout: timeout, Handler: handler}
	ended := make(chan error, 1)
	go func() { // ends with Shutdown
		ended <- server.ListenAndServe()
	}()
	select {
	case err := <-ended:
		return err
	case <-ctx.Done():
	}
	ctx, cancel := context.WithTimeout(context.Background(), timeout)
	defer cancel()
	return errors.Join(server.Shutdown(ctx), ignoreClosed(<-ended))
}

// named answers each request with the name of this server, and with the caller's identity
// if a sidecar gives it in x-forwarded-client-cert.
func named(name string) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		_, who, called := strings.Cut(r.Header.Get("x-forwarded-client-cert"), "URI=")
		if !called {
			fmt.Fprintln(w, name)
			return
		}
		if end := strings.IndexAny(who, ";,"); end >= 0 {
			who = who[:end]
		}
		fmt.Fprintf(w, "%s, called by %s\n", name, who)
	})
}

// forward answers as url does when it is asked for host.
func forward(url, host string) http.Handler {
	client := http.Client{Timeout: timeout}
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/healthz" {
			return
		}
		out, err := http.NewRequestWithContext(r.Context(), http.MethodGet, url+r.URL.Path, nil)
		if err != nil {
			http.Error(w, err.Error(), http.StatusBadRequest)
			return
		}
		out.Host = host
		resp, err := client.Do(out)
		if err != nil {
			http.Error(w, err.Error(), http.StatusBadGateway)
			return
		}
		defer resp.Body.Close()
		w.WriteHeader(resp.StatusCode)
		_, _ = io.Copy(w, resp.Body) // the caller sees what came
	})
}

func ignoreClosed(err error) error {
	if errors.Is(err, http.ErrServerClosed) {
		return nil
	}
	return err
}

func get(url string) error {
	client := http.Client{Timeout: timeout}
	resp, err := client.Get(url)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		body, _ := io.ReadAll(io.LimitReader(resp.Body, 1<<10))
		return fmt.Errorf("GET %s: %s: %s", url, resp.Status, body)
	}
	return nil
}

func kill(pid string) error {
	n, err := strconv.Atoi(pid)
	if err != nil || n <= 1 {
		return fmt.Errorf("%q is not the id of a process that may be killed", pid)
	}
	return syscall.Kill(n, syscall.SIGKILL)
}
