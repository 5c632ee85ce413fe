// Backend is the server behind the Envoys of the compose deployment: it answers
// every HTTP request with its name. It also has the health check and the kill
// command for containers whose images have no shell.
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
	"syscall"
	"time"
)

const usage = `Usage:
  backend serve ADDRESS NAME   answer every request with NAME
  backend get URL              exit with 0 if URL answers with 200: a health check
  backend kill PID             end a process as a crash does
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
		err = serve(args[1], args[2])
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
func serve(addr, name string) error {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM)
	defer stop()
	server := &http.Server{Addr: addr, ReadHeaderTimeout: timeout, Handler: http.HandlerFunc(
		func(w http.ResponseWriter, _ *http.Request) { fmt.Fprintln(w, name) },
	)}
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
