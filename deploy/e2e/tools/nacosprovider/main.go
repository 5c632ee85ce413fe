// Nacosprovider registers instances in a Nacos server with Nacos' own SDK for Go, as an
// independent provider for tests. It is a module of its own because the SDK has many
// dependencies.
//
//	nacosprovider HOST:PORT DIR
//
// Each line of its input is a command; it answers each with a line, "ok" or the error:
//
//	register SERVICE IP PORT WEIGHT
//	deregister SERVICE IP PORT
//
// At the end of its input its connection ends, and the server removes its instances. The
// SDK writes into DIR.
package main

import (
	"bufio"
	"fmt"
	"io"
	"net"
	"os"
	"strconv"
	"strings"

	"github.com/nacos-group/nacos-sdk-go/v2/clients"
	"github.com/nacos-group/nacos-sdk-go/v2/clients/naming_client"
	"github.com/nacos-group/nacos-sdk-go/v2/common/constant"
	"github.com/nacos-group/nacos-sdk-go/v2/vo"
)

func main() {
	if err := run(os.Args[1:], os.Stdin, os.Stdout); err != nil {
		fmt.Fprintln(os.Stderr, "nacosprovider:", err)
		os.Exit(1)
	}
}

func run(args []string, in io.Reader, out io.Writer) error {
	if len(args) != 2 {
		return fmt.Errorf("want HOST:PORT and a directory, not %q", args)
	}
	host, text, err := net.SplitHostPort(args[0])
	if err != nil {
		return err
	}
	port, err := strconv.ParseUint(text, 10, 16)
	if err != nil {
		return err
	}
	client, err := clients.NewNamingClient(vo.NacosClientParam{
		ClientConfig: constant.NewClientConfig(
			constant.WithCacheDir(args[1]+"/cache"), constant.WithLogDir(args[1]+"/log"), constant.WithNotLoadCacheAtStart(true)),
		ServerConfigs: []constant.ServerConfig{*constant.NewServerConfig(host, port)},
	})
	if err != nil {
		return err
	}
	defer client.CloseClient()
	for lines := bufio.NewScanner(in); lines.Scan(); {
		answer := "ok"
		if err := obey(client, strings.Fields(lines.Text())); err != nil {
			answer = err.Error()
		}
		if _, err := fmt.Fprintln(out, answer); err != nil {
			return err
		}
	}
	return nil
}

// obey carries out a command.
func obey(client naming_client.INamingClient, words []string) error {
	if len(words) < 4 {
		return fmt.Errorf("%q: want register SERVICE IP PORT WEIGHT or deregister SERVICE IP PORT", words)
	}
	port, err := strconv.ParseUint(words[3], 10, 16)
	if err != nil {
		return err
	}
	var done bool
	switch words[0] {
	case "register":
		if len(words) != 5 {
			return fmt.Errorf("register: want a weight")
		}
		weight, err := strconv.ParseFloat(words[4], 64)
		if err != nil {
			return err
		}
		done, err = client.RegisterInstance(vo.RegisterInstanceParam{
			ServiceName: words[1], Ip: words[2], Port: port, Weight: weight, Enable: true, Healthy: true, Ephemeral: true,
		})
		if err != nil {
			return err
		}
	case "deregister":
		if done, err = client.DeregisterInstance(vo.DeregisterInstanceParam{ServiceName: words[1], Ip: words[2], Port: port, Ephemeral: true}); err != nil {
			return err
		}
	default:
		return fmt.Errorf("%s: no such command", words[0])
	}
	if !done {
		return fmt.Errorf("%s: refused", words[0])
	}
	return nil
}
