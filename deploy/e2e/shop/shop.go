// Package shop is the configuration of the demo, deploy/e2e/demo/config, on free
// ports: a gateway, a route by weight to two versions, and their endpoints.
package shop

import (
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"time"

	"meshlog.dev/deploy/e2e/rig"
	"meshlog.dev/deploy/testkit/program"
	"meshlog.dev/deploy/testkit/testport"
)

// The two versions, as the files name them.
const (
	V1 = "shop-v1"
	V2 = "shop-v2"
)

// The files of the configuration.
const (
	gatewayFile = "gateway.yaml"
	// Routes is the file with the weights.
	Routes = "routes.yaml"
	// Versions is the file with the service and its endpoints.
	Versions = "shop.yaml"
)

// Files are all files of the configuration.
var Files = []string{gatewayFile, Routes, Versions}

// Shop is a copy of the configuration in a watched directory.
type Shop struct {
	*rig.ConfigDir
	// Port is the port on which Envoy accepts requests.
	Port int
	from string
}

// New copies the configuration to dir/config, with the endpoints' ports.
func New(dir string, v1, v2 []int) (*Shop, error) {
	root, err := program.Root()
	if err != nil {
		return nil, err
	}
	s := &Shop{from: filepath.Join(root, "deploy", "e2e", "demo", "config")}
	if s.Port, err = testport.TCP(); err != nil {
		return nil, err
	}
	if s.ConfigDir, err = rig.NewConfigDir(dir); err != nil {
		return nil, err
	}
	if _, err := s.save(gatewayFile, 10000, s.Port); err != nil {
		return nil, err
	}
	if _, err := s.Weights(90, 10); err != nil {
		return nil, err
	}
	_, err = s.Endpoints(v1, v2)
	return s, err
}

// URL returns the address on which Envoy accepts requests.
func (s *Shop) URL() string { return fmt.Sprintf("http://127.0.0.1:%d/", s.Port) }

// Weights saves the routes with new weights, and returns the time of the save.
func (s *Shop) Weights(v1, v2 int) (time.Time, error) {
	text, err := s.Weighted(v1, v2)
	if err != nil {
		return time.Time{}, err
	}
	return s.Save(Routes, text)
}

// Weighted returns the file of the routes with new weights.
func (s *Shop) Weighted(v1, v2 int) (string, error) {
	text, err := s.read(Routes)
	return Weighted(text, v1, v2), err
}

// Weighted replaces the weights 90 and 10 of a route by new ones.
func Weighted(text string, v1, v2 int) string {
	// In the order of the file: a new weight may equal the other's old one.
	first, second, _ := strings.Cut(text, "weight: 90")
	return first + fmt.Sprintf("weight: %d", v1) + strings.Replace(second, "weight: 10", fmt.Sprintf("weight: %d", v2), 1)
}

// Endpoints saves the versions with the ports of their endpoints, and returns the
// time of the save.
func (s *Shop) Endpoints(v1, v2 []int) (time.Time, error) {
	text, err := s.read(Versions)
	if err != nil {
		return time.Time{}, err
	}
	return s.Save(Versions, Ports(Ports(text, 8081, v1...), 8082, v2...))
}

// Break replaces each file by a line that is no object; repair restores the
// files.
func (s *Shop) Break() (repair func() error, err error) {
	whole := map[string]string{}
	for _, name := range Files {
		if whole[name], err = s.Read(name); err != nil {
			return nil, err
		}
		if _, err := s.Save(name, "<<<<<<< HEAD\n"); err != nil {
			return nil, err
		}
	}
	return func() error {
		for name, text := range whole {
			if _, err := s.Save(name, text); err != nil {
				return err
			}
		}
		return nil
	}, nil
}

func (s *Shop) save(name string, old int, now ...int) (time.Time, error) {
	text, err := s.read(name)
	if err != nil {
		return time.Time{}, err
	}
	return s.Save(name, Ports(text, old, now...))
}

func (s *Shop) read(name string) (string, error) {
	b, err := os.ReadFile(filepath.Join(s.from, name))
	return string(b), err
}

// Ports repeats the line with the port old for each port of now.
func Ports(text string, old int, now ...int) string {
	var out strings.Builder
	was := regexp.MustCompile(fmt.Sprintf(`(number|http): %d\b`, old))
	for line := range strings.Lines(text) {
		if !was.MatchString(line) {
			out.WriteString(line)
			continue
		}
		for _, port := range now {
			out.WriteString(was.ReplaceAllString(line, fmt.Sprintf("${1}: %d", port)))
		}
	}
	return out.String()
}
